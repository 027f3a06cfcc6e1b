"""What `make run` does on a machine, from nothing: its words, and what its journal says of model and kernels.

    python -m benchmarks.make_run --device auto
    PYTHONPATH=build/offline python3 -m benchmarks.make_run --device cuda --budget-s 440 --out rows.json
    PYTHONPATH=build/offline python3 -m benchmarks.make_run --device cuda --budget-s 300 --instead "--budget 2m --top 1"

The line of the Makefile is run in a home that was not there before, so that nothing is known or built yet. One row per
kind of device, and what was printed beside the rows. The exit code is that of the run; 2 if the time was not enough.
With --instead a shorter line is run, and the row says which; with --home what the run leaves behind is kept there.
"""

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from kernelwright.core.config import RunConfig
from kernelwright.core.device import DeviceKind
from kernelwright.core.events import ModelVerified
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import JUDGE_VERSION
from kernelwright.hardware.detect import devices
from kernelwright.report.standing import standing
from kernelwright.store.journal import Journal

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "make_run.json"
LINE = re.compile(r"kernelwright optimize \$\(if .*\) (--max-pairs .*) --home \S+$", re.MULTILINE)
"""What the Makefile runs on every device, without the home."""
OWN = re.compile(r"^ON_(CPU|GPU) := (.*)$", re.MULTILINE)
"""What it runs on a kind of device."""
BESIDE_S = 130.0
"""What profiling, the last verdict under way and the model may take on top of a run's own budget."""
PATIENCE_S = 30.0
"""How long an interrupted run may take to end."""


def words(device: str, instead: str = "") -> list[str]:
    """Return the words of the Makefile's line, on a device, with other values where they are given."""
    text = (ROOT / "Makefile").read_text()
    own, every = dict(OWN.findall(text)), LINE.search(text)
    assert every and own.keys() == {"CPU", "GPU"}, "the Makefile has a line for a CPU and one for a GPU"
    has_gpu = device == "cuda" or (device == "auto" and len(devices()) > 1)
    line, other = (
        ["optimize", *shlex.split(f"{own['GPU' if has_gpu else 'CPU']} {every[1]}")],
        shlex.split(instead),
    )
    for flag, value in zip(other[::2], other[1::2], strict=True):
        line[line.index(flag) + 1] = value
    return [*line, *([] if device == "auto" else ["--device", device])]


def least_s(line: list[str]) -> float:
    """Return the seconds without which a line is not begun."""
    given = {"model": line[1], "budget_s": line[line.index("--budget") + 1]}
    return RunConfig.model_validate(given).budget_s + BESIDE_S


def ratios(found: ModelVerified) -> dict[str, list[float] | None]:
    """Return how much faster the model is with the winners than what, each with its 95 % interval."""
    compiled = (found.compiled_ratio, found.compiled_ci_low, found.compiled_ci_high)
    return {
        "captured": _rounded(found.ratio, found.ci_low, found.ci_high),
        "eager": _rounded(found.eager_ratio, found.eager_ci_low, found.eager_ci_high),
        "compiled": _rounded(*(one for one in compiled if one is not None)) or None,
    }


def _rounded(*numbers: float) -> list[float]:
    return [round(one, 4) for one in numbers]


def measured(tree: Tree) -> dict[str, object]:
    """Return what the journal of a run says of the model and of every problem."""
    whole, started, ranked = tree.verified, tree.started, tree.ranked
    assert started is not None, "a run that was begun"
    return {
        "device": started.device.title,
        "driver": started.device.driver,
        "versions": started.versions,
        "judge": JUDGE_VERSION,
        "ended": tree.ended.reason if tree.ended else "not ended",
        "failed": tree.ended is None or tree.ended.failed,
        "model": None
        if ranked is None
        else {
            "against": ranked.against.value,
            "call_us": round(ranked.total_us, 1),
            "eager_us": round(ranked.eager_us, 1),
            "in_regions": round(sum(region.share for region in ranked.regions), 4),
        },
        "end_to_end": None
        if whole is None
        else {
            "shipped": whole.shipped,
            "reason": whole.reason,
            "mode": whole.mode,
            "faster_than": ratios(whole),
            "drift": round(whole.drift, 3),
            "fallbacks": whole.fallbacks,
            "notes": list(whole.notes),
        },
        "problems": [outcome(tree, key) for key in tree.problems],
    }


def outcome(tree: Tree, key: str) -> dict[str, object]:
    """Return what came of one problem: who holds its title, by what comparison, and what it does in the model."""
    problem, held, tried = tree.problems[key], tree.titles.get(key, []), tree.tried.get(key)
    nodes = [node for (owner, _), node in tree.nodes.items() if owner == key]
    best = tree.nodes[key, held[-1]] if held[1:] else None  # the first is the baseline
    found = best.comparisons[-1] if best and best.comparisons else None
    ended = tree.quests[key].ended
    return {
        "case": problem.cases[0].label,
        "count": problem.count,
        "share": round(problem.share, 4),
        "baseline": tree.nodes[key, held[0]].candidate.backend if held else None,
        "winner": best.candidate.backend if best else None,
        "author": best.candidate.author.name if best else None,
        "faster": _rounded(found.ratio, found.ci_low, found.ci_high) if found else None,
        "reason": standing(tree, key).outcome,
        "verdicts": dict(Counter(one.status.value for node in nodes for one in node.evaluations)),
        "looks": sum(len(node.screenings) for node in nodes),
        "in_the_model": None
        if tried is None
        else {
            "stays": tried.kept,
            "faster": _rounded(tried.ratio, tried.ci_low, tried.ci_high),
            "reason": tried.reason,
        },
        "search_ended": ended.reason if ended else None,
    }


def carried_out(command: list[str], budget_s: float | None) -> tuple[str, int | None]:
    """Run a command and return what it printed and its exit code; None if the time was not enough."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            told, _ = process.communicate(timeout=budget_s)
            return told, process.returncode
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends its children, which a kill would leave
        try:
            return process.communicate(timeout=PATIENCE_S)[0], None
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0], None


def text_beside(rows: Path, kind: DeviceKind) -> Path:
    """Return the file of what was printed: make_run.txt on a CPU, make_run_gpu.txt on a GPU."""
    return rows.with_name(f"{rows.stem}{'' if kind is DeviceKind.CPU else '_gpu'}.txt")


def main() -> int:
    """Run it, and keep a row for the kind of device it ran on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--budget-s", type=float, help="interrupt it then; less than it needs is not begun")
    parser.add_argument("--instead", default="", help="other values for flags of the line")
    parser.add_argument("--home", type=Path, help="an empty folder that is not removed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    line, begun = words(options.device, options.instead), time.monotonic()
    if options.budget_s is not None and options.budget_s < least_s(line):
        print(f"{options.budget_s:.0f} s are not enough, {least_s(line):.0f} are needed", flush=True)
        return 2
    with ExitStack() as stack:
        home = options.home or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="kernelwright-make-run-")
        )
        command = [sys.executable, "-m", "kernelwright", *line, "--home", str(home)]
        told, code = carried_out(command, options.budget_s)
        seconds = time.monotonic() - begun
        print(told, flush=True)
        folders = sorted((Path(home) / "runs").glob("*"))
        if not folders:
            print(f"no run was begun, exit code {code}", flush=True)
            return code or 2
        tree = Journal.open(folders[-1]).tree()
    if code is None or tree.started is None:
        print(f"not done after {seconds:.0f} s", flush=True)
        return 2
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"rows": {}}
    date, shown = datetime.now(UTC).isoformat(timespec="seconds"), shlex.join(["kernelwright", *line])
    row = {"command": shown, "date": date, "exit_code": code, "seconds": round(seconds, 1), **measured(tree)}
    kept["rows"][tree.started.device.kind.value] = row
    options.out.write_text(json.dumps(kept, indent=1) + "\n")
    head = f"$ {shown}      # {row['device']}; {date}"
    tail = f"real    {int(seconds // 60)}m{seconds % 60:.1f}s"
    text = text_beside(options.out, tree.started.device.kind)
    lines = [line for line in told.rstrip().splitlines() if str(home) not in line]
    text.write_text("\n".join([head, *lines, "", tail, ""]))
    print(json.dumps(row, indent=1), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
