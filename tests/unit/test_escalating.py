"""What a search that is stuck turns to: bolder proposals, another strategy, another language, and then the end."""

from pathlib import Path

import pytest

from kernelwright.agents import auto
from kernelwright.core.brief import Answer
from kernelwright.core.config import RunConfig, recorded
from kernelwright.core.events import ExpansionAnswered, ExpansionAsked, ProblemEnded, SearchEscalated
from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.search import rng_at
from kernelwright.core.verdict import Stage
from kernelwright.engine.asking import ask, brief
from kernelwright.engine.drafting import draft, is_drafting
from kernelwright.engine.escalating import LEVELS, next_means
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds
from tests.unit.growing import Grower

STRATEGIES = ("greedy", "beam", "mcts", "evolve")
LANGUAGES = ("triton", "cuda")


class Drafter:
    """An author who can begin with nothing and be told to stop."""

    def propose(self, brief):
        return Answer(reason="nothing yet")

    def until(self, halt):
        return self


class Story:
    """A run whose best kernel is in Triton; one in CUDA C++ is slower."""

    def __init__(self, make, folder: Path, *, cuda: bool = True, languages=LANGUAGES, **settings) -> None:
        self.grower, self.events = Grower(make), []
        self.best = self.grower.grown("best", time_us=10.0, backend="triton")
        if cuda:
            self.slow = self.grower.grown("slow", time_us=40.0, backend="cuda")
            self.other = self.grower.grown("other", time_us=20.0, backend="cuda")
        config = RunConfig(**({"op": "rmsnorm", "workers": 3} | settings))
        self.run = Run(
            config,
            self.grower.problem.device,
            1,
            folder,
            self.record,
            self.grower.tree,
            lambda _: None,
            Seeds(languages, 1),
        )
        self.run.author = auto.author()

    def record(self, bodies) -> None:
        for body in bodies:
            self.events.append(body)
            self.grower.tree.apply(body)

    def turn(self, times: int = 1) -> list:
        """Have the search turn to other means so often, and return what was journalled."""
        for _ in range(times):
            self.record([next_means(self.run, self.grower.problem, "5 in a row")])
        return self.events[-times:]

    def ask(self) -> list[ExpansionAsked]:
        """Have the strategy choose, and return what was asked for; it is answered with nothing."""
        before = len(self.events)
        ask(self.run, self.grower.problem)
        asked = self.events[before:]
        for one in asked:
            self.record([ExpansionAnswered(expansion=one.expansion, author="auto", reason="nothing")])
        return asked


def test_all_means_are_tried_by_default_before_a_problem_is_given_up(make, tmp_path):
    story = Story(make, tmp_path)
    *turns, end = story.turn(4)
    assert [(one.level, one.left) for one in turns] == [(1, ""), (2, ""), (3, "triton")]
    assert [one.reason for one in turns] == [
        *(f"5 in a row; next: {words}" for words in LEVELS[:2]),
        "5 in a row; next: another language than triton",
    ]
    assert (end.rule, end.reason) == ("stuck", "5 in a row")


def test_fewer_means_can_be_asked_for(make, tmp_path):
    found = Story(make, tmp_path, escalations=1).turn(2)
    assert [type(one) for one in found] == [SearchEscalated, ProblemEnded]


def test_first_authors_are_asked_to_be_bold_and_not_told_what_led_here(make, tmp_path):
    story = Story(make, tmp_path, strategy="greedy", workers=1)
    calm = story.ask()
    assert not any(one.expansion.bold for one in calm)
    story.turn()
    asked = [one.expansion for one in story.ask()]
    assert [(one.bold, one.memory, one.parents) for one in asked] == [
        (True, Memory.SIBLINGS, (story.best.hash,))
    ]
    assert brief(story.run, asked[0], 8).bold


def test_then_another_strategy_chooses(make, tmp_path):
    story = Story(make, tmp_path, strategy="greedy")
    story.turn()
    assert {one.strategy for one in story.ask()} == {"greedy"}
    story.turn()
    assert {one.strategy for one in story.ask()} == {"evolve"}
    assert {one.strategy for one in (Story(make, tmp_path, strategy="evolve")).ask()} == {"evolve"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_at_last_only_kernels_in_other_languages_are_expanded(make, tmp_path, strategy):
    story = Story(make, tmp_path, strategy=strategy)
    story.turn(3)
    asked = [one.expansion for _ in range(4) for one in story.ask()]
    parents = {parent for one in asked for parent in one.parents}
    assert story.other.hash in parents
    assert parents <= {story.other.hash, story.slow.hash}
    assert not any(one.bold for one in asked)


def test_a_title_won_in_the_other_language_does_not_send_the_search_back(make, tmp_path):
    story = Story(make, tmp_path)
    story.turn(3)
    winner = story.grower.grown("winner", story.other, time_us=5.0, backend="cuda")
    assert story.grower.tree.best[story.grower.problem.hash] == winner.hash
    parents = {parent for _ in range(4) for one in story.ask() for parent in one.expansion.parents}
    assert winner.hash in parents
    assert story.best.hash not in parents


def test_a_run_of_one_language_says_so_when_it_gives_up(make, tmp_path):
    end = Story(make, tmp_path, cuda=False, languages=("triton",)).turn(3)[-1]
    assert (end.rule, end.reason) == (
        "stuck",
        "5 in a row; no other language was tried: triton is the only one of this run",
    )


def test_without_a_kernel_in_another_language_and_without_a_drafter_the_level_is_left_out(make, tmp_path):
    story = Story(make, tmp_path, cuda=False)
    story.grower.grown("broken", failed=Stage.SMOKE, backend="cuda")
    words = "there is no accepted kernel in cuda, and nobody who begins with nothing"
    assert story.turn(3)[-1].reason == f"5 in a row; no other language was tried: {words}"


def test_an_author_who_can_draft_is_asked_once_for_kernels_in_the_other_language(make, tmp_path):
    story = Story(make, tmp_path, cuda=False, drafts=2)
    story.run.author = Drafter()
    assert isinstance(story.turn(3)[-1], SearchEscalated)
    asked = [one.expansion for one in story.ask()]
    assert [(one.parents, one.backend, one.memory) for one in asked] == [((), "cuda", Memory.CLEAN)] * 2
    assert "Language cuda: " in brief(story.run, asked[0], 0).contract
    assert story.ask() == []


def test_a_first_draft_certified_long_ago_does_not_end_those_in_the_other_language(make, tmp_path):
    story, key = Story(make, tmp_path, cuda=False, drafts=2), make.problem().hash
    story.run.author, first = Drafter(), Expansion(problem_hash=key)
    story.record([ExpansionAsked(strategy="mcts", expansion=first)])
    own = (story.best.hash,)
    story.record([ExpansionAnswered(expansion=first, author="drafter", candidates=own)])
    story.turn(3)
    assert ask(story.run, story.grower.problem) and is_drafting(story.run, story.grower.problem)
    draft(story.run, None, story.grower.problem, None)
    answered = [one for one in story.events if isinstance(one, ExpansionAnswered)][1:]
    assert [(one.expansion.backend, one.cancelled) for one in answered] == [("cuda", False)] * 2


def test_settings_of_a_journal_from_before_there_was_boldness_stay_as_they_were(make, tmp_path):
    assert (recorded({"escalations": 2}).bold, recorded({"bold": True}).bold, RunConfig().bold) == (
        False,
        True,
        True,
    )
    story = Story(make, tmp_path, bold=False, escalations=2)
    story.turn()
    (first, *_) = (one.expansion for one in story.ask())
    assert (first.bold, first.memory) == (False, Memory.SIBLINGS)
    assert isinstance(story.turn(2)[-1], ProblemEnded)


def test_what_is_drawn_does_not_depend_on_words_that_older_journals_lack(make):
    tree = Grower(make).tree
    (key,) = tree.problems

    def drawn(**words) -> float:
        asked = Expansion(problem_hash=key, hint="make it faster", **words)
        return rng_at(tree, Allowance(problem_hash=key, expansions=2, barren=(asked,)), 7).random()

    assert drawn() == drawn(bold=True) == drawn(backend="cuda")
    assert drawn() != drawn(diagnosis=1)
