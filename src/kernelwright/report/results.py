"""`results.tsv`: one line per experiment, for spreadsheets and for scripts of the classic loop."""

from collections.abc import Callable
from datetime import datetime

from kernelwright.core.foreign import visible
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Evaluation
from kernelwright.report.measures import against, baselines, certified_us, floor_us, weighted, work_of

COLUMNS = (
    "experiment",
    "tag",
    "kernel_type",
    "throughput_tflops",
    "bandwidth_gb_s",
    "latency_us",
    "pct_floor",
    "speedup_vs_baseline",
    "ci_low",
    "ci_high",
    "correctness",
    "peak_mem_mb",
    "description",
    "time",
    "problem",
    "author",
    "backend",
    "reason",
)
FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the beginning of a formula."""


def _clean(text: str) -> str:
    """Return a text that stays in its field, and that no spreadsheet computes."""
    joined = visible(" ".join(text.split()))
    return f"'{joined}" if joined.startswith(FORMULA) else joined


def _row(node: Node, problem: Problem, baseline: str | None, at: datetime | None) -> dict[str, str]:
    """Return what is known of one experiment; an unknown value is an empty field, never a zero."""
    candidate, verdict = node.candidate, node.evaluations[-1] if node.evaluations else None
    row = dict.fromkeys(COLUMNS, "")
    row |= {
        "experiment": str(node.seq),
        "tag": "pending" if node.decision is None else "keep" if node.decision.kept else "revert",
        "kernel_type": problem.op,
        "correctness": verdict.status.value if verdict else "pending",
        "description": _clean(f"{candidate.backend} by {candidate.author.name}: {candidate.note}"),
        "time": at.isoformat(timespec="seconds") if at else "",
        "problem": _clean(problem.cases[0].label),
        "author": _clean(f"{candidate.author.name} {candidate.author.detail}"),
        "backend": _clean(candidate.backend),
        "reason": _clean(node.decision.reason) if node.decision else "",
    }
    row |= _times(verdict, problem)
    if found := against(node, baseline):
        row |= {
            "speedup_vs_baseline": f"{found.ratio:.4f}",
            "ci_low": f"{found.ci_low:.4f}",
            "ci_high": f"{found.ci_high:.4f}",
        }
    return row


def _times(verdict: Evaluation | None, problem: Problem) -> dict[str, str]:
    """Return certified time, rates and share of the floor, as far as they are known."""
    latency = certified_us(verdict, problem)
    if latency is None:
        return {}
    row, work = {"latency_us": f"{latency:.3f}"}, work_of(problem)
    flops = weighted(problem, {key: one.flops for key, one in work.items()})
    moved = weighted(problem, {key: one.bytes_moved for key, one in work.items()})
    if flops is not None and moved is not None:
        row |= {
            "throughput_tflops": f"{flops / latency / 1e6:.6f}",
            "bandwidth_gb_s": f"{moved / latency / 1e3:.3f}",
        }
    if (floor := floor_us(verdict, problem)) is not None:
        row["pct_floor"] = f"{100 * floor / latency:.1f}"
    return row


def results_tsv(tree: Tree, when: Callable[[tuple[str, str]], datetime | None] = lambda _: None) -> str:
    """Return the whole file; speed-ups stand only where the judge compared with the baseline itself.

    Of two baselines that is the faster one, which held the title first. `when` tells when a candidate was judged, by
    problem and candidate hash.
    """
    found = baselines(tree)
    lines = ["\t".join(COLUMNS)]
    for (key, own), node in tree.nodes.items():
        row = _row(node, tree.problems[key], found.get(key), when((key, own)))
        lines.append("\t".join(row[column] for column in COLUMNS))
    return "\n".join(lines) + "\n"
