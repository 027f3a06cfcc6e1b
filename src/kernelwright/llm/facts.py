"""What a writer is told, from the `Brief` and nothing else: facts in titled parts, three lengths of the same thing."""

from collections.abc import Sequence
from enum import IntEnum
from math import inf

from kernelwright.core.brief import Attempt, Brief, Memo
from kernelwright.core.candidate import Candidate
from kernelwright.core.device import Device
from kernelwright.core.foreign import fenced, in_a_line
from kernelwright.core.lesson import Lesson, Teaching
from kernelwright.core.verdict import Evaluation, Screening, Status
from kernelwright.llm.templates import section

GIB = 1 << 30
FENCES = {"cpp": "cpp", "cuda": "cuda", "triton": "python", "python": "python"}
FEW = 2
MOST_LOOKS = 40
MOST_WHO, MOST_WHERE, MOST_REASON = 120, 400, 4000
"""Characters of an author's name, of where a lesson holds, and of what a compiler or the judge said."""


class Length(IntEnum):
    """How much is told."""

    FULL = 0
    """Everything in the brief."""
    SHORT = 1
    """Earlier attempts without their changes, the first cards and lessons."""
    BARE = 2
    """Contract, parents and verdicts alone."""


def task_of(brief: Brief) -> str:
    """Return what is to be done: draft, debug, fuse or improve."""
    if not brief.parents:
        return "Draft a first kernel that is right. Speed comes second."
    first = next((one for one in brief.evaluations if one.candidate_hash == brief.parents[0].hash), None)
    if first is not None and first.status is not Status.ACCEPTED:
        return "Debug the parent: the judge refused it. Mend what it names and keep the idea."
    if len(brief.parents) > 1:
        return "Fuse the parents: take the best of each into one kernel, starting from the first."
    return "Improve the parent: make it faster without changing what it computes."


def facts_of(brief: Brief, length: Length) -> str:
    """Return the parts of a prompt that follow from a brief."""
    cards, lessons, attempts, memos = brief.cards, brief.lessons, brief.attempts, brief.memos
    notes = brief.notes[: (len(brief.notes), FEW, 0)[length]]
    if length is Length.SHORT:
        cards, lessons, attempts, memos = cards[:FEW], lessons[:FEW], attempts[-2 * FEW :], memos[: 2 * FEW]
    elif length is Length.BARE:
        cards, lessons, attempts, memos = (), (), (), ()
    parts = [
        section("Task", "\n\n".join(filter(None, (task_of(brief), brief.hint)))),
        section("Contract", brief.contract),
        section("Device", device_text(brief.problem.device)),
        *(parent_text(number, one, brief.evaluations) for number, one in enumerate(brief.parents, 1)),
        section("What the first parent waits for", diagnosis_text(brief)),
        section("Earlier attempts", "\n".join(attempt_text(one, length) for one in attempts)),
        section("What the crew concluded", "\n".join(memo_text(one, length) for one in memos)),
        section("Techniques that apply", "\n\n".join(fenced(card, "markdown") for card in cards)),
        section("Notes and documents", "\n\n".join(fenced(one, "markdown") for one in notes)),
        section("Lessons", "\n".join(f"- {lesson_text(one)}" for one in lessons)),
    ]
    return "\n".join(part for part in parts if part)


def device_text(device: Device) -> str:
    """Return what is known of the hardware."""
    known = [
        f"{device.title}, {device.arch}, {device.units} units, {device.memory_bytes / GIB:.0f} GiB memory"
    ]
    if device.cache_bytes:
        known.append(f"{device.cache_bytes >> 10} KiB last-level cache")
    if device.shared_bytes:
        known.append(f"{device.shared_bytes >> 10} KiB shared memory per block")
    return ", ".join(known)


def parent_text(number: int, parent: Candidate, evaluations: Sequence[Evaluation]) -> str:
    """Return a parent's source, its parameters and what the judge said of it."""
    verdicts = [verdict_text(one) for one in evaluations if one.candidate_hash == parent.hash]
    chosen = "; ".join(
        f"{len(choice.case_hashes) or 'other'} cases: {in_a_line(str(choice.values))}"
        for choice in parent.choices
        if choice.values
    )
    body = [fenced(parent.source, FENCES.get(parent.backend, ""))]
    if chosen:
        body.append(f"Chosen parameters: {chosen}")
    body += verdicts or ["The judge has not seen it yet."]
    return section(f"Parent {number} ({parent.backend})", "\n\n".join(body))


def verdict_text(verdict: Evaluation) -> str:
    """Return what the judge said, with the smallest failing case or the certified times."""
    words = [f"Judge: {verdict.status.value} under `{verdict.profile.value}`."]
    if failure := verdict.failure:
        case = f" on {failure.failing_case} {failure.failing_scalars or ''}" if failure.failing_case else ""
        words.append(
            f"Stopped in stage {failure.stage.value}{case}: {in_a_line(failure.reason, MOST_REASON)}"
        )
    if verdict.timing:
        for one in verdict.timing.cases:
            floor = f", the hardware's floor is {one.floor_us:.3g} us" if one.floor_us else ""
            words.append(f"- {one.label}: {one.median_us:.4g} us ± {one.mad_us:.2g}{floor}")
    return "\n".join(words)


def looks_text(brief: Brief) -> str:
    """Return the cheap looks at the parent's own source, the fastest first; times of different cases do not compare."""
    labels = {case.hash: case.label for case in (*brief.problem.cases, *brief.cases)}
    lines = [
        (
            one.latency_us or inf,
            f"{labels.get(one.case_hash, 'another case')}: {one.values}: {_look_ended(one)}",
        )
        for one in brief.screenings
    ]
    return "\n".join(line for _, line in sorted(lines)[:MOST_LOOKS])


def _look_ended(look: Screening) -> str:
    return f"about {look.latency_us:.4g} us" if look.latency_us else look.status.value


def diagnosis_text(brief: Brief) -> str:
    """Return the diagnoses, the one to work on marked."""
    lines = []
    for number, text in enumerate(brief.diagnoses):
        mark = " (work on this one)" if number == brief.diagnosis else ""
        lines.append(f"{number + 1}. {in_a_line(text)}{mark}")
    if brief.prescription:
        lines.append(f"Try the card `{brief.prescription}` first: others are at work on the other ones.")
    return "\n".join(lines)


def attempt_text(attempt: Attempt, length: Length) -> str:
    """Return one earlier attempt: who, what, how it went."""
    speed = f", {attempt.speed:.2f}x the baseline" if attempt.speed else ""
    status = attempt.status.value if attempt.status else "not judged yet"
    who = in_a_line(f"{attempt.author.name} {attempt.author.detail}", MOST_WHO)
    note = in_a_line(attempt.note) or "no note"
    words = f"- {attempt.relation} {attempt.candidate_hash[:8]} by {who}: {note}: {status}{speed}."
    if attempt.reason:
        words += f" {in_a_line(attempt.reason, MOST_REASON)}"
    if attempt.change and length is Length.FULL:
        words += "\n" + fenced(attempt.change, "diff")
    return words


def memo_text(memo: Memo, length: Length) -> str:
    """Return one conclusion: who drew it, from which attempt, what to avoid and what to try."""
    speed = f", {memo.speed:.2f}x the baseline" if memo.speed else ""
    parent = f" from {memo.parent_hash[:8]}" if memo.parent_hash else " from nothing"
    who = in_a_line(memo.agent, MOST_WHO)
    words = f"- {who} on {memo.candidate_hash[:8]}{parent} ({memo.relation}): {memo.outcome.value}"
    words += f", {memo.status.value}{speed}. {in_a_line(memo.why)}"
    words += "".join(f"\n  - avoid: {in_a_line(point)}" for point in memo.avoid)
    words += "".join(f"\n  - try: {in_a_line(point)}" for point in memo.try_next)
    if memo.change and length is Length.FULL:
        words += "\n" + fenced(memo.change, "diff")
    return words


def lesson_text(lesson: Lesson) -> str:
    """Return a lesson, where it holds and what it was measured to bring."""
    effect = f"; {lesson.ratio:.2f}x" if lesson.ratio else ""
    if lesson.ci_low and lesson.ci_high:
        effect += f" [{lesson.ci_low:.2f}, {lesson.ci_high:.2f}]"
    sizes = ", ".join(shape.label for shape in lesson.shapes)
    # All of it may come from a file that was imported: one bounded line cannot pose as a part of the prompt.
    where = in_a_line(f"{lesson.scope or 'everywhere'}{f' at {sizes}' if sizes else ''}", MOST_WHERE)
    warning = "avoid: " if lesson.teaching is Teaching.TRAP else ""
    return f"{warning}{in_a_line(lesson.claim)} ({where}{effect})"
