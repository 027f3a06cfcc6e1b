"""Where inside a Triton kernel the time goes: what instrumented copies of it wrote down, read and added up.

1. The judge has copies of the kernels built that record the clock before and after every step (see
   `backends/_triton_timeline`); the judged ones are not touched, and nothing of this is timed or judged.
2. `worker/profiled` calls them until they are warm and hands over the records of a few blocks of the last call.
3. Records are read strictly: a buffer that is not of the expected form is no result.
4. Per step and line the cycles of a warp are added up; the same steps make a trace for chrome://tracing or Perfetto.
"""

import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from kernelwright.core.messages.profiler import RECORDED_BLOCKS, record_file
from kernelwright.core.timeline import KernelTimeline, Step, Timeline
from kernelwright.hardware import ncu
from kernelwright.hardware.counters import PROFILE_SECONDS, Workload, launcher, lay_out, run_apart
from kernelwright.hardware.lock import DeviceLock

PREAMBLE = 0xDEADBEEF
HEADER = struct.Struct("<IIIIQQQ")
"""Preamble, block, multiprocessor, bytes of records, and the start, end and very end in nanoseconds."""
WORD, RECORD = struct.Struct("<I"), struct.Struct("<II")
NAME = re.compile(r"([a-z ]{1,20}?)(?: (\d{1,6}))?(?: #\d{1,4})?")
SANE_GIGAHERTZ = (0.1, 5.0)
WHOLE = "kernel"


class BadRecords(ValueError):
    """What a kernel left behind is not what its instrumentation writes."""


class Span(NamedTuple):
    """One step of one warp."""

    scope: int
    start: int
    end: int
    own: int
    """Cycles in no step inside it."""


@dataclass
class Warp:
    """What one warp recorded."""

    number: int
    spans: list[Span] = field(default_factory=list)
    lost: int = 0

    @property
    def first(self) -> int:
        """Return the clock at its first record."""
        return min(span.start for span in self.spans)

    @property
    def cycles(self) -> int:
        """Return the cycles between its first record and its last."""
        return max(span.end for span in self.spans) - self.first


@dataclass
class Block:
    """What one block recorded."""

    number: int
    processor: int
    start_ns: int
    end_ns: int
    warps: list[Warp]


def timeline_of(
    work: Workload, facts: Sequence[Mapping[str, Any]], show: Callable[[str], None]
) -> tuple[Timeline, dict[str, Any]]:
    """Return where the time of a call goes, and the same as a trace; `facts` are those of each launch that is made."""
    label = work.case.label
    with (
        DeviceLock(work.device, show=show),
        tempfile.TemporaryDirectory(prefix="kernelwright-timeline-") as scratch,
    ):
        folder = Path(scratch)
        lay_out(work, folder, tracer="inside")
        code, words = run_apart(launcher(folder), folder, PROFILE_SECONDS)
        found = []
        for place, (launch, fact) in enumerate(zip(work.launches, facts, strict=True)):
            try:
                raw = (folder / record_file(place)).read_bytes()
                names = scope_names(fact)
                blocks = read_blocks(raw, int(fact["profile_scratch_size"]), int(fact["num_warps"]))
            except (OSError, BadRecords) as error:
                said = ncu.in_a_line(words) or str(error)
                return Timeline(label=label, reason=f"no records (exit code {code}): {said}"), {}
            found.append((launch.kernel, names, blocks))
    kernels = tuple(summed(*one) for one in found)
    return Timeline(label=label, kernels=kernels), chrome_trace(label, found)


def scope_names(facts: Mapping[str, Any]) -> dict[int, tuple[str, int]]:
    """Return kind and line of every step by its number, as the builder named them."""
    names = {}
    for number, text in facts.get("scopes", {}).items():
        match = NAME.fullmatch(text)
        if match is None:
            raise BadRecords(f"a step is called {text[:40]!r}")
        names[int(number)] = (match[1], int(match[2] or 0))
    return names


def read_blocks(raw: bytes, size: int, warps: int) -> list[Block]:
    """Return the blocks in what a launch left behind, `size` bytes each."""
    if size <= HEADER.size or not raw or len(raw) % size or len(raw) // size > RECORDED_BLOCKS:
        raise BadRecords(f"{len(raw)} bytes of records in blocks of {size}")
    return [_block(memoryview(raw)[start : start + size], warps) for start in range(0, len(raw), size)]


def _block(raw: memoryview, warps: int) -> Block:
    preamble, number, processor, capacity, start, end, _ = HEADER.unpack_from(raw)
    if preamble != PREAMBLE:
        raise BadRecords(f"a block begins with {preamble:#x}")
    # Behind the header comes a count of words per warp, then the records, an equal part for every warp.
    start_of_records, part = HEADER.size + WORD.size * warps, capacity // max(1, warps)
    if warps < 1 or part < RECORD.size or capacity % warps or start_of_records + capacity > len(raw):
        raise BadRecords(f"{capacity} bytes of records of {warps} warps do not fit a block of {len(raw)}")
    counts = [WORD.unpack_from(raw, HEADER.size + WORD.size * warp)[0] for warp in range(warps)]
    found = []
    for warp, words in enumerate(counts):
        place = start_of_records + warp * part
        found.append(_warp(warp, words // 2, bytes(raw[place : place + part])))
    return Block(number, processor, start, end, [warp for warp in found if warp.spans])


def _warp(number: int, written: int, raw: bytes) -> Warp:
    """Return the spans of a warp; a buffer that went round holds the last records, the oldest where it stands."""
    room = len(raw) // RECORD.size
    kept = min(written, room)
    first = written % room if written > room else 0
    records = [RECORD.unpack_from(raw, (first + one) % room * RECORD.size) for one in range(kept)]
    return Warp(number, list(_spans(records)), written - kept)


def _spans(records: Sequence[tuple[int, int]]) -> Iterator[Span]:
    """Yield every step whose end is there, inner ones first.

    One whose beginning was overwritten was under way at the first record that is left, and is taken to begin there.
    """
    open_steps: list[tuple[int, int, int]] = []
    began, ended = _clock(*records[0]) if records else 0, 0
    for tag, low in records:
        scope, clock = tag >> 23 & 0xFF, _clock(tag, low)
        place = next((one for one, step in enumerate(open_steps) if step[0] == scope), None)
        if not tag >> 31:
            if place is not None:
                del open_steps[place]  # its end was lost
            open_steps.append((scope, clock, 0))
            continue
        if place is None:
            place, start, inside = 0, began, ended
            ended = 0
        else:
            _, start, inside = open_steps.pop(place)
        if clock < start:
            continue  # the clock went round
        yield Span(scope, start, clock, max(0, clock - start - inside))
        if place:
            outer, since, within = open_steps[place - 1]
            open_steps[place - 1] = (outer, since, within + clock - start)
        else:
            ended += clock - start


def _clock(tag: int, low: int) -> int:
    return (tag & 0x7FF) << 32 | low


def summed(kernel: str, names: Mapping[int, tuple[str, int]], blocks: Sequence[Block]) -> KernelTimeline:
    """Return the steps of a launch, added up over its warps."""
    warps = [warp for block in blocks for warp in block.warps]
    if not warps:
        raise BadRecords(f"{kernel} recorded nothing")
    whole = sum(warp.cycles for warp in warps)
    per_step: dict[tuple[str, int], list[Span]] = {}
    for span in (span for warp in warps for span in warp.spans):
        if span.scope not in names:
            raise BadRecords(f"step {span.scope} has no name")
        per_step.setdefault(names[span.scope], []).append(span)
    steps = [
        Step(
            kind=kind,
            line=line,
            times=len(spans) / len(warps),
            cycles=sum(span.end - span.start for span in spans) / len(warps),
            own_cycles=sum(span.own for span in spans) / len(warps),
            share=min(1.0, sum(span.own for span in spans) / whole) if whole else 0.0,
        )
        for (kind, line), spans in per_step.items()
    ]
    return KernelTimeline(
        kernel=kernel,
        blocks=len(blocks),
        warps=max(len(block.warps) for block in blocks),
        cycles=median(warp.cycles for warp in warps),
        time_us=median(max(0, block.end_ns - block.start_ns) for block in blocks) / 1e3,
        lost=sum(warp.lost for warp in warps),
        steps=tuple(sorted(steps, key=lambda step: -step.own_cycles)),
    )


def gigahertz(blocks: Sequence[Block]) -> float:
    """Return the clock's rate from blocks whose whole life was recorded; 1 if it cannot be told."""
    rates = [
        max(warp.cycles for warp in block.warps) / (block.end_ns - block.start_ns)
        for block in blocks
        if block.warps and block.end_ns > block.start_ns and not any(warp.lost for warp in block.warps)
    ]
    rate = mean(rates) if rates else 1.0
    low, high = SANE_GIGAHERTZ
    return rate if low <= rate <= high else 1.0


def chrome_trace(
    label: str, launches: Sequence[tuple[str, Mapping[int, tuple[str, int]], Sequence[Block]]]
) -> dict[str, Any]:
    """Return a trace for chrome://tracing or Perfetto: a process per multiprocessor, a thread per warp."""
    events: list[dict[str, Any]] = []
    for place, (kernel, names, blocks) in enumerate(launches):
        rate, began = gigahertz(blocks), min(block.start_ns for block in blocks)
        for block in blocks:
            process = block.processor
            events.append(_called("process_name", f"multiprocessor {process}", process, 0))
            for warp in block.warps:
                thread = (place << 32) + (block.number << 8) + warp.number
                events.append(
                    _called(
                        "thread_name", f"{kernel} block {block.number} warp {warp.number}", process, thread
                    )
                )
                for span in warp.spans:
                    kind, line = names[span.scope]
                    start_ns = block.start_ns - began + (span.start - warp.first) / rate
                    events.append(
                        {
                            "ph": "X",
                            "name": f"{kind} {line}" if line else kind,
                            "cat": kind,
                            "pid": process,
                            "tid": thread,
                            "ts": start_ns / 1e3,
                            "dur": (span.end - span.start) / rate / 1e3,
                            "args": {"cycles": span.end - span.start, "line": line},
                        }
                    )
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"call": label}}


def _called(kind: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
