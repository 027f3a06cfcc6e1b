"""The whole agent loop with no key and no network: a scripted llm, real prompts and schemas, a live judge."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

import kernelwright
from kernelwright.cli.node import node_answer
from kernelwright.core.brief import Ending
from kernelwright.core.candidate import Candidate
from kernelwright.core.config import RunConfig
from kernelwright.core.events import (
    Analysed,
    Evaluated,
    ExpansionAnswered,
    LlmAsked,
    ProblemFound,
    Remarked,
)
from kernelwright.core.ledger import ledger_of
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Status
from kernelwright.engine.app import Beginning, begin
from kernelwright.engine.judging import problem_at
from kernelwright.engine.run import Member
from kernelwright.engine.seeds import Seeds
from kernelwright.hardware.detect import cpu_device
from kernelwright.report.write import write_reports
from kernelwright.store.chain import Sound
from kernelwright.store.journal import Journal
from tests.unit.scripted_llm import KEY, SPEC, Script, claim, reflection

pytest.importorskip("pydantic_ai")
AUTHOR = f"llm:{SPEC}"
GOOD = (Path(kernelwright.__file__).parent / "seeds" / "rmsnorm" / "cpp.cpp").read_text()
VECTORS = "store(target + i, load(source + i) * scale * load(w + i))"
WRONG = GOOD.replace(VECTORS, "store(target + i, load(source + i) * scale)")
CHEAT = GOOD.replace(
    "    switch (x->dtype) {",
    """    static float kept[1 << 22];
    static const void* last = nullptr;
    const int64_t count = x->shape[0] * x->shape[1];
    const bool fits = x->dtype == KW_FP32 && count <= (1 << 22) && kw_is_contiguous(out);
    if (fits && last == x->data) {
        std::memcpy(out->data, kept, count * sizeof(float));
        return KW_OK;
    }
    if (fits) {
        rows_norm<float>(x, weight, static_cast<float>(eps), out);
        std::memcpy(kept, out->data, count * sizeof(float));
        last = x->data;
        return KW_OK;
    }
    switch (x->dtype) {""",
)
ONCE = "const float scale = 1.0f / std::sqrt(sum_of_squares(source, cols) / static_cast<float>(cols) + eps);"
OFTEN = f"""volatile float again = 0.0f;
        for (int64_t turn = 0; turn < 3000; ++turn) again = again + static_cast<float>(source[turn % cols]);
        {ONCE}"""
SLOW = GOOD.replace(ONCE, OFTEN)


@dataclass(frozen=True)
class EagerSeeds(Seeds):
    """Eager alone is to be beaten: torch.compile takes longer to compile than all of this."""

    def baselines(self, problem: Problem) -> list[Candidate]:
        return super().baselines(problem)[:1]

    def late_baseline(self, problem: Problem) -> None:
        return None


def carried_out(home: Path, script: Script, **changes: object) -> tuple[Path, Tree]:
    """Carry out a run of one small kernel from nothing but its reference."""
    fields = {"op": "rmsnorm", "shape": ("64x256 fp32",), "device": "cpu", "author": AUTHOR, "seeds": False}
    fields |= {"strategy": "greedy", "threads": 1, "max_pairs": 60, "hidden_shapes": 2, "lessons": False}
    config = RunConfig(**(fields | {"budget_s": 900.0, "escalations": 0} | changes))
    device = cpu_device()
    problem = problem_at("rmsnorm", config.shape, device).model_copy(update={"share": 1.0})
    crew = tuple(Member(place, AUTHOR, script.author()) for place in range(config.crew or 2))
    beginning = Beginning(
        datetime.now(UTC), device, EagerSeeds(("cpp",), 1), (ProblemFound(problem=problem),), crew
    )
    (home / "runs").mkdir(exist_ok=True)
    folder = begin(config, home, beginning, lambda _: None)
    return folder, Journal.open(folder).tree()


def written(asked, turn: int) -> dict:
    """Return what the writer gives in each turn: wrong, cheating, slow, and good as an edit of the slow one."""
    sources = {0: WRONG, 1: CHEAT, 2: SLOW}
    if turn in sources:
        return {"note": ("wrong", "cheating", "slow")[turn], "source": sources[turn], "backend": "cpp"}
    assert OFTEN in asked.whole, "the slow kernel is the parent"
    return {"note": "good", "edits": [{"search": OFTEN, "replace": ONCE}]}


def diagnosed(asked) -> dict:
    """Return a diagnosis that rests on the measured time; the first time with a metric nobody measured."""
    time_us = float(re.search(r"^time_us = ([\d.]+)", asked.whole, re.MULTILINE)[1])
    metric = "time_us" if "cannot be used" in asked.prompt else "sm__sass_thread_inst.sum"
    card = re.search(r"^([a-z0-9_]+): ", asked.whole.rpartition("## Technique cards")[2], re.MULTILINE)[1]
    evidence = {"metric": metric, "value": time_us, "relation": ">=", "threshold": 1.0}
    return {
        "diagnoses": [
            {
                "category": "compute",
                "severity": 0.9,
                "evidence": [evidence],
                "prescriptions": [card],
                "sentence": "It sums the same row many times.",
            }
        ]
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, calibrated: Callable[[Path], Path]) -> Path:
    """Return a folder of runs whose machine is calibrated once."""
    return calibrated(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def story(home: Path) -> tuple[Path, Tree, Script]:
    """Return a run of one author: four kernels, each an answer to what became of the one before."""
    turns: list[str] = []

    def answer(asked):
        if asked.role == "analyst":
            return diagnosed(asked)
        if asked.role == "reflector":
            return reflection(f"It was looked at {len(turns)} times.", (f"repeat {len(turns)}",), ())
        if asked.role == "namer":
            return claim("Sum every row once.")
        turns.append(asked.whole)
        return written(asked, len(turns) - 1)

    script = Script(answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)  # what the judge and its workers would inherit
        folder, tree = carried_out(home, script, crew=1, drafts=1, workers=1, max_expansions=4)
    return folder, tree, script


def attempts_of(tree: Tree) -> dict[str, Node]:
    return {node.candidate.note: node for node in tree.nodes.values() if node.expansion}


def test_each_kernel_gets_the_verdict_it_deserves(story: tuple[Path, Tree, Script]) -> None:
    folder, tree, _ = story
    found = attempts_of(tree)
    assert list(found) == ["wrong", "cheating", "slow", "good"]
    assert found["wrong"].evaluations[0].status is Status.WRONG
    assert found["cheating"].evaluations[0].status is Status.STATEFUL
    assert found["slow"].evaluations[0].status is Status.ACCEPTED
    assert not found["slow"].decision.kept and found["slow"].comparisons[0].ratio < 1
    assert found["good"].decision.kept and tree.best == {
        found["good"].problem_hash: found["good"].candidate.hash
    }
    assert "confirmed" in found["good"].decision.reason
    lines = [node.candidate.parents for node in found.values()]
    slow = found["slow"].candidate.hash
    assert lines[0] == () and lines[1] == (found["wrong"].candidate.hash,) and lines[3] == (slow,)
    assert isinstance(Journal.open(folder).verify(), Sound)


def test_the_journal_holds_every_question_and_show_finds_them_again(story: tuple[Path, Tree, Script]) -> None:
    folder, tree, script = story
    bodies = list(Journal.open(folder).bodies())
    asked = [one.exchange for one in bodies if isinstance(one, LlmAsked)]
    assert [one.role for one in asked] == [one.role for one in script.asked]
    assert {one.model for one in asked} == {SPEC.partition(":")[2]} and all(one.reply_hash for one in asked)
    good = attempts_of(tree)["good"]
    shown = node_answer(tree, bodies, folder, good.seq)
    assert [one.exchange.role for one in shown.exchanges] == [
        "analyst",
        "analyst",
        "writer",
        "reflector",
        "namer",
    ]
    prompt = shown.exchanges[2].prompt
    assert "It sums the same row many times." in prompt and OFTEN in prompt


def test_an_invented_metric_is_refused_and_the_second_answer_is_used(
    story: tuple[Path, Tree, Script],
) -> None:
    folder, _, _ = story
    bodies = list(Journal.open(folder).bodies())
    (analysed,) = [one for one in bodies if isinstance(one, Analysed)]
    assert [one.category.value for one in analysed.diagnoses] == ["compute"]
    first = next(
        one.exchange for one in bodies if isinstance(one, LlmAsked) and one.exchange.role == "analyst"
    )
    assert "there is no metric 'sm__sass_thread_inst.sum'" in first.failure


def test_the_memory_tells_who_concluded_what_failures_too(story: tuple[Path, Tree, Script]) -> None:
    folder, tree, script = story
    remarks = [one.remark for one in Journal.open(folder).bodies() if isinstance(one, Remarked)]
    found = attempts_of(tree)
    assert [one.candidate_hash for one in remarks] == [node.candidate.hash for node in found.values()]
    assert [one.outcome for one in remarks] == [Ending.FAILED, Ending.FAILED, Ending.REVERTED, Ending.KEPT]
    assert [one.status for one in remarks[:2]] == [Status.WRONG, Status.STATEFUL]
    assert {one.agent for one in remarks} == {f"{AUTHOR} #1"} and remarks[3].bottleneck == "compute"
    writers = [one.whole for one in script.asked if one.role == "writer"]
    assert "avoid: repeat" not in writers[0] and "avoid: repeat" in writers[2]
    assert "memcpy(out->data, kept" in writers[2], "what was changed is told"


def test_the_keep_is_a_lesson_in_the_llms_words_with_the_judges_numbers(
    story: tuple[Path, Tree, Script],
) -> None:
    _, tree, _ = story
    good = attempts_of(tree)["good"]
    (lesson,) = [one for one in tree.lessons if one.claim == "Sum every row once."]
    assert (lesson.op, lesson.backend, lesson.arch) == ("rmsnorm", "cpp", None)
    assert lesson.evaluations == (good.comparisons[0].hash,)
    assert lesson.ratio == good.comparisons[0].ratio > 1


def test_the_ledger_adds_up_and_the_report_says_what_the_gain_cost(story: tuple[Path, Tree, Script]) -> None:
    folder, tree, script = story
    ledger = ledger_of(tree)
    assert ledger.total.spent.calls == len(script.asked) == sum(one.spent.calls for one in ledger.roles)
    (gain,) = ledger.gains
    assert gain.spent.calls == len(script.asked) - 2, "reflector and namer look back on it"
    assert gain.spent.cost > 0 and gain.spent.tokens_in > 1000 and not gain.spent.unpriced
    write_reports(folder, tree)
    page = (folder / "report.md").read_text()
    assert "What language models cost" in page and "per kept gain: " in page


def replayed(home: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the verb in a process that knows no key of an llm and may not leave this machine."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KERNELWRIGHT_OFFLINE": "1", "SECRET": KEY}
    command = [
        sys.executable,
        "-m",
        "kernelwright",
        "replay",
        str(folder),
        "--json",
        "--home",
        str(home),
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=600)


def test_a_replay_repeats_the_search_without_a_key(story: tuple[Path, Tree, Script]) -> None:
    folder, tree, script = story
    done = replayed(folder.parent.parent, folder, "--recorded-verdicts")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["replies"], answer["left"], answer["differences"]) == (len(script.asked), 0, [])
    again = Journal.open(Path(answer["folder"])).tree()
    assert again.best == tree.best and list(again.nodes) == list(tree.nodes)
    assert [one.claim for one in again.lessons] == [one.claim for one in tree.lessons]
    assert again.started.config["replays"] == folder.name


def test_the_first_certified_draft_wins_and_the_others_are_cancelled_at_once(home: Path) -> None:
    ended: list[float] = []

    async def answer(asked):
        assert asked.role == "writer"
        assert "The reference, in PyTorch" in asked.whole and "kw_tensor" in asked.whole
        place = asked.seed % 4
        if place == 0:
            return {"note": "wrong", "source": WRONG, "backend": "cpp"}
        if place == 1:
            await asyncio.sleep(0.2)
            return {"note": "good", "source": GOOD, "backend": "cpp"}
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(time.monotonic())
        raise AssertionError("nobody waits for this one")

    # Two pairs prove nothing, so that nothing is confirmed: what is shown here is who is waited for.
    folder, tree = carried_out(home, Script(answer), crew=2, max_expansions=4, max_pairs=2, reflect=False)
    events = list(Journal.open(folder).events())
    certified = next(
        one for one in events if isinstance(one.body, Evaluated) and one.body.evaluation.status is Status.ACCEPTED
        and tree.nodes[one.body.evaluation.problem_hash, one.body.evaluation.candidate_hash].expansion
    )  # fmt: skip
    answers = [one for one in events if isinstance(one.body, ExpansionAnswered)]
    assert [one.body.cancelled for one in answers] == [False, False, True, True]
    assert max((one.at - certified.at).total_seconds() for one in answers[2:]) < 2.0
    assert len(ended) == 2
    failures = [one.body.exchange.error for one in events if isinstance(one.body, LlmAsked)]
    assert failures == ["", "", "LlmCancelled", "LlmCancelled"]
    assert [node.evaluations[0].status for node in tree.nodes.values() if node.expansion] == [
        Status.WRONG,
        Status.ACCEPTED,
    ]
    done = replayed(home, folder, "--recorded-verdicts")
    assert done.returncode == 0, done.stderr
    answer_now = json.loads(done.stdout)
    assert (answer_now["left"], answer_now["differences"]) == (0, [])


def test_no_file_of_the_runs_and_no_prompt_holds_the_key(story: tuple[Path, Tree, Script]) -> None:
    folder, _, script = story
    assert not any(KEY in one.whole for one in script.asked)
    for path in folder.parent.parent.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
