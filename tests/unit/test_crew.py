"""A crew of llms: different prescriptions, one memory, answers in the order of asking, drafts that race."""

import asyncio
import os
import re
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelwright.core import plugins
from kernelwright.core.brief import Ending
from kernelwright.core.candidate import ParamChoice
from kernelwright.core.config import RunConfig
from kernelwright.core.difference import change_of
from kernelwright.core.errors import ReplayEnded
from kernelwright.core.events import (
    Analysed,
    Body,
    ExpansionAnswered,
    ExpansionAsked,
    LessonLearnt,
    LlmAsked,
    ProblemFound,
    Remarked,
    RunStarted,
)
from kernelwright.core.expansion import Expansion, Memory
from kernelwright.core.ledger import ledger_of
from kernelwright.core.memory import conclusions
from kernelwright.core.ports import Agent
from kernelwright.core.remark import Remark
from kernelwright.core.thinking import Reflection
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Stage, Status
from kernelwright.engine import loop
from kernelwright.engine.crew import crew_of, places, spread
from kernelwright.engine.recorded_verdicts import RecordedVerdicts
from kernelwright.engine.replaying import Recorded, _crew
from kernelwright.engine.run import Member, Run
from kernelwright.store.blobs import Blobs
from kernelwright.store.journal import Journal
from kernelwright.testing.recorded_judge import RecordedClient, RecordedJudge, RecordedSeeds
from tests.unit.growing import Grower, journalled
from tests.unit.landscapes import GRID, SOURCE, valley
from tests.unit.llm_servers import Say, serving
from tests.unit.scripted_llm import KEY, SPEC, Script, claim, reflection

pytest.importorskip("pydantic_ai")
NAME = f"llm:{SPEC},mode=params"
CODE = f"llm:{SPEC}"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def carry_out(folder: Path, make, script: Script, kill_after: int | None = None, **changes: object) -> Tree:
    """Begin the run of a landscape with a crew, or take it up; killed for good after so many appends."""
    landscape = valley(make.problem())
    journal, tree, record = journalled(folder, lambda: NOON, kill_after)
    fields = {"op": "rmsnorm", "strategy": "greedy", "patience": 3, "budget_s": 1e9, "author": NAME}
    config = RunConfig(**(fields | {"max_expansions": 8, "escalations": 0, "analyst": "rules"} | changes))
    seeds = RecordedSeeds(("cpp",), 1, landscape)
    run = Run(config, landscape.problem.device, 1, folder, record, tree, lambda _: None, seeds)
    names = places(config, (config.author, *config.beside))
    run.crew = tuple(Member(place, name, author_named(name, script)) for place, name in enumerate(names))
    if tree.started is None:
        started = RunStarted(config=config.model_dump(mode="json"), versions={}, device=run.device)
        record([started, ProblemFound(problem=landscape.problem)])
    with journal:
        loop.optimize(run, RecordedClient(RecordedJudge(landscape), tree))
    return tree


def author_named(name: str, script: Script) -> Agent:
    """Return the scripted llm, or an author that needs none."""
    kind, _, detail = name.partition(":")
    return script.author(detail) if kind == "llm" else plugins.load("agents", kind).author(detail)


def walker(asked) -> dict:
    """Return values that follow from the prompt and the seed alone, as those of a server would."""
    if asked.role == "reflector":
        return reflection(why=f"Seed {asked.seed} waited for memory.")
    if asked.role == "namer":
        return claim()
    turn = int(asked.seed or 0) + len(re.findall(r"^- (?:sibling|ancestor)", asked.whole, re.MULTILINE))
    values = {
        name: listed[(turn * step) % len(listed)] for step, (name, listed) in enumerate(GRID.items(), 1)
    }
    other = {**values, "UNROLL": GRID["UNROLL"][(turn + 1) % 5]}
    return {"note": f"step {turn}", "sets": [values, other]}


def bodies_of(folder: Path, *kinds: type) -> list[Body]:
    return [one for one in Journal.open(folder).bodies() if isinstance(one, kinds)]


# Who is asked


def test_two_llms_share_by_default_and_keyless_authors_stay_alone():
    assert places(RunConfig(), ("auto",)) == ["auto"]
    assert places(RunConfig(), ("llm:openai:m",)) == ["llm:openai:m"] * 2
    assert places(RunConfig(), ("llm:openai:m", "llm:openai:n")) == ["llm:openai:m", "llm:openai:n"]
    assert places(RunConfig(crew=3), ("llm:openai:m", "tuner")) == ["llm:openai:m", "tuner", "llm:openai:m"]
    assert crew_of(RunConfig(author="none")) == ()
    (alone,) = crew_of(RunConfig(author="tuner"))
    assert (alone.label, alone.thinker) == ("tuner #1", None)


def test_a_server_is_asked_once_whether_it_is_there_however_many_work_with_it(monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_LLM_KEY", KEY)
    with serving("openai", Say("ready"), Say("ready")) as there:
        crew = crew_of(RunConfig(author=f"llm:{there.spec}", beside=("tuner",), crew=3))
    assert [one.label for one in crew] == [f"llm:{there.spec} #1", "tuner #2", f"llm:{there.spec} #3"]
    assert [one.thinker is not None for one in crew] == [True, False, True]
    assert len(there.asked) == 1


def test_nobody_in_a_crew_is_given_what_somebody_else_has():
    same = Expansion(problem_hash="p", parents=("a",), diagnosis=1)
    found = spread([same, same, same, same], [same], asked=4, crew=4)
    assert [(one.worker, one.diagnosis) for one in found] == [(0, 2), (1, 3), (2, 4), (3, 5)]
    assert [one.memory for one in found] == [Memory.BOTH, Memory.BOTH, Memory.SIBLINGS, Memory.CLEAN]
    assert spread([same, same], [same], asked=7, crew=1) == [same, same], "one author is asked as ever"


# Asking at once


def test_a_crew_is_asked_at_the_same_time_and_journalled_in_the_order_of_asking(make, tmp_path):
    meeting, seen = threading.Barrier(3), set[int]()

    async def slow_first(asked):
        if asked.role == "writer" and asked.seed not in seen:
            seen.add(asked.seed)
            meeting.wait(timeout=10)  # all three are being asked in this very moment
            await asyncio.sleep(0.1 * (10 - asked.seed))  # the first one answers last
        return walker(asked)

    tree = carry_out(tmp_path / "run", make, Script(slow_first), crew=3, max_expansions=3)
    asked = [one.expansion for one in bodies_of(tmp_path / "run", ExpansionAsked)]
    answered = [one.expansion for one in bodies_of(tmp_path / "run", ExpansionAnswered)]
    assert asked == answered and [one.worker for one in asked] == [0, 1, 2]
    assert len({one.diagnosis for one in asked}) == 3
    writers = {node.candidate.author.detail for node in tree.nodes.values() if node.expansion}
    assert writers == {"gpt-5-mini #1", "gpt-5-mini #2", "gpt-5-mini #3"}


def test_a_crew_killed_again_and_again_has_the_journal_of_one_that_was_not(make, tmp_path):
    carry_out(tmp_path / "whole", make, Script(walker))
    whole = list(Journal.open(tmp_path / "whole").events())
    # What a question took differs from run to run; everything else may not.
    bare = [_timeless(event.body) for event in whole]
    kills = 0
    while _in_a_child(tmp_path / "killed", make, 5) != 0:
        kills += 1
        found = [_timeless(one) for one in Journal.open(tmp_path / "killed").bodies()]
        assert found == bare[: len(found)]
    assert [_timeless(one) for one in Journal.open(tmp_path / "killed").bodies()] == bare
    assert kills >= 3 and len(bare) > 30


def _in_a_child(folder: Path, make, kill_after: int) -> int:
    if (child := os.fork()) == 0:
        carry_out(folder, make, Script(walker), kill_after)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _timeless(body: Body) -> Body:
    if not isinstance(body, LlmAsked):
        return body
    return body.model_copy(update={"exchange": body.exchange.model_copy(update={"seconds": 0.0})})


def test_an_llm_and_a_built_in_author_work_side_by_side(make, tmp_path):
    tree = carry_out(tmp_path / "run", make, Script(walker), beside=("tuner",), max_expansions=10)
    who = {node.candidate.author.name for node in tree.nodes.values() if node.expansion}
    assert who == {"llm", "tuner"}
    assert any(node.screenings for node in tree.nodes.values()), "the tuner's looks are taken"
    remarked = {node.remark.agent for node in tree.nodes.values() if node.remark}
    assert remarked == {f"{NAME} #1"}, "who cannot reflect is not asked to"
    (quest,) = tree.quests.values()
    assert not quest.pending and quest.ended is not None


# The analyst


def finding(asked, category: str, cards: Sequence[str], *, factor: float = 1.0) -> dict:
    """Return a diagnosis resting on the measured time, or on a wrong one."""
    time_us = float(re.search(r"^time_us = ([\d.]+)", asked.whole, re.MULTILINE)[1])
    evidence = {"metric": "time_us", "value": time_us * factor, "relation": ">=", "threshold": 1.0}
    return {
        "category": category,
        "severity": 0.5,
        "evidence": [evidence],
        "prescriptions": list(cards),
        "sentence": f"It waits for {category}.",
    }


def cards_in(asked) -> list[str]:
    """Return the names of the technique cards the analyst was shown."""
    return re.findall(r"^([a-z0-9_]+): ", asked.whole.rpartition("## Technique cards")[2], re.MULTILINE)


def test_three_workers_get_three_prescriptions_and_invented_evidence_is_asked_again(make, tmp_path):
    def answer(asked):
        if asked.role != "analyst":
            return walker(asked)
        names = cards_in(asked)
        categories = ("memory bandwidth", "memory latency", "compute")
        wrong = 1.0 if "cannot be used" in asked.prompt else 1.02
        found = [
            finding(asked, one, names[place : place + 1], factor=wrong)
            for place, one in enumerate(categories)
        ]
        return {"diagnoses": found}

    script = Script(answer)
    carry_out(tmp_path / "run", make, script, crew=3, analyst="llm", max_expansions=3, author=CODE)
    questions = [one for one in script.asked if one.role == "analyst"]
    assert "time_us is" in questions[1].prompt and ", not " in questions[1].prompt
    (analysed,) = bodies_of(tmp_path / "run", Analysed)
    assert [one.category.value for one in analysed.diagnoses] == [
        "memory bandwidth",
        "memory latency",
        "compute",
    ]
    prompts = [
        one.whole for one in script.asked if one.role == "writer" and "cannot be used" not in one.prompt
    ]
    tried = [re.search(r"Try the card `(\w+)` first", prompt)[1] for prompt in prompts[:3]]
    assert len(set(tried)) == 3 and set(tried) == set(cards_in(questions[0])[:3])
    marked = [
        re.search(r"^\d\. ([a-z ]+).*\(work on this one\)$", one, re.MULTILINE)[1] for one in prompts[:3]
    ]
    assert len(set(marked)) == 3
    roles = [one.exchange.role for one in bodies_of(tmp_path / "run", LlmAsked)]
    assert roles.count("analyst") == 2


def test_an_analyst_without_evidence_leaves_it_to_the_rules(make, tmp_path):
    def answer(asked):
        if asked.role != "analyst":
            return walker(asked)
        made_up = finding(asked, "compute", ())
        made_up["evidence"][0]["metric"] = "l2_magic"
        return {"diagnoses": [made_up]}

    carry_out(tmp_path / "run", make, Script(answer), crew=1, analyst="llm", max_expansions=1)
    (analysed,) = bodies_of(tmp_path / "run", Analysed)
    assert analysed.diagnoses == () and "there is no metric 'l2_magic'" in analysed.reason


# The shared memory


def test_every_decided_attempt_is_looked_back_on_and_every_keep_is_named(make, tmp_path):
    tree = carry_out(tmp_path / "run", make, Script(walker))
    attempts = [node for node in tree.nodes.values() if node.expansion]
    assert attempts and all(node.remark and node.remark.reflection for node in attempts)
    assert {node.remark.agent for node in attempts} == {f"{NAME} #1", f"{NAME} #2"}
    kept = {node.candidate.hash for node in attempts if node.remark.outcome is Ending.KEPT}
    named = [one for one in tree.lessons if one.claim == claim()["claim"]]
    assert kept and len(named) == len(kept)
    assert all(one.arch is None and one.op == "rmsnorm" and one.ratio for one in named)
    proofs = {one.hash for node in attempts for one in node.comparisons}
    assert {key for one in named for key in one.evaluations} <= proofs
    assert len(bodies_of(tmp_path / "run", Remarked)) == len(attempts)
    assert len(bodies_of(tmp_path / "run", LessonLearnt)) >= len(named)


def test_conclusions_of_one_worker_are_told_to_the_other(make, tmp_path):
    def answer(asked):
        if asked.role == "reflector":
            return reflection(avoid=(f"what {asked.seed} did",), try_next=())
        return walker(asked)

    script = Script(answer)
    carry_out(tmp_path / "run", make, script)
    told = [
        one.whole for one in script.asked if one.role == "writer" and "What the crew concluded" in one.whole
    ]
    assert told
    assert f"{NAME} #1 on " in told[-1] and f"{NAME} #2 on " in told[-1]
    assert len(set(re.findall(r"avoid: what \d+ did", told[-1]))) >= 2


def remarked(grower: Grower, node, agent: str, **changes) -> None:
    thought = {"diagnosis_was_right": None, "change_helped": None, "why": f"{agent} says so"}
    fields = {
        "problem_hash": grower.problem.hash,
        "candidate_hash": node.hash,
        "parent_hash": next(iter(node.parents), ""),
        "agent": agent,
        "outcome": Ending.REVERTED,
        "status": Status.ACCEPTED,
        "reflection": Reflection(**(thought | changes.pop("thought", {}))),
    }
    grower.tree.apply(Remarked(remark=Remark(**(fields | changes))))


def expansion(grower: Grower, parent, memory: Memory = Memory.BOTH) -> Expansion:
    return Expansion(problem_hash=grower.problem.hash, parents=(parent.hash,), memory=memory)


def test_the_memory_is_attributed_ranked_and_says_nothing_twice(make):
    grower = Grower(make)
    seed = grower.grown("seed", time_us=90.0)
    near = grower.grown("near", seed, time_us=80.0)
    far = grower.grown("far", time_us=120.0)
    failed = grower.grown("bad", far, failed=Stage.SMOKE)
    points = {"avoid": ("Never spill registers!",), "try_next": ("unroll",)}
    remarked(grower, near, "a #1", thought=points)
    remarked(grower, far, "a #2", thought={"avoid": ("never spill  registers",), "try_next": ("split",)})
    remarked(grower, failed, "a #2", outcome=Ending.FAILED, status=Status.WRONG, bottleneck="spills")
    told = conclusions(grower.tree, expansion(grower, seed))
    assert [(one.agent, one.relation, one.outcome) for one in told] == [
        ("a #1", "sibling", Ending.REVERTED),
        ("a #2", "elsewhere", Ending.FAILED),
        ("a #2", "elsewhere", Ending.REVERTED),
    ]
    assert told[0].avoid == ("Never spill registers!",) and told[2].avoid == ()
    assert (told[2].try_next, told[1].status, told[1].parent_hash) == (("split",), Status.WRONG, far.hash)
    assert told[0].number == grower.tree.nodes[grower.problem.hash, near.hash].seq
    # What is about the same wait comes before what is only nearer in the tree.
    first = conclusions(grower.tree, expansion(grower, far), "spills")[0]
    assert first.candidate_hash == failed.hash


@pytest.mark.parametrize(
    ("memory", "relations"),
    [
        (Memory.CLEAN, set()),
        (Memory.INHERIT, {"ancestor"}),
        (Memory.SIBLINGS, {"sibling"}),
        (Memory.BOTH, {"ancestor", "sibling", "elsewhere"}),
    ],
)
def test_the_memory_mode_says_which_conclusions_are_heard(make, memory, relations):
    grower = Grower(make)
    seed = grower.grown("seed", time_us=90.0)
    parent = grower.grown("parent", seed, time_us=80.0)
    child = grower.grown("child", parent, time_us=85.0)
    cousin = grower.grown("cousin", seed, time_us=88.0)
    for place, node in enumerate((parent, child, cousin)):
        remarked(grower, node, f"a #{place}")
    told = conclusions(grower.tree, expansion(grower, parent, memory))
    assert {one.relation for one in told} == relations


def test_a_changed_literal_and_a_changed_value_are_in_the_diff(make):
    source = (
        "PARAMS = {'BLOCK': [64, 128]}\ndef plan(case, params, device):\n    return launch(k, num_warps=4)\n"
    )
    before = make.candidate(source, choices=(ParamChoice(values={"BLOCK": 64}),))
    after = make.candidate(
        source.replace("num_warps=4", "num_warps=8"), choices=(ParamChoice(values={"BLOCK": 128}),)
    )
    lines = change_of(before, after).splitlines()
    assert lines[:2] == ["BLOCK: 64 -> 128", "num_warps = 4 -> 8"]
    assert "-    return launch(k, num_warps=4)" in lines and "+    return launch(k, num_warps=8)" in lines
    assert change_of(before, before) == ""


# Drafts


def test_the_first_certified_draft_ends_the_others(make, tmp_path):
    stopped: list[float] = []

    async def answer(asked):
        if asked.role != "writer" or "Draft a first kernel" not in asked.whole:
            return walker(asked) if asked.role != "writer" else "nothing"
        assert "Draft a first kernel" in asked.whole and "The reference, in PyTorch" in asked.whole
        place = asked.seed % 4
        if place == 0:
            return {"note": "wrong", "source": "int kernel_fn() { return 1; }", "backend": "cpp"}
        if place == 1:
            await asyncio.sleep(0.3)
            return {"note": "right", "source": SOURCE, "backend": "cpp"}
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(time.monotonic())
            raise
        return {"note": "late", "source": SOURCE + "// late", "backend": "cpp"}

    began = time.monotonic()
    folder = tmp_path / "run"
    tree = carry_out(folder, make, Script(answer), author=CODE, seeds=False, max_expansions=4, reflect=False)
    assert time.monotonic() - began < 45 and len(stopped) == 2
    answers = bodies_of(folder, ExpansionAnswered)
    assert [one.cancelled for one in answers] == [False, False, True, True]
    assert all("certified first" in one.reason for one in answers[2:])
    statuses = [node.evaluations[0].status for node in tree.nodes.values() if node.expansion]
    assert statuses == [Status.REFUSED, Status.ACCEPTED]
    cancelled = [one.exchange for one in bodies_of(folder, LlmAsked) if one.exchange.error]
    assert [one.error for one in cancelled] == ["LlmCancelled"] * 2
    assert len({one.exchange.seed for one in bodies_of(folder, LlmAsked)}) == 4


# Replay, keys, money


def replayed(folder: Path, into: Path, make, **changes) -> list[Body]:
    """Repeat a run of a landscape from its recording, verdicts included, and return its events."""
    bodies = list(Journal.open(folder).bodies())
    config = RunConfig.model_validate(bodies[0].config).model_copy(update=changes)
    recording, tree, found = Recorded(bodies), Tree(), list[Body]()
    crew = _crew(config, bodies, Blobs(folder / "blobs"), recording)
    into.mkdir()

    def record(more: Sequence[Body]) -> None:
        for body in more:
            found.append(body)
            tree.apply(body)

    landscape = valley(make.problem())
    run = Run(
        config,
        landscape.problem.device,
        1,
        into,
        record,
        tree,
        lambda _: None,
        RecordedSeeds(("cpp",), 1, landscape),
    )
    run.crew, run.recording = crew, recording
    record(bodies[:2])
    loop.optimize(run, RecordedVerdicts(bodies))
    assert recording.left == 0 and recording.differing == 0
    return found


def test_a_replay_makes_the_same_decisions_without_a_key(make, tmp_path, monkeypatch):
    carry_out(tmp_path / "run", make, Script(walker))
    for name in ("OPENAI_API_KEY", "KERNELWRIGHT_LLM_KEY"):
        monkeypatch.delenv(name, raising=False)
    before = list(Journal.open(tmp_path / "run").bodies())
    after = replayed(tmp_path / "run", tmp_path / "again", make)
    assert [_timeless(one) for one in after[1:-1]] == [_timeless(one) for one in before[1:-1]]


def test_a_reply_that_was_not_recorded_ends_a_replay_in_one_line(make, tmp_path):
    carry_out(tmp_path / "run", make, Script(walker))
    with pytest.raises(ReplayEnded, match="was never asked this as writer in the recording") as ended:
        replayed(tmp_path / "run", tmp_path / "again", make, seed=99, strategy="beam")
    assert "\n" not in str(ended.value)


def test_a_planted_key_is_in_no_file_of_a_crew_and_in_no_prompt(make, tmp_path):
    def answer(asked):
        told = walker(asked)
        return {**told, "note": f"my key is {KEY}"} if "note" in told else told

    script = Script(answer)
    carry_out(tmp_path / "run", make, script)
    assert len(script.asked) > 8 and not any(KEY in one.whole for one in script.asked)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not any(KEY.encode() in path.read_bytes() for path in files)


def test_the_ledger_says_what_every_gain_cost(make, tmp_path):
    tree = carry_out(tmp_path / "run", make, Script(walker))
    ledger = ledger_of(tree)
    kept = [node for node in tree.nodes.values() if node.expansion and node.remark.outcome is Ending.KEPT]
    assert len(ledger.gains) == len(kept) > 0
    assert {line.what for line in ledger.roles} == {"writer", "reflector", "namer"}
    parts = [*ledger.gains, ledger.since]
    assert sum(line.spent.calls for line in parts) == ledger.total.spent.calls == len(tree.exchanges)
    assert sum(line.spent.cost for line in parts) == pytest.approx(ledger.total.spent.cost)
    assert ledger.total.spent.cost > 0 and not ledger.total.spent.unpriced
    assert ledger.per_gain.startswith("per kept gain: ") and "$" in ledger.per_gain
    assert ledger_of(Tree()) is None
