"""A search of existing source: the file is to be beaten, only marked regions may change, and the winner is put back."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import kernelwright
from kernelwright.agents import mover
from kernelwright.core.brief import Brief, Proposal
from kernelwright.core.candidate import Author, Candidate
from kernelwright.core.config import RunConfig
from kernelwright.core.device import DeviceKind
from kernelwright.core.errors import BadInput, ServiceDied
from kernelwright.core.events import Body, CandidateProposed, Decided, Evaluated, ProblemFound, RunStarted
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Status
from kernelwright.engine import gate, inbox
from kernelwright.engine.answering import refused
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds, given_of, given_seed
from kernelwright.engine.starting import put_into
from kernelwright.engine.titles import dethrone
from kernelwright.engine.winners import write_regions_of_winner
from kernelwright.report.standing import standing

CUDA = b"""#include "kernelwright.cuh"\r
\r
/*kernelwright\r
PARAMS = {"THREADS": [128, 256]}\r
\r
def plan(case, params, device):\r
    return {"unsupported": "nothing"}\r
*/\r
\r
// kernelwright: begin inner\r
__device__ int answer() { return 41; }\r
// kernelwright: end inner\r
__device__ int other; // \xc3\xa9, no line end here"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a CUDA file with a marked region, written on another system."""
    path = tmp_path / "kernel.cu"
    path.write_bytes(CUDA)
    return path


@pytest.fixture
def begun(make, file: Path, tmp_path: Path) -> Run:
    """Return a run that has judged the file."""
    problem, tree, first = make.problem(), Tree(), given_seed(file, "rmsnorm")

    def record(bodies: Sequence[Body]) -> None:
        for body in bodies:
            tree.apply(body)

    config = RunConfig(op="rmsnorm", source=str(file), backend="cuda")
    seeds = Seeds(("cuda",), 1, given=first)
    run = Run(config, problem.device, 1, tmp_path, record, tree, lambda _: None, seeds)
    verdict = make.evaluation(first, problem)
    started = RunStarted(config=config.model_dump(mode="json"), versions={}, device=problem.device)
    record(
        [
            started,
            ProblemFound(problem=problem),
            CandidateProposed(problem_hash=problem.hash, candidate=first),
        ]
    )
    record([Evaluated(evaluation=verdict), Decided(decision=gate.first_of_problem(verdict))])
    return run


def changed(first: Candidate, old: str, new: str, **changes: object) -> Candidate:
    """Return a candidate made from another, with one thing written otherwise."""
    assert old in first.source
    update = {"source": first.source.replace(old, new), "parents": (first.hash,)} | changes
    return first.model_copy(update=update | {"author": Author(name="anna")})


def given(run: Run) -> Candidate:
    assert run.seeds.given is not None
    return run.seeds.given


def test_the_file_is_all_a_search_begins_with_and_what_is_to_be_beaten(make, begun: Run) -> None:
    for kind in (DeviceKind.CPU, DeviceKind.CUDA):
        problem = make.problem(device=make.device(kind=kind))
        assert begun.seeds.baselines(problem) == [given(begun)]
        assert begun.seeds.first(problem) == []
        assert begun.seeds.late_baseline(problem) is None
    assert (given(begun).backend, given(begun).choices[0].values) == ("cuda", {"THREADS": 128})
    assert "\r" not in given(begun).source


def test_a_run_that_is_taken_up_begins_with_the_file_as_it_was(begun: Run, file: Path) -> None:
    file.write_bytes(CUDA.replace(b"41", b"40"))
    assert given_of(begun.config, begun.tree) == given(begun)
    assert given_of(begun.config, Tree()) == given_seed(file, "rmsnorm") != given(begun)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"int a;\n", "no marked region"),
        (b"\xff", "no text in UTF-8"),
        (CUDA.replace(b"]}", b"]"), "not valid Python"),
    ],
)
def test_a_file_that_is_no_beginning_is_refused(file: Path, text: bytes, told: str) -> None:
    file.write_bytes(text)
    with pytest.raises(BadInput, match=told):
        given_seed(file, "rmsnorm")


def test_a_proposal_may_change_the_region_alone_whoever_its_parents_are(begun: Run) -> None:
    (problem,) = begun.tree.problems.values()
    inside = changed(given(begun), "41", "42")
    assert refused(begun, problem, inside, ()) is None
    assert (
        refused(begun, problem, inside.model_copy(update={"source": inside.source.replace("\n", "\r\n")}), ())
        is None
    )
    for parents in (inside.parents, ()):
        outside = changed(given(begun), "int other", "int others", parents=parents)
        assert "it changes what lies behind region 'inner'" in (refused(begun, problem, outside, ()) or "")


def test_a_submission_that_reaches_outside_is_put_aside(begun: Run) -> None:
    (problem,) = begun.tree.problems.values()
    for old in ("41", "other"):
        source = given(begun).source.replace(old, "43")
        proposal = Proposal(source=source, backend="cuda", author=Author(name="anna"), note="by hand")
        path = inbox.drop(begun.folder, problem.hash, proposal)
        taken = inbox.collect(begun, problem)
        assert bool(taken) == (old == "41")
    assert "behind region 'inner'" in (inbox.refusal(begun.folder, path.name) or "")


def test_the_winner_goes_back_with_every_byte_outside_as_it_was(make, begun: Run, file: Path) -> None:
    (problem,) = begun.tree.problems.values()
    assert write_regions_of_winner(begun.folder, begun.tree) is None, "the file is still the best"
    assert standing(begun.tree, problem.hash).winner is None
    (row,) = given(begun).choices
    choices = (row.model_copy(update={"values": {"THREADS": 256}}),)
    better = changed(given(begun), "return 41;", "return 42;", choices=choices)
    verdict, found = make.evaluation(better, problem), make.comparison(given(begun), better, problem)
    begun.record(
        [CandidateProposed(problem_hash=problem.hash, candidate=better), Evaluated(evaluation=verdict)]
    )
    begun.record([Decided(decision=gate.decide(verdict, found))])
    returning = write_regions_of_winner(begun.folder, begun.tree)
    assert returning is not None
    assert (returning.original, returning.winner.name, returning.values) == (
        file,
        "winner.cu",
        {"THREADS": 256},
    )
    assert file.read_bytes() == CUDA, "the file is the user's"
    assert put_into(file, returning.winner)
    assert file.read_bytes() == CUDA.replace(b"41", b"42")


def test_a_file_that_fails_while_it_is_timed_ends_the_run(make, begun: Run) -> None:
    (node,) = begun.tree.nodes.values()
    failed = Disqualified(
        candidate_hash=node.candidate.hash,
        status=Status.WRONG,
        reason="an output is wrong",
    )
    with pytest.raises(ServiceDied, match="failed while it was timed"):
        dethrone(begun, node, failed)


@pytest.mark.parametrize(("marks", "made"), [("a pass", 0), ("the sum", 1)])
def test_the_mover_passes_over_what_reaches_outside(make, marks: str, made: int) -> None:
    seed = (Path(kernelwright.__file__).parent / "seeds" / "reduce" / "cpp.cpp").read_text()
    first, last = {
        "a pass": ("// Visits a row", "// A sum that also"),
        "the sum": ("inline double total_of", "// A NaN wins"),
    }[marks]
    source = seed.replace(first, f"// kernelwright: begin it\n{first}").replace(
        last, f"// kernelwright: end it\n{last}"
    )
    parent = make.candidate(source, backend="cpp")
    brief = Brief(problem=make.problem(), parents=(parent,), evaluations=())
    answer = mover.author("unrolling").propose(brief)
    assert len(answer.proposals) == made
    assert made or "region 'it'" in answer.reason


def test_such_a_run_is_not_judged_again_against_baselines_it_never_met(begun: Run, tmp_path: Path) -> None:
    from kernelwright.engine.foreign_runs import FoundRun
    from kernelwright.engine.rejudging import asked_again

    with pytest.raises(BadInput, match="held against a file"):
        asked_again("before", begun.tree, FoundRun(tmp_path / "runs" / "before", tmp_path), lambda _: None)


def test_a_winner_without_parents_is_given_back_too(make, begun: Run) -> None:
    ((key, problem),) = begun.tree.problems.items()
    first = begun.seeds.given
    assert first is not None
    winner = changed(first, "41", "42", parents=())
    verdict = make.evaluation(winner, problem)
    decision = gate.first_of_problem(verdict)
    begun.record([CandidateProposed(problem_hash=key, candidate=winner), Evaluated(evaluation=verdict)])
    begun.record([Decided(decision=decision)])
    assert begun.tree.best[key] == winner.hash
    found = write_regions_of_winner(begun.folder, begun.tree)
    assert found is not None and found.winner.read_bytes() == winner.source.encode()
