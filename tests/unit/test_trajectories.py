"""A run as training data: what a line holds, what earns which reward, and what never leaves the machine."""

import json
from pathlib import Path

import pytest

from kernelwright.core.candidate import Author, ParamChoice
from kernelwright.core.events import CandidateProposed, ExpansionAnswered, ExpansionAsked, LlmAsked
from kernelwright.core.exchange import Exchange
from kernelwright.core.expansion import Expansion, Memory
from kernelwright.core.tree import fold
from kernelwright.core.verdict import Stage
from kernelwright.report.trajectories import Format, Source, Trajectory, lines, trajectories
from kernelwright.store.blobs import Blobs
from tests.unit.report_runs import Telling

KEY = "sk-ant-planted0123456789abcdef"
PROMPT = f"Make it faster. Bearer {KEY} from /home/greta/project by greta"


@pytest.fixture
def source(make, tmp_path: Path) -> Source:
    """Return a run: a baseline, a seed that is kept, an llm's faster kernel, a wrong one, a pending one."""
    run, blobs = Telling(make), Blobs(tmp_path)
    run.started().found()
    base = run.baseline(time_us=100.0)
    seed = make.candidate("int kernel_fn(); // seed", author=Author(name="seed", detail="cpp.cpp"))
    run.compared(run.verdict(seed, 50.0), base, seed, (100.0, 50.0))
    best = make.candidate(
        f"int kernel_fn(); // see /home/greta/notes, {KEY}",
        author=Author(name="llm", detail="some-model"),
        parents=(seed.hash,),
        note="asked greta",
        choices=(ParamChoice(values={"MODE": f"as greta has it, {KEY}", "N": 4}),),
    )
    wanted = Expansion(
        problem_hash=run.problem.hash, parents=(seed.hash,), memory=Memory.BOTH, hint="be bold"
    )
    asked = Exchange(
        role="writer",
        provider="openai",
        model="some-model",
        prompt_hash=blobs.put(PROMPT.encode()),
        reply_hash=blobs.put(b"the reply"),
        seconds=1.0,
    )
    run.tell(ExpansionAsked(strategy="greedy", expansion=wanted), LlmAsked(expansion=wanted, exchange=asked))
    run.tell(CandidateProposed(problem_hash=run.problem.hash, candidate=best))
    run.tell(ExpansionAnswered(expansion=wanted, author="llm", candidates=(best.hash,)))
    run.compared(run.verdict(best, 40.0), seed, best, (50.0, 40.0))
    wrong = make.candidate(
        "int kernel_fn(); // wrong",
        author=Author(name="greta", detail="submitted wrong.cpp"),
        parents=(best.hash,),
    )
    run.verdict(wrong, failed=Stage.SMOKE)
    pending = make.candidate("int kernel_fn(); // pending")
    run.tell(CandidateProposed(problem_hash=run.problem.hash, candidate=pending))
    bodies = [event.body for event in run.events]
    return Source(
        run_id="20260102-030405-aaaaaa",
        tree=fold(bodies),
        bodies=bodies,
        text=blobs.get,
        contract=lambda problem, backend: f"{problem.op} in {backend} for {KEY}",
        licence="MIT",
        names=("greta",),
    )


def test_the_reward_is_the_certified_speed_up_over_the_baseline_and_nothing_for_a_failure(
    source: Source,
) -> None:
    found = list(trajectories(source))
    assert [(one.number, one.reward) for one in found] == [(1, 2.0), (2, 2.5), (3, 0.0)]
    assert [one.verdict.status.value for one in found] == ["accepted", "accepted", "wrong"]
    assert [one.verdict.kept for one in found] == [True, True, None]
    assert [one.licence for one in found] == ["Apache-2.0", "MIT", "MIT"]
    failing = found[2].verdict.stages[-1]
    assert (failing.stage, failing.passed, failing.reason) == (Stage.SMOKE, False, "out differs by 3 ulp")


def test_a_line_has_the_prompt_that_was_recorded_and_the_parents(source: Source) -> None:
    seed, best, wrong = trajectories(source)
    assert best.context.prompt == "Make it faster. Bearer <secret> from ~/project by <person>"
    assert (best.context.reply, best.context.model, best.context.hint) == (
        "the reply",
        "some-model",
        "be bold",
    )
    assert [(one.source, one.reward) for one in best.context.parents] == [("int kernel_fn(); // seed", 2.0)]
    assert (seed.context.prompt, seed.context.parents) == (None, ())
    assert [one.candidate for one in wrong.context.parents] == [best.candidate.candidate]


@pytest.mark.parametrize("wanted", list(Format))
def test_no_key_no_home_and_no_name_is_in_any_line(source: Source, wanted: Format) -> None:
    text = "\n".join(lines(source, wanted))
    assert len(text) > 100
    for planted in (KEY, "greta", "/home/"):
        assert planted not in text
    assert "<secret>" in text


def test_imitation_takes_what_was_kept_and_reinforcement_takes_failures_too(source: Source) -> None:
    sft = [json.loads(line) for line in lines(source, Format.SFT)]
    assert [one["number"] for one in sft] == [1, 2]
    assert [message["role"] for message in sft[1]["messages"]] == ["user", "assistant"]
    assert sft[1]["messages"][1]["content"] == "the reply"
    rl = [json.loads(line) for line in lines(source, Format.RL)]
    assert [(one["number"], one["reward"], one["status"]) for one in rl] == [
        (1, 2.0, "accepted"),
        (2, 2.5, "accepted"),
        (3, 0.0, "wrong"),
    ]
    assert json.loads(rl[2]["completion"])["source"] == "int kernel_fn(); // wrong"
    assert "Start from this cpp source, 2.500 times as fast" in rl[2]["prompt"][0]["content"]


def test_a_line_of_the_whole_export_can_be_read_back(source: Source) -> None:
    for line, one in zip(lines(source, Format.JSONL), trajectories(source), strict=True):
        assert Trajectory.model_validate_json(line) == one


def test_a_text_that_is_gone_leaves_the_task_and_the_parents(source: Source, tmp_path: Path) -> None:
    for blob in (tmp_path / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    _, best, _ = trajectories(source)
    assert (best.context.prompt, best.context.model) == (None, "some-model")
