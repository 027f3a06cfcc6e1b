"""The winner against the seed it descends from."""

from kernelwright.core.candidate import ParamChoice
from kernelwright.core.events import CandidateProposed, ProblemFound
from kernelwright.core.tree import Tree
from kernelwright.report.diff import change_of, seed_of, unified


def planted(make, *candidates):
    problem, tree = make.problem(), Tree()
    tree.apply(ProblemFound(problem=problem))
    for one in candidates:
        tree.apply(CandidateProposed(problem_hash=problem.hash, candidate=one))
    return tree, problem


def test_winner_is_compared_with_its_first_ancestor_and_not_with_its_parent(make):
    seed = make.candidate("a\nb\nc\n")
    middle = make.candidate("a\nB\nc\n", parents=(seed.hash,))
    winner = make.candidate("a\nB\nc\nd\n", parents=(middle.hash,))
    tree, problem = planted(make, seed, middle, winner)
    assert seed_of(tree, problem.hash, winner.hash) == seed
    found = change_of(tree, problem, winner)
    assert found.words == "2 lines added, 1 removed since the seed (cpp by unknown)."
    assert [line for line in found.diff.split("\n") if line[:1] in "+-"] == [
        *("--- seed", "+++ winner"),
        *("-b", "+B", "+d"),
    ]


def test_winner_that_is_its_own_seed_has_nothing_to_compare(make):
    winner = make.candidate("a")
    tree, problem = planted(make, winner)
    found = change_of(tree, problem, winner)
    assert found.words == "The winner is the seed itself, unchanged: there is nothing to compare."
    assert (found.seed, found.diff, found.parameters) == ("", "", ())


def test_baseline_that_keeps_its_title_is_no_winner(make):
    base = make.baseline()
    tree, problem = planted(make, base)
    assert change_of(tree, problem, base).words == change_of(tree, problem, None).words
    assert change_of(tree, problem, base).words.startswith("A baseline holds the title")


def test_parameters_chosen_otherwise_are_told_though_the_source_is_the_same(make):
    seed = make.candidate("a", choices=(ParamChoice(values={"BLOCK": 64, "two_pass": False}),))
    choice = ParamChoice(values={"BLOCK": 256, "two_pass": False})
    winner = make.candidate("a", parents=(seed.hash,), choices=(choice,))
    tree, problem = planted(make, seed, winner)
    found = change_of(tree, problem, winner)
    assert found.words == "The source is the seed's (cpp by unknown); only parameters were chosen otherwise."
    assert [(one.name, one.before, one.after) for one in found.parameters] == [("BLOCK", "64", "256")]
    assert found.parameters[0].cases == "rmsnorm 8x64 fp16"


def test_parents_that_are_not_in_the_run_and_circles_end_the_way_back(make):
    lost = make.candidate("lost", parents=("f" * 64,))
    first, second = make.candidate("first"), make.candidate("second")
    first, second = (
        first.model_copy(update={"parents": (second.hash,)}),
        second.model_copy(update={"parents": (first.hash,)}),
    )
    tree, problem = planted(make, lost, first, second)
    assert seed_of(tree, problem.hash, lost.hash) == lost
    assert seed_of(tree, problem.hash, first.hash) == second


def test_form_feed_in_a_line_does_not_make_two_of_it():
    assert unified("a\fb\n", "a\fc\n").split("\n")[3:5] == ["-a\fb", "+a\fc"]
