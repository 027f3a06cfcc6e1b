"""`kernelwright brief`: what an author is told, for a person or a program that takes part in a run."""

import shlex
from typing import TYPE_CHECKING

from kernelwright.cli.hints import home_words
from kernelwright.cli.runs import RunArgument, TrustFlag
from kernelwright.cli.screen import ExitCode, HomeOption, JsonFlag, kernelwright_home, out, print_json
from kernelwright.cli.submit import ProblemOption, name_of, opened
from kernelwright.core.foreign import MOST_IN_A_NOTE, fenced, in_a_line

if TYPE_CHECKING:
    from kernelwright.core.brief import Attempt, Brief, Memo
    from kernelwright.core.candidate import ParamChoice
    from kernelwright.core.lesson import Lesson


def brief(
    run: RunArgument = "last",
    problem: ProblemOption = None,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Tell what an author is told who is to make the best kernel of a run faster."""
    from kernelwright.engine.foreign_runs import FoundRun
    from kernelwright.engine.taking_part import brief_of_best, onlooking, problem_named
    from kernelwright.hardware.calibrate import known_ceilings

    journal, folder = opened(place := kernelwright_home(home), run)
    tree = journal.tree()
    chosen = problem_named(tree, problem)
    seen = FoundRun(folder, place, trust)
    onlooker = onlooking(seen, tree)
    onlooker.ceilings = known_ceilings(chosen.device, place)
    found = brief_of_best(onlooker, chosen)
    number = list(tree.problems).index(chosen.hash) + 1
    if as_json:
        print_json(found)
    else:
        more = ("" if seen.is_own else " --trust") + home_words(place)
        page = markdown(found, name_of(folder, place), number, more)
        out().print(page, markup=False, soft_wrap=True)
    return ExitCode.OK


def markdown(found: "Brief", run: str, number: int, more: str = "") -> str:
    """Return a brief as a page to read; `more` is what the command that submits needs besides."""
    problem = found.problem
    sizes = [f"- `{case.label}`, weight {case.weight:g}" for case in problem.cases]
    parts = [f"# {problem.cases[0].label}", f"On {problem.device.name}. Run {run}, problem {number}."]
    parts += ["## What a candidate must be", found.contract.strip(), "\n".join(sizes)]
    parts += _start(found)
    if found.attempts:
        parts += ["## What was tried", "\n".join(_attempt(one) for one in found.attempts)]
    if found.memos:
        parts += ["## What was concluded", "\n".join(_memo(one) for one in found.memos)]
    if found.lessons:
        parts += ["## What was learnt", "\n".join(_lesson(one) for one in found.lessons)]
    if found.notes:
        # Quoted, never a part of the page: documents are the user's, and tell an author nothing but what they say.
        parts += ["## Notes and documents", *(fenced(note.strip(), "markdown") for note in found.notes)]
    if found.cards:
        parts += ["## Techniques", *(_lowered(card.strip()) for card in found.cards)]
    file = f"FILE{_extension(found)}"
    named = f"--run {shlex.quote(run)} --problem {number}"
    command = f"kernelwright submit {file} {named} --note 'what is tried' --wait{more}"
    parts += ["## How to submit", f"```sh\n{command}\n```"]
    parts += ["A program may submit JSON instead: `source`, `backend`, `note`, `choices`."]
    return "\n\n".join(parts)


def _start(found: "Brief") -> list[str]:
    """Return what to start from, and what the judge said of it."""
    if not found.parents:
        return ["## What to start from", "Nothing: no candidate has been accepted yet."]
    first = found.parents[0]
    words = [f"Candidate `{first.hash[:12]}` in {first.backend}, {_chosen(first.choices)}."]
    for verdict in found.evaluations[:1]:
        times = verdict.timing.cases if verdict.timing else ()
        words += [f"`{one.label}`: {one.median_us:.2f} us{_floor(one.floor_us)}." for one in times]
        if verdict.failure is not None:
            words.append(f"The judge: {verdict.status.value}, {in_a_line(verdict.failure.reason)}.")
    words += [f"It waits for: {'; '.join(map(in_a_line, found.diagnoses))}."] if found.diagnoses else []
    return ["## What to start from", " ".join(words), fenced(first.source)]


def _floor(floor_us: float | None) -> str:
    return f", its floor is {floor_us:.2f} us" if floor_us else ""


def _chosen(choices: "tuple[ParamChoice, ...]") -> str:
    values = [", ".join(f"{name}={value}" for name, value in one.values.items()) for one in choices]
    return in_a_line("; ".join(filter(None, values))) or "no parameters"


def _attempt(one: "Attempt") -> str:
    speed = f"x{one.speed:.2f} over the baseline" if one.speed else "not timed"
    what = " ".join(filter(None, (one.note, f"({_chosen(one.choices)})")))
    ended = in_a_line(one.reason) or "undecided"
    return f"- `{one.candidate_hash[:12]}` by {one.author.name}: {in_a_line(what)}: {speed}; {ended}"


def _lesson(one: "Lesson") -> str:
    words = " ".join(filter(None, (one.claim, one.effect)))
    return in_a_line(f"- {'avoid: ' if one.teaching == 'trap' else ''}{words} ({one.scope or 'everywhere'})")


def _memo(one: "Memo") -> str:
    points = [*(f"avoid {point}" for point in one.avoid), *(f"try {point}" for point in one.try_next)]
    words = in_a_line("; ".join(filter(None, (one.why, *points))), MOST_IN_A_NOTE)
    return f"- {in_a_line(one.agent)} on `{one.candidate_hash[:12]}`, {one.outcome.value}: {words}"


def _lowered(card: str) -> str:
    """Return a card with its headings two levels down; its code stays as it is, `#include` and all."""
    lines, is_code = [], False
    for line in card.splitlines():
        is_code ^= line.startswith("```")
        lines.append(f"##{line}" if line.startswith("#") and not is_code else line)
    return "\n".join(lines)


def _extension(found: "Brief") -> str:
    from kernelwright.core import plugins

    backend = found.parents[0].backend if found.parents else None
    return str(plugins.load("backends", backend).EXTENSION) if backend else ""
