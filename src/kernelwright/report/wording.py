"""The words that the page and the Markdown share: rows of tables, captions, sentences."""

from kernelwright.core.ledger import Ledger
from kernelwright.report.axes import calls, micros, percent, rate, span
from kernelwright.report.headline import times
from kernelwright.report.model import CertificateFact, ProblemFact, Report

EVENT_HEAD = ("event in the journal", "count", "time before it")
STAGE_HEAD = ("stage", "result", "checked", "seconds", "remark")
COMPARISON_HEAD = ("compared with", "outcome", "ratio", "pairs", "starts", "evidence", "clock")
TIME_HEAD = ("case", "cold", "warm", "floor", "of the floor", "SOL score")
PROBLEM_HEAD = (
    *("problem", "share", "places", "baseline", "winner", "gain", "of the floor"),
    *("search", "pays after", "why the search stopped"),
)


def sentence(text: str) -> str:
    """Return a text that ends like a sentence."""
    said = text.strip()
    return said if said.endswith((".", "!", "?")) else f"{said}."


def tiles(report: Report) -> list[tuple[str, str, str]]:
    """Return the few numbers at the top: the number, what it is, and more of it."""
    found: list[tuple[str, str, str]] = []
    if report.whole:
        rivals = {"eager": report.whole.over_eager, "torch.compile": report.whole.over_compiled}
        for name, one in rivals.items():
            if one:
                found.append((f"×{one.ratio:.3f}", f"over {name}", f"[{one.low:.3f}, {one.high:.3f}]"))
    problems = f"of {len(report.problems)} problem{'s' * (len(report.problems) != 1)}"
    if report.model:
        found.append((str(sum(one.is_installed for one in report.problems)), "kernels installed", problems))
    else:
        found.append((str(sum(one.is_won for one in report.problems)), "won", problems))
    count = report.count
    fates = f"{count.kept} kept, {count.reverted} reverted, {count.failed} failed"
    found.append((str(count.candidates), "candidates", fates))
    if report.busy_s is not None:
        verified = f"{span(report.verify_s)} of it on the whole model" if report.verify_s else ""
        found.append((span(report.busy_s), "at work", verified))
    return found


def about(report: Report) -> str:
    """Return what was run, where and when, in one line."""
    parts = [report.model or "single kernels", report.device]
    if report.began_at:
        parts.append(f"{report.began_at:%Y-%m-%d %H:%M} UTC")
    if report.starts > 1:
        parts.append(f"resumed {report.starts - 1} time{'s' * (report.starts > 2)}")
    return " · ".join(part for part in [*parts, report.ended] if part)


def gain(problem: ProblemFact) -> str:
    """Return the winner's gain over the baseline."""
    if not problem.is_won:
        return "–"
    if problem.gain:
        return times(problem.gain)
    return f"about ×{problem.chained:.3f}" if problem.chained else "not known"


def result(problem: ProblemFact) -> str:
    """Return what came of a problem, short."""
    if not problem.winner:
        return "nothing was accepted"
    if not problem.is_won:
        return f"{problem.winner} keeps its title"
    where = "installed" if problem.is_installed else "not installed"
    return f"{problem.winner}, {gain(problem)} over {problem.baseline}, {where}"


def problem_rows(report: Report) -> list[list[str]]:
    """Return the table of problems."""
    return [
        [
            one.name,
            percent(one.share),
            str(one.count),
            f"{one.baseline}, {micros(one.baseline_us)}" if one.baseline else "none",
            f"{one.winner}, {micros(one.winner_us)}" if one.is_won else "none",
            gain(one),
            percent(one.floor_fraction),
            span(one.search_s),
            f"{calls(one.calls_to_pay)} calls" if one.calls_to_pay else "–",
            one.stopped,
        ]
        for one in report.problems
    ]


def payback(report: Report) -> str:
    """Return what the columns of the table mean."""
    what = "the model" if report.total_us else "the kernel"
    return (
        f"“Pays after”: calls of {what} until the time saved is the time that was searched; only for kernels "
        f"that {'are installed' if report.total_us else 'won'}. “Of the floor”: the least time the hardware allows "
        "over the time of the best. Gains are over the faster baseline, with 95\u00a0% intervals."
    )


def floors(report: Report) -> str:
    """Return why some pictures have no floor; empty if all have one."""
    missing = sum(one.floor_us is None for one in report.problems)
    if not missing:
        return ""
    which = (
        "any problem" if missing == len(report.problems) else f"{missing} of {len(report.problems)} problems"
    )
    why = ": where the data stays in the cache, memory sets none" if report.is_cached else ""
    return f"No floor is known for {which}{why}."


def amdahl_caption(report: Report) -> str:
    """Return what before and after are."""
    words = f"Shares of an average call under {report.against}, which takes {micros(report.total_us)}."
    found = report.measured_after
    if found is None:
        return f"{words} Nothing is installed, so nothing changes."
    return (
        f"{words} After is before with every installed kernel's region shortened by its own certified speed. "
        f"Measured end to end, the whole model takes {100 * found.ratio:.1f}\u00a0% "
        f"[{100 * found.low:.1f}, {100 * found.high:.1f}] of the time before."
    )


def roof_caption(report: Report) -> str:
    """Return whose ceilings these are, and where they do not bind."""
    has_floor = any(point.floor for one in report.problems for point in one.points)
    words = f"Diamonds are the baselines, circles the winners{', dashes the floors' * has_floor}."
    if report.roof is None:
        return f"{words} The ceilings of this device are not known here."
    words += f" Ceilings: {report.roof.source}, {rate(report.roof.bandwidth, 'B/s')} from memory."
    if report.is_cached:
        words += (
            " Data that stays in the cache does not come from memory: such a kernel may lie above that line."
        )
    return words


def event_rows(report: Report) -> list[list[str]]:
    """Return what the journal holds, by kind, and the time that passed before each."""
    return [
        [kind.replace("_", " "), str(count), span(report.spent_s.get(kind, 0.0))]
        for kind, count in report.events.items()
    ]


def stage_rows(found: CertificateFact) -> list[list[str]]:
    """Return the stages of a certificate; one that had nothing to check is not called passed."""
    return [
        [
            one.name.replace("_", " "),
            ("passed" if one.checked else "nothing to check") if one.passed else "failed",
            str(one.checked),
            f"{one.seconds:.2f}",
            one.reason,
        ]
        for one in found.stages
    ]


def comparison_rows(found: CertificateFact) -> list[list[str]]:
    """Return the comparisons that a certificate rests on."""
    return [
        [
            one.incumbent,
            one.outcome,
            times(one.interval),
            str(one.pairs),
            str(one.starts),
            f"{one.evidence:.3g}",
            one.clock,
        ]
        for one in found.comparisons
    ]


def outcome(problem: ProblemFact) -> list[tuple[str, str]]:
    """Return what there is to say of a problem, name and sentence."""
    said = [("Result", result(problem)), ("Gate", problem.verdict)]
    if problem.in_model:
        said.append(("In the model", problem.in_model))
    if problem.search:
        said.append(("Search", problem.search))
    said.append(("Search stopped", problem.stopped))
    if len(problem.cases) > 1:
        said.append(("Cases", ", ".join(problem.cases)))
    return said


def certificate(found: CertificateFact) -> str:
    """Return the certificate in a few sentences."""
    hidden = f", {found.hidden_shapes} hidden shapes drawn" if found.hidden_shapes is not None else ""
    idle = sum(one.passed and not one.checked for one in found.stages)
    passed = sum(one.passed for one in found.stages) - idle
    stages = f"{passed} of {len(found.stages)} stages passed" + (
        f", {idle} had nothing to check" if idle else ""
    )
    words = (
        f"{found.status.capitalize()} under {found.profile} by judge {found.judge_version}: {stages}, in "
        f"{span(found.seconds)}{hidden}; clock {found.clock}."
    )
    if sandbox := found.environment.get("sandbox"):
        words += f" Sandbox: {sandbox.replace('+', ', ')}."
    if found.error is not None:
        words += f" With it in the model the outputs' error is {found.error:.2f} times the framework's own."
    return words


def time_rows(found: CertificateFact) -> list[list[str]]:
    """Return certified times: each call with buffers of its own, and with its inputs still in the cache."""
    return [
        [
            one.case,
            micros(one.cold_us),
            micros(one.warm_us),
            micros(one.floor_us),
            percent(one.floor_share),
            f"{one.sol_score:.2f}" if one.sol_score is not None else "–",
        ]
        for one in found.times
    ]


def ledger_rows(found: Ledger) -> list[list[str]]:
    """Return what language models cost: in all, by role, by gain, and since the last one."""
    rest = (found.since,) if found.since.spent.calls else ()
    return [line.cells for line in (found.total, *found.roles, *found.gains, *rest)]
