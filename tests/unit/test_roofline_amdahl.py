"""The floor never promises too much, the score is anchored, and parts add up to the whole."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernelwright.core.amdahl import Part, end_to_end_speedup, speedup_limit
from kernelwright.core.device import Ceiling, Ceilings
from kernelwright.core.roofline import Work, floor_us, memory_time_us, sol_score

BYTES = st.integers(0, 1 << 34)
FIXED = st.floats(0, 50)
RATE = st.floats(1e9, 1e13)
ROUNDING = 1 + 1e-12


def work(read: int, written: int, flops: int = 0) -> Work:
    return Work(bytes_read=read, bytes_written=written, flops=flops, compute_class="fp16")


@st.composite
def ceilings(draw: st.DrawFn, one_fixed_cost: bool = False) -> Ceilings:
    """Draw a device on which copying is never cheaper than reading."""
    fixed, rate, slower = draw(FIXED), draw(RATE), draw(st.floats(0.3, 1))
    extra = 0 if one_fixed_cost else draw(FIXED)
    return Ceilings(
        reading=Ceiling(fixed_us=fixed, rate=rate),
        copying=Ceiling(fixed_us=fixed + extra, rate=rate * slower),
        flops={"fp16": draw(st.floats(1e12, 1e15))},
    )


H200 = Ceilings(
    reading=Ceiling(fixed_us=2, rate=4e12), copying=Ceiling(fixed_us=2, rate=3e12), flops={"fp16": 8e14}
)


@given(ceilings(one_fixed_cost=True), BYTES, BYTES, st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_floor_never_falls_when_bytes_are_added(device, read, written, more_read, more_written):
    before = floor_us(work(read, written), device)
    assert floor_us(work(read + more_read, written + more_written), device) * ROUNDING >= before


@given(ceilings(), BYTES, BYTES, st.integers(0, 1 << 30))
def test_floor_never_falls_when_more_is_read_and_an_empty_copy_is_the_dearer(device, read, written, more):
    before = floor_us(work(read, written), device)
    assert floor_us(work(read + more, written), device) * ROUNDING >= before


@given(ceilings(), BYTES, BYTES, st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_floor_never_falls_when_flops_are_added(device, read, written, flops, more):
    before = floor_us(work(read, written, flops), device)
    assert floor_us(work(read, written, flops + more), device) >= before


@given(ceilings(), BYTES, BYTES)
def test_memory_time_lies_between_the_read_line_and_the_copy_line(device, read, written):
    moved = read + written
    found = memory_time_us(work(read, written), device)
    assert device.reading.time_us(moved) <= found * ROUNDING
    assert found <= device.copying.time_us(moved) * ROUNDING


@pytest.mark.parametrize(
    ("read", "written", "expected_us"),
    [
        (0, 0, 2),
        (12_000_000, 0, 2 + 3),
        (6_000_000, 6_000_000, 2 + 4),
        (9_000_000, 3_000_000, 2 + 3.5),
        (0, 12_000_000, 2 + 4),
    ],
)
def test_written_share_chooses_the_place_between_the_lines(read, written, expected_us):
    assert memory_time_us(work(read, written), H200) == pytest.approx(expected_us)


def test_floor_is_the_longer_of_memory_and_arithmetic():
    assert floor_us(work(12_000_000, 0, 800_000_000), H200) == pytest.approx(2 + 3)
    assert floor_us(work(12_000_000, 0, 8_000_000_000), H200) == pytest.approx(2 + 10)


def test_unknown_compute_class_leaves_the_memory_floor():
    unknown = Work(bytes_read=12_000_000, bytes_written=0, flops=10**15, compute_class="fp4")
    assert floor_us(unknown, H200) == pytest.approx(5)


@pytest.mark.parametrize("field", ["bytes_read", "bytes_written", "flops"])
def test_negative_work_is_refused(field):
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Work(**({"bytes_read": 1, "bytes_written": 1, "flops": 1, "compute_class": "fp16"} | {field: -1}))


@pytest.mark.parametrize("change", [{"rate": 0}, {"rate": -1}, {"fixed_us": -1}, {"rate": math.inf}])
def test_ceiling_that_no_device_can_have_is_refused(change):
    with pytest.raises(ValidationError):
        Ceiling(**({"fixed_us": 1, "rate": 1e12} | change))


FLOORS = st.floats(0.1, 1e4)
ROOMS = st.floats(0.1, 1e4)


@given(FLOORS, ROOMS)
def test_score_is_one_at_the_floor_and_one_half_at_the_baseline(floor, room):
    assert sol_score(floor, floor, floor + room) == 1
    assert sol_score(floor + room, floor, floor + room) == pytest.approx(0.5)
    assert sol_score(floor / 2, floor, floor + room) == 1


@given(FLOORS, ROOMS, st.floats(0, 1e4), st.floats(0.01, 1e4))
def test_score_falls_with_time_and_stays_positive(floor, room, above, more):
    faster = sol_score(floor + above, floor, floor + room)
    slower = sol_score(floor + above + more, floor, floor + room)
    assert 0 < slower < faster <= 1


@pytest.mark.parametrize(("time_us", "expected"), [(9.0, 1), (10.0, 1), (10.1, 0)])
def test_baseline_at_the_floor_leaves_nothing_to_win(time_us, expected):
    assert sol_score(time_us, floor=10, baseline_us=10) == expected
    assert sol_score(time_us, floor=10, baseline_us=8) == expected


SHARES = st.floats(0, 1)
SPEEDUPS = st.floats(0.1, 100)


@given(SPEEDUPS)
def test_part_that_is_the_whole_gives_its_own_speedup(speedup):
    assert end_to_end_speedup([Part(share=1, speedup=speedup)]) == pytest.approx(speedup)


@given(SHARES)
def test_parts_that_do_not_change_change_nothing(share):
    assert end_to_end_speedup([]) == 1
    assert end_to_end_speedup([Part(share=share, speedup=1)]) == pytest.approx(1)


@given(st.floats(0, 0.99), SPEEDUPS)
def test_speedup_of_the_whole_stays_below_its_limit(share, speedup):
    found = end_to_end_speedup([Part(share=share, speedup=speedup)])
    assert found <= speedup_limit(share) * ROUNDING
    assert end_to_end_speedup([Part(share=share, speedup=1e15)]) == pytest.approx(speedup_limit(share))


@given(st.floats(0.01, 0.5), st.floats(0.01, 0.5), SPEEDUPS, SPEEDUPS)
def test_order_of_parts_does_not_matter_and_equal_parts_can_be_joined(one, other, fast, faster):
    first, second = Part(share=one, speedup=fast), Part(share=other, speedup=faster)
    assert end_to_end_speedup([first, second]) == pytest.approx(end_to_end_speedup([second, first]))
    split = [first, Part(share=other, speedup=fast)]
    assert end_to_end_speedup(split) == pytest.approx(
        end_to_end_speedup([Part(share=one + other, speedup=fast)])
    )


def test_amdahl_by_hand():
    assert end_to_end_speedup([Part(share=0.5, speedup=2), Part(share=0.25, speedup=5)]) == pytest.approx(
        1 / 0.55
    )
    assert speedup_limit(0.75) == 4
    assert speedup_limit(0) == 1
    assert speedup_limit(1) == math.inf


def test_shares_beyond_the_whole_are_refused():
    with pytest.raises(ValueError, match=r"add up to 1\.2000"):
        end_to_end_speedup([Part(share=0.6, speedup=2), Part(share=0.6, speedup=2)])
    assert end_to_end_speedup(Part(share=0.1, speedup=2) for _ in range(10)) == pytest.approx(2)


@pytest.mark.parametrize("fields", [{"share": 1.1, "speedup": 1}, {"share": 0.5, "speedup": 0}])
def test_part_that_cannot_be_is_refused(fields):
    with pytest.raises(ValidationError):
        Part(**fields)
