"""Nsight Compute from outside: where it is, what it offers, how it is called, and what its output means.

Its output is data of an untrusted kind (kernels name themselves): it is parsed strictly, and a table that is not
exactly of the expected form is a failure, never half a result.
"""

import csv
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core.counters import TIME, NoCounters

PLACES = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu")
"""Where it is installed when it is not on PATH."""
VERSION = re.compile(r"^Version (\S+)", re.MULTILINE)
OFFERED = re.compile(r"^\s*([a-z][a-z0-9]*__[A-Za-z0-9_]+)\b", re.MULTILINE)
ERROR = re.compile(r"^==ERROR== *(.+)$", re.MULTILINE)
COMPLAINT = re.compile(r"^==(?:ERROR|WARNING)== .*$", re.MULTILINE)
FIRST_COLUMN, NAME_COLUMN = "ID", "Kernel Name"
ABSENT = ("", "n/a", "no data", "(!) n/a", "nan")
NO_QUERY = "launch__"
"""Metrics of the launch itself are not listed among the hardware's."""
SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECONDS = {
    "second": 1e9,
    "msecond": 1e6,
    "usecond": 1e3,
    "nsecond": 1.0,
    "s": 1e9,
    "ms": 1e6,
    "us": 1e3,
    "ns": 1.0,
}
"""Nanoseconds in a unit, in the words of older and newer versions."""
SAME = {
    "dram__bytes_read.sum": ("dram__bytes_op_read.sum",),
    "dram__bytes_write.sum": ("dram__bytes_op_write.sum",),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": (
        "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared.sum",
    ),
    "smsp__inst_executed_op_local_ld.sum": (
        "smsp__sass_inst_executed_op_local_ld.sum",
        "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
    ),
}
"""Counters that go by another name on other chips or in other versions: taken where the first name is not there."""
LIMIT = 300
"""Characters of a foreign message that are passed on."""


class BadOutput(ValueError):
    """What the profiler printed is not the table that was asked for."""


@dataclass(frozen=True)
class Row:
    """One profiled launch."""

    kernel: str
    metrics: dict[str, float]
    """By name, in base units; what the profiler could not tell is left out."""


def found(path: str | None = None) -> Path | None:
    """Return the profiler: of PATH, else of the usual places, the newest first."""
    on_path = shutil.which("ncu", path=path)
    if on_path or path is not None:
        return Path(on_path) if on_path else None
    places = [place for pattern in PLACES for place in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    return next(iter(places), None)


def version_in(text: str) -> str:
    """Return the version in what `--version` printed; empty if there is none."""
    match = VERSION.search(text)
    return match[1] if match else ""


def offered_in(text: str) -> frozenset[str]:
    """Return the names in what `--query-metrics` printed, without their suffixes."""
    return frozenset(OFFERED.findall(text))


def available(wanted: Sequence[str], offered: frozenset[str]) -> list[str]:
    """Return the metrics this profiler has, other names where it lacks the first; where it told of none, all wanted."""

    def has(name: str) -> bool:
        return name.startswith(NO_QUERY) or name.partition(".")[0] in offered

    if not offered:
        return list(wanted)
    found = []
    for name in wanted:
        found += [name] if has(name) else [other for other in SAME.get(name, ()) if has(other)][:1]
    return found


def command(tool: Path, metrics: Iterable[str], log: Path, launcher: Sequence[str]) -> list[str]:
    """Return the call that profiles what a launcher brackets with start and stop of the profiler.

    Clocks are left as they are, as for the timing. Caches are emptied before every pass: certified times are cold too.
    """
    return [
        str(tool),
        *("--profile-from-start", "off", "--target-processes", "all", "--replay-mode", "kernel"),
        *("--clock-control", "none", "--cache-control", "all", "--kernel-name-base", "function"),
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
        *("--metrics", ",".join(metrics)),
        *launcher,
    ]


def parse(text: str) -> list[Row]:
    """Return the launches of `--csv --page raw` output, in order; a table in the long form is taken too."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(f'"{FIRST_COLUMN}",')]
    if len(starts) != 1:
        raise BadOutput(f"{len(starts)} tables in the profiler's output")
    table = [line for line in lines[starts[0] :] if line.startswith('"')]
    try:
        header, *rows = csv.reader(table, strict=True)
    except csv.Error as error:
        raise BadOutput(f"no CSV: {error}") from error
    if NAME_COLUMN not in header:
        raise BadOutput(f"no column {NAME_COLUMN!r}")
    if odd := [row for row in rows if len(row) != len(header)]:
        raise BadOutput(f"a row of {len(odd[0])} fields under {len(header)} columns")
    named = [dict(zip(header, row, strict=True)) for row in rows]
    return _long(named) if "Metric Name" in header else _wide(header, named)


def _wide(header: Sequence[str], rows: Sequence[dict[str, str]]) -> list[Row]:
    """Return the launches of a table with a column per metric, the second line of which holds the units."""
    if not rows or rows[0][FIRST_COLUMN]:
        raise BadOutput("no line of units under the header")
    units, *launches = rows
    columns = [name for name in header if "__" in name]
    found = []
    for row in launches:
        told = {name: _value(name, row[name], units[name]) for name in columns}
        found.append(Row(row[NAME_COLUMN], {name: one for name, one in told.items() if one is not None}))
    return found


def _long(rows: Sequence[dict[str, str]]) -> list[Row]:
    """Return the launches of a table with a line per metric."""
    launches: dict[str, Row] = {}
    for row in rows:
        launch = launches.setdefault(row[FIRST_COLUMN], Row(row[NAME_COLUMN], {}))
        value = _value(row["Metric Name"], row["Metric Value"], row["Metric Unit"])
        if "__" in row["Metric Name"] and value is not None:
            launch.metrics[row["Metric Name"]] = value
    return list(launches.values())


def _value(name: str, text: str, unit: str) -> float | None:
    """Return a number in base units; None for what the profiler could not tell."""
    plain = text.replace(",", "").strip()
    if plain.lower() in ABSENT:
        return None
    try:
        value = float(plain)
    except ValueError as error:
        if "__" not in name or name.startswith(("launch__", "device__")):
            return None  # a word, not a number
        raise BadOutput(f"{name} is {text[:40]!r}") from error
    if not math.isfinite(value):
        return None
    if name == TIME:
        if unit not in SECONDS:
            raise BadOutput(f"{name} in unit {unit[:20]!r}")
        return value * SECONDS[unit]
    prefix = re.fullmatch(r"([KMGT]?)byte(/\w+)?", unit)
    return value * SCALES[prefix[1]] if prefix else value


def renamed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics with every counter under the name the rules know it by."""
    found = dict(metrics)
    for name, others in SAME.items():
        if name not in found and (other := next((one for one in others if one in found), None)):
            found[name] = found[other]
    return found


def refused_metrics(text: str, asked: Iterable[str]) -> list[str]:
    """Return the metrics that the profiler names in a complaint."""
    words = {word.strip(".,") for line in COMPLAINT.findall(text) for word in re.split(r"[^\w.]+", line)}
    return [name for name in asked if name in words or name.partition(".")[0] in words]


def in_a_line(words: str) -> str:
    """Return the end of what a process printed, in one line."""
    return " ".join(words.split())[-LIMIT:]


def fault(text: str, exit_code: int | None, last_words: str) -> tuple[NoCounters, str]:
    """Return why there is no table, as a word and as one line with the remedy; no exit code means it was stopped."""
    said = [match.strip() for match in ERROR.findall(text)]
    last = in_a_line(last_words)
    warned = COMPLAINT.findall(text)
    first = in_a_line((said or warned or [last or "it printed nothing"])[0])
    if exit_code is None:
        return NoCounters.TIMED_OUT, f"ncu did not end in time: {first}. Profile a smaller case."
    if "ERR_NVGPUCTRPERM" in text:
        remedy = (
            "Run as root, give the container CAP_SYS_ADMIN, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0."
        )
        return (
            NoCounters.NOT_PERMITTED,
            f"the driver gives hardware counters to administrators only. {remedy}",
        )
    closed = (
        "LibraryNotLoaded",
        "Failed to initialize the profiler",
        "not supported",
        "Unknown Error on device",
    )
    if any(word in line for word in closed for line in said):
        remedy = "Profile on bare metal or in a virtual machine: gVisor, for one, does not let ncu reach the counters."
        return NoCounters.NOT_SUPPORTED, f"ncu does not work on this machine: {first}. {remedy}"
    more = f"; {last}" if (said or warned) and last else ""
    return NoCounters.FAILED, f"ncu ended with {exit_code}: {first}{more}"
