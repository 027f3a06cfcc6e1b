"""`results.tsv`: one line per experiment, for spreadsheets and for scripts of the classic loop."""

from kernelwright.core import plugins
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Status

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
)


def _clean(text: str) -> str:
    return " ".join(text.split())


def _row(node: Node, problem: Problem, baseline: str | None) -> dict[str, str]:
    """Return what is known of one experiment; an unknown value is an empty field, never a zero."""
    verdict = node.evaluations[-1] if node.evaluations else None
    row = dict.fromkeys(COLUMNS, "")
    row |= {
        "experiment": str(node.seq),
        "tag": "pending" if node.decision is None else "keep" if node.decision.kept else "revert",
        "kernel_type": problem.op,
        "correctness": verdict.status.value if verdict else "pending",
        "description": _clean(
            f"{node.candidate.backend} by {node.candidate.author.name}: {node.candidate.note}"
        ),
    }
    if verdict and verdict.timing:
        op = plugins.load("ops", problem.op)
        weight = sum(case.weight for case in problem.cases)
        by_hash = {timing.case_hash: timing for timing in verdict.timing.cases}
        latency = sum(case.weight * by_hash[case.hash].median_us for case in problem.cases) / weight
        flops = sum(case.weight * op.work(case).flops for case in problem.cases) / weight
        moved = sum(case.weight * op.work(case).bytes_moved for case in problem.cases) / weight
        row["latency_us"] = f"{latency:.3f}"
        row["throughput_tflops"] = f"{flops / latency / 1e6:.6f}"
        row["bandwidth_gb_s"] = f"{moved / latency / 1e3:.3f}"
        floors = [(case.weight, by_hash[case.hash].floor_us) for case in problem.cases]
        if all(floor is not None for _, floor in floors):
            floor_us = sum(share * (floor or 0) for share, floor in floors) / weight
            row["pct_floor"] = f"{100 * floor_us / latency:.1f}"
    against = [found for found in node.comparisons if found.incumbent_hash == baseline]
    if against:
        found = against[-1]
        row |= {
            "speedup_vs_baseline": f"{found.ratio:.4f}",
            "ci_low": f"{found.ci_low:.4f}",
            "ci_high": f"{found.ci_high:.4f}",
        }
    return row


def results_tsv(tree: Tree) -> str:
    """Return the whole file; speed-ups stand only where the judge compared with the baseline itself.

    Of two baselines that is the faster one, which held the title first.
    """
    baselines = {key: held[0] for key, held in tree.titles.items() if held}
    for (problem_hash, candidate_hash), node in tree.nodes.items():
        if node.evaluations and node.evaluations[-1].status is Status.ACCEPTED:
            baselines.setdefault(problem_hash, candidate_hash)
    lines = ["\t".join(COLUMNS)]
    for (problem_hash, _), node in tree.nodes.items():
        row = _row(node, tree.problems[problem_hash], baselines.get(problem_hash))
        lines.append("\t".join(row[column] for column in COLUMNS))
    return "\n".join(lines) + "\n"
