"""Shares, floors, what-if and refusal: the arithmetic of a ranking, on numbers one can check by hand."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.core.account import Account, Against, Kind, Region, ranking, refuse_out_of_reach
from kernelwright.core.amdahl import Hot, gain, reachable, together, within_reach
from kernelwright.core.case import Case, Compute, DType, TensorSpec
from kernelwright.core.device import Ceiling, Ceilings
from kernelwright.core.errors import TargetOutOfReach
from kernelwright.core.roofline import Work

DEVICE = Ceilings(
    reading=Ceiling(fixed_us=2, rate=1e12), copying=Ceiling(fixed_us=2, rate=1e12), flops={"fp32": 1e12}
)
"""A megabyte takes one microsecond, and so does a megaflop."""
TOTAL = 1000.0


def case(name: str) -> Case:
    spec = TensorSpec(name="x", shape=(4, 4), dtype=DType.FP32)
    return Case(
        op=name,
        axes={"rows": 4},
        dtype=DType.FP32,
        compute=Compute.STRICT_FP32,
        inputs=(spec,),
        outputs=(spec,),
    )


def region(name: str, time_us: float, megabytes: int, *, calls: float = 1.0, **given: object) -> Region:
    fields: dict[str, object] = {
        "kind": Kind.OP,
        "op": name,
        "name": name,
        "sites": 1,
        "calls": calls,
        "captured_us": time_us,
        "case": case(name),
        "work": Work(bytes_read=megabytes * 1_000_000, bytes_written=0, flops=0, compute_class="fp32"),
    }
    return Region.model_validate(fields | given)


VIEWS = region("views", 40, 0, kind=Kind.VIEWS, case=None, work=None)
ACCOUNT = Account(total_us=TOTAL, gaps_us=150, rest_us=10)


def test_share_floor_headroom_and_gain_by_hand():
    one = region("softmax", 500, 98, calls=2)
    (row,) = ranking([one], ACCOUNT, DEVICE, Against.EAGER).rows
    assert row.share == pytest.approx(0.5)
    assert row.floor_us == pytest.approx(2 * (2 + 98))
    assert row.headroom == pytest.approx(2.5)
    assert row.gain == pytest.approx(1000 / 700)
    assert row.is_offered


def test_arithmetic_counts_where_it_is_the_longer():
    work = Work(bytes_read=1_000_000, bytes_written=0, flops=248_000_000, compute_class="fp32")
    (row,) = ranking([region("matmul", 500, 0, work=work)], ACCOUNT, DEVICE, Against.EAGER).rows
    assert row.floor_us == pytest.approx(2 + 248)


def test_the_largest_gain_comes_first_not_the_largest_share():
    near = region("matmul", 600, 588)
    far = region("softmax", 200, 8)
    rows = ranking([near, far], ACCOUNT, DEVICE, Against.EAGER).rows
    assert [row.region.name for row in rows] == ["softmax", "matmul"]
    assert rows[0].gain == pytest.approx(1000 / 810)


@pytest.mark.parametrize(
    ("time_us", "is_offered"), [(103.0, False), (103.1, True), (100.0, False), (60.0, False)]
)
def test_a_region_within_three_percent_of_its_floor_is_not_offered(time_us, is_offered):
    (row,) = ranking([region("softmax", time_us, 98)], ACCOUNT, DEVICE, Against.EAGER).rows
    assert row.is_offered is is_offered


def test_a_floor_above_the_time_promises_nothing():
    found = ranking([region("softmax", 60, 98)], ACCOUNT, DEVICE, Against.EAGER)
    (row,) = found.rows
    assert (row.floor_us, row.headroom, row.gain) == (60, 1, 1)
    assert found.together == ()


def test_what_is_no_problem_is_never_offered_though_it_has_a_share():
    found = ranking([VIEWS], ACCOUNT, DEVICE, Against.EAGER)
    (row,) = found.rows
    assert (row.share, row.floor_us, row.headroom, row.is_offered) == (pytest.approx(0.04), 0, None, False)


def test_the_baseline_decides_whose_time_counts():
    one = region("softmax", 500, 98, compiled_us=200.0)
    compiled = Account(total_us=400, gaps_us=0, rest_us=0)
    eager = ranking([one], ACCOUNT, DEVICE, Against.EAGER).rows[0]
    other = ranking([one], compiled, DEVICE, Against.COMPILED).rows[0]
    assert (eager.time_us, eager.share) == (500, 0.5)
    assert (other.time_us, other.share, other.gain) == (200, 0.5, pytest.approx(400 / 300))


def test_what_if_of_the_first_k_and_the_limit_by_hand():
    regions = [region("matmul", 500, 198), region("softmax", 300, 98), VIEWS]
    found = ranking(regions, ACCOUNT, DEVICE, Against.EAGER)
    assert found.together == pytest.approx((1000 / 700, 1000 / 500))
    assert found.limit == pytest.approx(1000 / (200 + 100)), "no gaps, no views, every region at its floor"


PARTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6)


@given(PARTS)
def test_more_parts_never_gain_less_and_the_limit_is_never_passed(drawn):
    parts = [Hot(time_us=time * 100, floor_us=floor * 100) for time, floor in drawn]
    total = sum(part.time_us for part in parts) + 50
    steps = together(parts, total)
    assert all(later >= earlier for earlier, later in pairwise(steps))
    assert 1 <= steps[-1] <= reachable(parts, total) * (1 + 1e-9)
    assert steps[-1] == pytest.approx(gain(parts, total))


@given(st.floats(0.1, 100), st.floats(0, 100))
def test_within_reach_means_that_something_is_to_be_won(time_us, floor_us):
    part = Hot(time_us=time_us, floor_us=floor_us)
    assert within_reach(part) == (gain([part], time_us) > 1.03 or part.least_us == 0)


def test_a_target_beyond_the_floors_is_refused_with_the_arithmetic():
    found = ranking([region("matmul", 900, 498)], ACCOUNT, DEVICE, Against.EAGER)
    assert found.limit == pytest.approx(2)
    refuse_out_of_reach("m.py:build", 2.0, found)
    with pytest.raises(TargetOutOfReach) as caught:
        refuse_out_of_reach("m.py:build", 3.0, found)
    assert str(caught.value) == (
        "A speed-up of 3 is out of reach for 'm.py:build': eager takes 1.000 ms, the floors of the model's 1 regions "
        "add up to 0.500 ms without any gaps, and 1.000 / 0.500 = 2.00. Ask for --target-speedup 2 or less."
    )


def test_the_rest_of_an_account_is_a_share_whatever_its_sign():
    assert Account(total_us=200, gaps_us=0, rest_us=-5).rest_share == pytest.approx(0.025)
    assert ACCOUNT.rest_share == pytest.approx(0.01)
