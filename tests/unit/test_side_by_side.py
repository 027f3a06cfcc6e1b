"""Several judges, each on an equal GPU of its own: asked side by side, journalled in the order of the tree."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kernelwright
from kernelwright.core.candidate import Candidate
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import DeviceBusy, ServiceDied
from kernelwright.core.events import Body, CandidateProposed, Evaluated, Noted, ProblemFound
from kernelwright.core.messages.judge import EvaluationAnswer, JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.search import nodes_of
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Evaluation, Profile
from kernelwright.engine import app
from kernelwright.engine.loop import decide, search
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import Child, JudgeClient
from kernelwright.hardware.twins import in_its_place
from kernelwright.testing.recorded_judge import RecordedClient, RecordedJudge
from kernelwright.testing.recorded_run import RecordedRun, Wanderer, settings
from tests.unit.landscapes import valley

SCRIPT = """
import sys, time
from pathlib import Path
from kernelwright.core.frames import read_message
from kernelwright.core.messages.judge import JUDGE_REQUEST, Evaluate
from kernelwright.core.frames import write_message
from kernelwright.core.messages.judge import EvaluationAnswer

folder, company = Path(sys.argv[1]), int(sys.argv[2])
while (request := read_message(sys.stdin.buffer, JUDGE_REQUEST)) is not None:
    if isinstance(request, Evaluate):
        (folder / f"asked-{request.candidate.hash}").touch()
        deadline = time.monotonic() + 20
        while len(list(folder.glob("asked-*"))) < company:
            if time.monotonic() > deadline:
                sys.exit("nobody else was asked meanwhile")
            time.sleep(0.01)
        text = (folder / request.candidate.hash).read_text()
        write_message(sys.stdout.buffer, EvaluationAnswer.model_validate_json(text))
"""
"""A judge that answers when so many candidates have been asked about, not before."""


class ScriptedChild(Child):
    """A process that runs the script above, or one that ends at once."""

    def __init__(self, script: str, folder: Path, company: int) -> None:
        self.name = "judge"
        self.log = tempfile.TemporaryFile()
        self.home = tempfile.TemporaryDirectory(prefix="kernelwright-")
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(folder), str(company)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, "PYTHONPATH": str(Path(kernelwright.__file__).parents[1])},
            start_new_session=True,
        )


@dataclass
class ScriptedClient(JudgeClient):
    """The engine's own client in front of such a process."""

    folder: Path
    company: int
    script: str = SCRIPT
    show: Callable[[str], None] = print
    starts: int = 0

    def __post_init__(self) -> None:
        """Start the process."""
        self.child = self._start()

    def _start(self) -> Child:
        self.starts += 1
        return ScriptedChild(self.script, self.folder, self.company)


@dataclass
class Court:
    """A run with a few candidates to be judged."""

    run: Run
    problem: Problem
    events: list[Body]
    waiting: list[Candidate]

    def decide(self, *judges: JudgeClient) -> None:
        """Have the judges do one step, and end them."""
        self.run.judges = list(judges[1:])
        undecided = [node for node in nodes_of(self.run.tree, self.problem.hash) if node.decision is None]
        try:
            decide(self.run, judges[0], self.problem, undecided)
        finally:
            for judge in judges:
                if judge.child.process.poll() is None:
                    judge.close()

    @property
    def judged(self) -> list[int]:
        """Return whom the journal has verdicts on, in its order, by place."""
        places = {one.hash: place for place, one in enumerate(self.waiting)}
        return [places[one.evaluation.candidate_hash] for one in self.events if isinstance(one, Evaluated)]

    @property
    def notes(self) -> list[str]:
        """Return what the journal notes."""
        return [one.text for one in self.events if isinstance(one, Noted)]


@pytest.fixture
def court(make, tmp_path: Path) -> Court:
    problem, tree, events = make.problem(), Tree(), []
    waiting = [make.candidate(f"int kernel_fn(); // {place}", parents=("a",)) for place in range(3)]

    def record(bodies: Sequence[Body]) -> None:
        for body in bodies:
            events.append(body)
            tree.apply(body)

    record([ProblemFound(problem=problem)])
    record([CandidateProposed(problem_hash=problem.hash, candidate=one) for one in waiting])
    for one in waiting:
        answer = EvaluationAnswer(evaluation=make.evaluation(one, problem, timing=make.timing(problem, 10.0)))
        (tmp_path / one.hash).write_text(answer.model_dump_json())
    config = RunConfig(op="rmsnorm")
    run = Run(config, problem.device, 1, tmp_path, record, tree, lambda _: None, Seeds((), 1))
    return Court(run, problem, events, waiting)


def test_two_judges_are_asked_at_the_same_time_and_journalled_in_the_order_of_the_tree(
    court: Court, tmp_path: Path
) -> None:
    court.decide(ScriptedClient(tmp_path, 2), ScriptedClient(tmp_path, 2))
    assert court.judged == [0, 1]
    assert court.notes == []


def test_a_judge_that_dies_beside_the_first_takes_nothing_with_it(court: Court, tmp_path: Path) -> None:
    dying = ScriptedClient(tmp_path, 1, "raise SystemExit('the device is lost')")
    court.decide(ScriptedClient(tmp_path, 1), dying)
    assert court.judged == [0]
    assert dying.starts == 2, "once more, as for the first judge"
    assert court.run.judges == []
    (note,) = court.notes
    assert note.startswith("a judge beside the first is given up, the others go on: ")
    assert "the device is lost" in note
    court.decide(ScriptedClient(tmp_path, 1))
    assert court.judged == [0, 1], "its candidate was still waiting"


def test_when_the_first_judge_dies_the_verdict_of_the_other_is_kept(court: Court, tmp_path: Path) -> None:
    dying = ScriptedClient(tmp_path, 1, "raise SystemExit('the device is lost')")
    with pytest.raises(ServiceDied, match="the device is lost"):
        court.decide(dying, ScriptedClient(tmp_path, 1))
    assert court.judged == [1]


@dataclass
class BesideClient(RecordedClient):
    """A recorded judge beside the first one."""

    given: list[str] = field(default_factory=list)
    """Whom it was asked about."""
    is_busy: bool = False

    def verdict_on(
        self, problem: Problem, candidate: Candidate, profile: Profile
    ) -> Callable[[], Evaluation]:
        """Take the question, and answer when it is waited for."""
        self.given.append(candidate.hash)

        def verdict() -> Evaluation:
            if self.is_busy:
                raise DeviceBusy("cuda:1", "another process", 600.0)
            return self.evaluate(problem, candidate, profile)

        return verdict

    def close(self) -> None:
        """End nothing."""


def searched(make, beside: int, *, is_busy: bool = False, **limits: object) -> tuple[RecordedRun, list[str]]:
    """Return a search with so many judges beside the first, and whom those were asked about."""
    landscape = valley(make.problem())
    config = settings(strategy="mcts", seed=3, workers=4, **limits)
    found, given = RecordedRun(landscape, Wanderer(landscape, 3), config), []
    client = RecordedClient(RecordedJudge(landscape), found.tree)
    found.run.judges = [BesideClient(client.judge, found.tree, given, is_busy=is_busy) for _ in range(beside)]
    search(found.run, client)
    return found, given


def test_the_journal_is_that_of_one_judge(make) -> None:
    alone, _ = searched(make, 0, max_expansions=16)
    three, given = searched(make, 2, max_expansions=16)
    assert three.bodies == alone.bodies
    assert len(given) > len(alone.steps) / 3


def test_a_judge_whose_device_is_busy_is_given_up_and_every_verdict_is_still_given(make) -> None:
    alone, _ = searched(make, 0, max_expansions=16)
    found, given = searched(make, 1, is_busy=True, max_expansions=16)
    assert len(given) == 1
    assert found.run.judges == []
    assert [one for one in found.bodies if not isinstance(one, Noted)] == alone.bodies


def test_judges_side_by_side_give_no_more_verdicts_than_are_allowed(make) -> None:
    for most in (9, 10, 11):
        assert len(searched(make, 2, max_evaluations=most)[0].steps) == most


def gpu(index: int, **changes: object) -> Device:
    facts = {"kind": "cuda", "name": "NVIDIA H200", "arch": "sm_90", "units": 132, "memory_bytes": 1 << 37}
    return Device.model_validate(facts | {"index": index} | changes, strict=False)


CPU = Device(kind=DeviceKind.CPU, name="host", arch="x86_64", units=2, memory_bytes=1 << 33)
OTHER = gpu(2, name="NVIDIA A100", arch="sm_80")


@pytest.mark.parametrize(
    ("own", "variable", "expected"),
    [
        (gpu(0), None, ["1,0,2,3", "3,1,2,0"]),
        (gpu(1), None, ["1,0,2,3", "0,3,2,1"]),
        (gpu(0), "4,GPU-8c3f,5,6", ["GPU-8c3f,4,5,6", "6,GPU-8c3f,5,4"]),
        (gpu(0), "0", []),
        (OTHER, None, []),
        (CPU, None, []),
    ],
)
def test_an_equal_gpu_is_put_in_the_place_of_the_own_one(own: Device, variable, expected: list[str]) -> None:
    every = [gpu(0), gpu(1), OTHER, gpu(3), CPU]
    environment = {"CUDA_VISIBLE_DEVICES": variable} if variable else {}
    assert [one["CUDA_VISIBLE_DEVICES"] for one in in_its_place(own, every, environment)] == expected


@pytest.mark.parametrize(
    ("most", "own", "expected"),
    [(None, gpu(0), ["1,0,2,3", "3,1,2,0"]), (2, gpu(0), ["1,0,2,3"]), (1, gpu(0), []), (None, CPU, [])],
)
def test_a_run_has_a_judge_for_every_equal_gpu_up_to_the_most_allowed(
    court: Court, monkeypatch, tmp_path: Path, most: int | None, own: Device, expected: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(app, "devices", lambda: [gpu(0), gpu(1), OTHER, gpu(3), CPU])
    monkeypatch.setattr(JudgeClient, "_start", lambda _: None)
    court.run.device, court.run.config = own, RunConfig(op="rmsnorm", max_devices=most)
    folder = str(tmp_path)
    given = JudgeSettings(
        threads=1, max_pairs=1, alpha=0.1, hidden_shapes=0, cache_folder=folder, blob_folder=folder
    )
    found = app.judges_beside(court.run, given)
    assert [one.seeing and one.seeing["CUDA_VISIBLE_DEVICES"] for one in found] == expected


def test_what_a_judge_is_to_see_is_in_the_environment_of_its_process() -> None:
    # `code` is Python's own prompt: it waits for its input, and its environment can be read meanwhile.
    child = Child("judge", "code", 1, seeing={"CUDA_VISIBLE_DEVICES": "1,0"})
    try:
        place = Path(f"/proc/{child.process.pid}/environ")
        while not (told := place.read_bytes().split(b"\0"))[0] and child.process.poll() is None:
            time.sleep(0.01)  # the process is there a moment before its environment is
    finally:
        child.close()
    assert b"CUDA_VISIBLE_DEVICES=1,0" in told
