"""Specimens that forge times, depend on luck or history, break memory and get away with it, or trade sizes.

Each is judged twice: as it is, and with static guards and audit off.
"""

import pytest

from kernelwright.hardware.detect import cpu_device
from tests.cheats.conftest import Bar
from tests.cheats.specimen import Specimen, specimens
from tests.cheats.trial import judged

HERE = [
    pytest.param(item, id=item.name, marks=[pytest.mark.slow] if item.slow else [])
    for item in specimens("cpu", ("TF", "ND", "MS", "PG"))
]


@pytest.mark.parametrize("specimen", HERE)
def test_a_specimen_earns_the_status_that_names_it(specimen: Specimen, bar: Bar) -> None:
    earned = judged(bar.guarded, specimen, cpu_device(), specimen.judged)
    assert (earned.status in specimen.earns, earned.is_a_win) == (True, False), earned


@pytest.mark.parametrize("specimen", HERE)
def test_a_specimen_fails_without_guards_and_audit_too(specimen: Specimen, bar: Bar) -> None:
    earned = judged(bar.second(specimen), specimen, cpu_device(), specimen.unguarded)
    assert not earned.is_a_win, earned
    assert not specimen.is_native or earned.status in specimen.expected, earned
    assert earned.is_where(specimen.behind), earned
