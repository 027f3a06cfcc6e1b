"""A run as training data: per candidate the task, what its author was told, what it wrote, the verdict and a reward.

The reward is the certified speed-up: the time of the baseline that was to be beaten over the candidate's own, from
the last comparison along the titles, else from certified times. A candidate that was not accepted, or was found out
while it was timed, earns 0. What was never judged has no reward and is no trajectory. Baselines are no trajectories.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kernelwright.core.candidate import Candidate, Origin, ParamChoice
from kernelwright.core.errors import BlobMissing
from kernelwright.core.events import Body, ExpansionAnswered, LlmAsked
from kernelwright.core.exchange import Exchange
from kernelwright.core.expansion import Expansion
from kernelwright.core.frozen import Frozen
from kernelwright.core.problem import Problem
from kernelwright.core.redact import PERSON, without_keys, without_passwords, without_people
from kernelwright.core.search import failure_of, last_verdict, speeds
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Stage, Status
from kernelwright.report.measures import baselines

SCHEMA = 1
"""Version of a line; it changes when a field changes its meaning."""
SUBMITTED = "submitted"
"""How the detail of an author begins who took part from outside: a person's name stays here."""
SEEDS_LICENCE, UNKNOWN_LICENCE = "Apache-2.0", "unspecified"


class Format(StrEnum):
    """Shape of the lines."""

    JSONL = "jsonl"
    """Everything: one `Trajectory` a line."""
    SFT = "sft"
    """Conversations to imitate: only candidates that were kept, which is to say proven faster."""
    RL = "rl"
    """Prompt, completion and reward, failures included."""


class Task(Frozen):
    """What was asked for."""

    op: str
    """The kernel type."""
    cases: tuple[str, ...]
    """Sizes and types that count."""
    device: str
    """Where it must be fast."""
    arch: str
    """Its architecture."""
    contract: str
    """What a candidate must be."""


class Shown(Frozen):
    """A candidate the author was shown."""

    candidate: str
    """Its hash."""
    backend: str
    """Its language."""
    source: str
    """Its source."""
    reward: float | None
    """Its own reward, if it was judged."""


class Context(Frozen):
    """What the author was told besides the task."""

    prompt: str | None
    """Everything a language model was sent, where one was asked; its last question if there were several."""
    reply: str | None
    """What it answered."""
    model: str | None
    """Which model."""
    hint: str
    """What the search wanted."""
    memory: str
    """What was told of earlier attempts; empty if nobody was asked."""
    parents: tuple[Shown, ...]
    """What the candidate was made from."""


class Written(Frozen):
    """The candidate."""

    candidate: str
    """Its hash."""
    backend: str
    """Its language."""
    source: str
    """The whole source."""
    choices: tuple[ParamChoice, ...]
    """Its parameters."""
    author: str
    """Who wrote it; people who took part have no name here."""
    note: str
    """What was tried, in the author's words."""


class StageLine(Frozen):
    """What one stage found."""

    stage: Stage
    """Which."""
    passed: bool
    """Whether everything in it passed."""
    reason: str
    """Why not."""


class Verdict(Frozen):
    """What came of it."""

    status: Status
    """How the judge ended, a disqualification while it was timed included."""
    stages: tuple[StageLine, ...]
    """What each stage found, up to the first failure."""
    kept: bool | None
    """Whether it became the best; None if nothing was decided."""
    reason: str
    """The gate's sentence, or why it failed."""


class Trajectory(Frozen):
    """One line of the export."""

    schema_version: int = SCHEMA
    """Version of this line."""
    run: str
    """The run."""
    number: int
    """The candidate's number in it."""
    task: Task
    """What was asked for."""
    context: Context
    """What the author was told."""
    candidate: Written
    """What it wrote."""
    verdict: Verdict
    """What the judge and the gate said."""
    reward: float
    """Certified speed-up over the baseline that was to be beaten; 0 if it was not accepted."""
    licence: str
    """Under which licence the candidate may be used."""


@dataclass(frozen=True)
class Source:
    """A run to be exported, and what must not leave with it."""

    run_id: str
    tree: Tree
    bodies: Iterable[Body]
    text: Callable[[str], bytes]
    """Gives the content of a blob."""
    contract: Callable[[Problem, str], str]
    """Says what a candidate must be, by problem and language."""
    licence: str = UNKNOWN_LICENCE
    """Of what is not ours: seeds and what our own rewrites made of them alone have ours."""
    secrets: tuple[str, ...] = ()
    """Values of keys that are known."""
    homes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Of people and machines."""

    def clean(self, text: str) -> str:
        """Return a text that may leave the machine."""
        return without_people(without_passwords(without_keys(text, self.secrets)), self.homes, self.names)


@dataclass
class Asked:
    """What was asked for a candidate."""

    expansion: Expansion
    exchanges: list[Exchange] = field(default_factory=list)


def trajectories(source: Source) -> Iterator[Trajectory]:
    """Yield every judged candidate of a run that is no baseline, in the order they were proposed."""
    asked = _asked(source.bodies)
    rewards = _rewards(source.tree)
    for key, node in source.tree.nodes.items():
        if key in rewards and node.candidate.origin is not Origin.BASELINE:
            yield _trajectory(source, node, asked.get(key), rewards)


def lines(source: Source, wanted: Format) -> Iterator[str]:
    """Yield the export, one JSON object a line."""
    for one in trajectories(source):
        match wanted:
            case Format.JSONL:
                yield one.model_dump_json()
            case Format.SFT if one.verdict.kept:
                messages = [*_messages(one), {"role": "assistant", "content": _completion(one)}]
                yield json.dumps({"messages": messages} | _beside(one), ensure_ascii=False)
            case Format.RL:
                body = {"prompt": _messages(one), "completion": _completion(one)}
                told = {"status": one.verdict.status.value, "reason": one.verdict.reason}
                yield json.dumps(body | told | _beside(one), ensure_ascii=False)
            case _:
                pass


def _beside(one: Trajectory) -> dict[str, object]:
    found = {"reward": one.reward, "run": one.run, "number": one.number, "licence": one.licence}
    return found | {"op": one.task.op, "backend": one.candidate.backend, "schema_version": one.schema_version}


def _messages(one: Trajectory) -> list[dict[str, str]]:
    """Return what the author was told as a conversation: the recorded prompt, else the task and the parents."""
    if one.context.prompt is not None:
        return [{"role": "user", "content": one.context.prompt}]
    parts = [f"Write a faster {one.task.op} kernel for {one.task.device}.", one.task.contract]
    for parent in one.context.parents:
        speed = f", {parent.reward:.3f} times as fast as the baseline" if parent.reward else ""
        parts.append(f"Start from this {parent.backend} source{speed}:\n```\n{parent.source.rstrip()}\n```")
    parts += [one.context.hint] if one.context.hint else []
    return [{"role": "user", "content": "\n\n".join(parts)}]


def _completion(one: Trajectory) -> str:
    """Return the recorded reply, else the answer in the form any author may give."""
    if one.context.reply is not None:
        return one.context.reply
    draft = one.candidate.model_dump(mode="json", include={"source", "backend", "note", "choices"})
    return json.dumps(draft, ensure_ascii=False)


def _asked(bodies: Iterable[Body]) -> dict[tuple[str, str], Asked]:
    """Return what was asked for every candidate that is an answer: questions stand before their answer."""
    open_questions: dict[Expansion, list[Exchange]] = {}
    found: dict[tuple[str, str], Asked] = {}
    for body in bodies:
        match body:
            case LlmAsked(expansion=expansion, exchange=exchange, candidate_hash=""):
                open_questions.setdefault(expansion, []).append(exchange)
            case ExpansionAnswered(expansion=expansion, candidates=candidates):
                said = open_questions.pop(expansion, [])
                for own in candidates:
                    found[expansion.problem_hash, own] = Asked(expansion, said)
            case _:
                pass
    return found


def _rewards(tree: Tree) -> dict[tuple[str, str], float]:
    """Return the reward of every judged candidate by problem and candidate hash."""
    beaten, found = baselines(tree), dict[tuple[str, str], float]()
    measured = {key: speeds(tree, key) for key in tree.problems}
    for (problem, own), node in tree.nodes.items():
        if failure_of(node) is not None:
            found[problem, own] = 0.0
            continue
        baseline = measured[problem].certified(beaten[problem]) if problem in beaten else None
        speed = measured[problem].certified(own)
        if speed is not None and baseline is not None:
            found[problem, own] = round(math.exp(speed - baseline), 4)
    return found


def _trajectory(
    source: Source, node: Node, asked: Asked | None, rewards: Mapping[tuple[str, str], float]
) -> Trajectory:
    problem, candidate = source.tree.problems[node.problem_hash], node.candidate
    clean = source.clean
    return Trajectory(
        run=source.run_id,
        number=node.seq,
        task=Task(
            op=problem.op,
            cases=tuple(clean(case.label) for case in problem.cases),
            device=problem.device.name,
            arch=problem.device.arch,
            contract=clean(source.contract(problem, candidate.backend)),
        ),
        context=_context(source, node, asked, rewards),
        candidate=Written(
            candidate=candidate.hash,
            backend=candidate.backend,
            source=clean(candidate.source),
            choices=tuple(_choice(one, clean) for one in candidate.choices),
            author=_author(candidate, clean),
            note=clean(candidate.note),
        ),
        verdict=_verdict(node, clean),
        reward=rewards[node.problem_hash, candidate.hash],
        licence=SEEDS_LICENCE if candidate.author.name == "seed" else source.licence,
    )


def _choice(chosen: ParamChoice, clean: Callable[[str], str]) -> ParamChoice:
    """Return chosen values that may leave the machine: a value may be any text the source lists."""
    values = {
        clean(name): clean(value) if isinstance(value, str) else value
        for name, value in chosen.values.items()
    }
    return ParamChoice(case_hashes=chosen.case_hashes, values=values)


def _author(candidate: Candidate, clean: Callable[[str], str]) -> str:
    """Return who wrote a candidate; who took part from outside gave a name that is not ours to pass on."""
    if candidate.author.detail.startswith(SUBMITTED):
        return PERSON
    return clean(f"{candidate.author.name} {candidate.author.detail}".strip())


def _context(
    source: Source, node: Node, asked: Asked | None, rewards: Mapping[tuple[str, str], float]
) -> Context:
    last = asked.exchanges[-1] if asked and asked.exchanges else None
    parents = [source.tree.nodes.get((node.problem_hash, own)) for own in node.candidate.parents]
    return Context(
        prompt=_text(source, last.prompt_hash) if last else None,
        reply=_text(source, last.reply_hash) if last and last.reply_hash else None,
        model=source.clean(last.model) if last else None,
        hint=source.clean(asked.expansion.hint) if asked else "",
        memory=asked.expansion.memory.value if asked else "",
        parents=tuple(
            Shown(
                candidate=one.candidate.hash,
                backend=one.candidate.backend,
                source=source.clean(one.candidate.source),
                reward=rewards.get((node.problem_hash, one.candidate.hash)),
            )
            for one in parents
            if one is not None
        ),
    )


def _text(source: Source, blob_hash: str) -> str | None:
    """Return a recorded text; None if the run's folder no longer holds it."""
    try:
        return source.clean(source.text(blob_hash).decode(errors="replace"))
    except BlobMissing:
        return None


def _verdict(node: Node, clean: Callable[[str], str]) -> Verdict:
    found, decision = last_verdict(node), node.decision
    failed = failure_of(node)
    reason = decision.reason if decision else found.failure.reason if found and found.failure else ""
    return Verdict(
        status=failed or (found.status if found else Status.ACCEPTED),
        stages=tuple(
            StageLine(stage=one.stage, passed=one.passed, reason=clean(one.reason))
            for one in (found.stages if found else ())
        ),
        kept=decision.kept if decision else None,
        reason=clean(reason),
    )
