"""What recording kernels leave behind: read, added up, and made into a trace; and where the records go."""

import json
import struct

import pytest

from kernelwright.backends._triton_timeline import MOST_SCOPES, NotRecorded, with_records
from kernelwright.core.messages.profiler import RECORDED_BLOCKS
from kernelwright.hardware.timeline import (
    BadRecords,
    Block,
    chrome_trace,
    gigahertz,
    read_blocks,
    scope_names,
    summed,
)

START, END = 0, 1 << 31
NAMES = {0: ("kernel", 0), 1: ("loop", 12), 2: ("load", 13), 3: ("dot", 14)}
TTGIR = """\
#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#loc = loc("/tmp/candidate.py":10:0)
#loc1 = loc(unknown)
#loc2 = loc("/tmp/candidate.py":12:17)
#loc3 = loc("/usr/lib/triton/standard.py":290:36)
#loc5 = loc("x"(#loc2))
#loc6 = loc(callsite(#loc3 at #loc2))
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  tt.func public @kernel(%x: !tt.ptr<f16> {tt.divisibility = 16 : i32} loc("x"(#loc))) attributes {noinline = false} {
    %c = arith.constant 1 : i32 loc(#loc1)
    %a:2 = scf.for %i = %c to %c step %c iter_args(%s = %c, %t = %c) -> (i32, i32)  : i32 {
      %v = tt.load %p : tensor<128x!tt.ptr<f16>, #blocked> loc(#loc5)
      %m = "tt.reduce"(%v) <{axis = 0 : i32}> ({
      ^bb0(%l: f32 loc(#loc1), %r: f32 loc(#loc1)):
        %n = arith.maxnumf %l, %r : f32 loc(#loc6)
        tt.reduce.return %n : f32 loc(#loc6)
      }) : (tensor<128xf32, #blocked>) -> f32 loc(#loc6)
      %q = scf.if %b -> (i32) {
        tt.store %p, %v : tensor<128x!tt.ptr<f16>, #blocked> loc(#loc1)
        scf.yield %c : i32 loc(#loc1)
      } else {
        scf.yield %c : i32 loc(#loc1)
      } loc(#loc1)
      scf.yield %c, %c : i32, i32 loc(#loc1)
    } loc(#loc)
    tt.return loc(#loc1)
  } loc(#loc)
} loc(#loc)
"""


def record(kind, scope, clock):
    return struct.pack("<II", kind | scope << 23 | clock >> 32, clock & 0xFFFF_FFFF)


def block(warps, number=0, part=256, start=1000, end=2000, written=None, processor=5):
    """Return a block as a kernel leaves it: a header, a count per warp, a part of the buffer for each."""
    counts = written or [len(one) for one in warps]
    head = struct.pack("<IIIIQQQ", 0xDEADBEEF, number, processor, part * len(warps), start, end, end + 50)
    body = b"".join(b"".join(one).ljust(part, b"\xee") for one in warps)
    made = head + struct.pack(f"<{len(counts)}I", *(2 * count for count in counts)) + body
    return made.ljust(-(-len(made) // 128) * 128, b"\0")


def iterations(count, clock=0):
    """Return a kernel with a loop of loads (30 cycles) and dots (60), ten cycles of something else in each turn."""
    found = [record(START, 0, clock), record(START, 1, clock + 5)]
    now = clock + 5
    for _ in range(count):
        found += [record(START, 2, now), record(END, 2, now + 30)]
        found += [record(START, 3, now + 40), record(END, 3, now + 100)]
        now += 100
    return [*found, record(END, 1, now), record(END, 0, now + 20)]


def test_cycles_of_a_step_are_its_own_and_add_up_to_the_whole():
    raw = block([iterations(3), iterations(3, clock=1 << 33)])
    (found,) = read_blocks(raw, len(raw), 2)
    assert [warp.cycles for warp in found.warps] == [325, 325]
    told = summed("matmul", NAMES, [found])
    steps = {step.kind: step for step in told.steps}
    assert (told.blocks, told.warps, told.cycles, told.time_us, told.lost) == (1, 2, 325, 1.0, 0)
    assert [step.kind for step in told.steps] == ["dot", "load", "loop", "kernel"]
    assert (steps["dot"].own_cycles, steps["dot"].times, steps["dot"].line) == (180, 3, 14)
    assert (steps["loop"].cycles, steps["loop"].own_cycles) == (300, 30)
    assert (steps["kernel"].cycles, steps["kernel"].own_cycles) == (325, 25)
    assert sum(step.share for step in told.steps) == pytest.approx(1.0)


def test_a_buffer_that_went_round_gives_the_last_steps_in_order_and_says_what_is_lost():
    records = iterations(20)  # 84 of them, in room for 32
    kept = records[-32:]
    turned = kept[-(len(records) % 32) :] + kept[: -(len(records) % 32)]
    raw = block([turned], written=[len(records)])
    (found,) = read_blocks(raw, len(raw), 1)
    (warp,) = found.warps
    assert warp.lost == 52
    # The last 32 records: half a turn, then whole ones; loop and kernel, begun before, are told from the first of them.
    assert [span.scope for span in warp.spans] == [3] + [2, 3] * 7 + [1, 0]
    assert {span.end - span.start for span in warp.spans if span.scope == 2} == {30}
    told = summed("matmul", NAMES, [found])
    steps = {step.kind: step for step in told.steps}
    assert (told.lost, told.cycles) == (52, 60 + 700 + 20)
    assert (steps["loop"].cycles, steps["loop"].own_cycles) == (760, 70)
    assert (steps["kernel"].cycles, steps["kernel"].own_cycles) == (780, 20)
    assert sum(step.share for step in told.steps) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("raw", "size", "warps", "words"),
    [
        (b"", 128, 1, "0 bytes"),
        (b"\0" * 130, 128, 1, "130 bytes of records in blocks of 128"),
        (b"\0" * 128, 128, 1, "a block begins with 0x0"),
        (block([iterations(1)]), None, 0, "do not fit"),
        (block([iterations(1)]), None, 3, "do not fit"),
        (block([iterations(1)])[:128], None, 1, "do not fit"),
        (block([iterations(1)]) * (RECORDED_BLOCKS + 1), len(block([iterations(1)])), 1, "bytes of records"),
    ],
)
def test_what_is_not_of_the_expected_form_is_no_result(raw, size, warps, words):
    with pytest.raises(BadRecords, match=words):
        read_blocks(raw, size or len(raw), warps)


def test_steps_without_a_name_and_kernels_without_steps_are_no_result():
    raw = block([iterations(1)])
    blocks = read_blocks(raw, len(raw), 1)
    with pytest.raises(BadRecords, match="step 2 has no name"):
        summed("matmul", {0: ("kernel", 0), 1: ("loop", 1)}, blocks)
    with pytest.raises(BadRecords, match="recorded nothing"):
        summed("matmul", NAMES, [Block(0, 0, 0, 1, [])])
    assert scope_names({"scopes": {"0": "kernel", "3": "tma load 66 #2"}}) == {
        0: ("kernel", 0),
        3: ("tma load", 66),
    }
    with pytest.raises(BadRecords, match="is called"):
        scope_names({"scopes": {"0": "<script>"}})


def test_the_trace_puts_steps_on_one_clock_in_microseconds():
    first, second = (
        block([iterations(1)]),
        block([iterations(1)], number=7, start=1500, end=1750, processor=9),
    )
    blocks = read_blocks(first + second, len(first), 1)
    assert gigahertz(blocks) == pytest.approx((0.125 + 0.5) / 2)
    trace = chrome_trace("matmul 64x64x64 fp16", [("matmul", NAMES, blocks)])
    steps = [event for event in json.loads(json.dumps(trace))["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in steps[:4]] == ["load 13", "dot 14", "loop 12", "kernel"]
    loads = [event for event in steps if event["cat"] == "load"]
    assert [event["pid"] for event in loads] == [5, 9]
    rate = gigahertz(blocks)
    assert [event["ts"] for event in loads] == pytest.approx([5 / rate / 1e3, (500 + 5 / rate) / 1e3])
    assert loads[0]["dur"] == pytest.approx(30 / rate / 1e3)
    assert loads[0]["args"] == {"cycles": 30, "line": 13}


def test_records_stand_around_every_step_with_the_line_of_the_candidate():
    lines = [line.strip() for line in with_records(TTGIR, "candidate.py").splitlines()]
    records = [line for line in lines if line.startswith("proton.record")]
    assert records == [
        'proton.record start "kernel"',
        'proton.record start "loop 10"',
        'proton.record start "load 12"',
        'proton.record end "load 12"',
        'proton.record start "reduce 12"',
        'proton.record end "reduce 12"',
        'proton.record start "store"',
        'proton.record end "store"',
        'proton.record end "loop 10"',
        'proton.record end "kernel"',
    ]
    assert [line for line in lines if line not in records] == [line.strip() for line in TTGIR.splitlines()]
    assert lines[lines.index('proton.record end "reduce 12"') - 1].startswith("}) : (tensor<128xf32")
    assert lines[lines.index('proton.record end "loop 10"') - 1] == "} loc(#loc)"
    assert lines[lines.index('proton.record end "kernel"') + 1].startswith("tt.return")


def test_steps_of_one_line_are_told_apart_and_their_number_is_bounded():
    load = next(line for line in TTGIR.splitlines() if "tt.load" in line)
    told = with_records(TTGIR.replace(load, "\n".join([load] * 200)), "candidate.py")
    assert told.count("proton.record start") == MOST_SCOPES + 1
    assert 'start "load 12 #2"' in told
    assert len(set(line for line in told.splitlines() if "record start" in line)) == MOST_SCOPES + 1


def test_a_kernel_with_two_ways_out_has_no_whole_and_one_with_two_functions_no_records():
    early = TTGIR.replace(
        "    tt.return loc(#loc1)\n", "    tt.return loc(#loc1)\n    tt.return loc(#loc1)\n"
    )
    assert '"kernel"' not in with_records(early, "candidate.py")
    assert 'start "load 12"' in with_records(early, "candidate.py")
    with pytest.raises(NotRecorded, match="2 functions"):
        with_records(
            TTGIR.replace("  tt.func", "  tt.func public @other() {\n  }\n  tt.func"), "candidate.py"
        )
