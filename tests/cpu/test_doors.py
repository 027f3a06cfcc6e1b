"""Inputs of calls that are not made are closed to the runner: what is read then, and what stays open."""

import os
from pathlib import Path

import pytest

from kernelwright.core.messages.runner import Region
from kernelwright.worker.mapping import Doors, map_region


def readable(addresses: list[int]) -> list[bool]:
    """Tell which addresses this process may read, by the kernel's own list."""
    spans = [line.split()[:2] for line in Path("/proc/self/maps").read_text().splitlines()]
    found = []
    for address in addresses:
        bounds = [(access, *(int(end, 16) for end in span.split("-"))) for span, access in spans]
        found += [access.startswith("r") for access, low, high in bounds if low <= address < high]
    return found


@pytest.fixture
def inputs() -> list[int]:
    """Return the addresses of three regions of one file."""
    descriptor = os.memfd_create("inputs")
    os.ftruncate(descriptor, 3 * 4096)
    regions = [Region(slab="inputs", offset=4096 * place, length=4096, start=0) for place in range(3)]
    found = [map_region(descriptor, region, writable=False) for region in regions]
    os.close(descriptor)
    return found


def test_closed_inputs_open_again_when_others_are_closed(inputs: list[int]) -> None:
    doors = Doors([[(address, 4096)] for address in inputs])
    assert readable(inputs) == [True, True, True]
    doors.close((0, 2))
    assert readable(inputs) == [False, True, False]
    doors.close((1,))
    assert readable(inputs) == [True, False, True]
    doors.close(())
    assert readable(inputs) == [True, True, True]


def test_what_an_open_call_shares_stays_open(inputs: list[int]) -> None:
    shared, first, second = ((address, 4096) for address in inputs)
    doors = Doors([[shared, first], [shared, second]])
    doors.close((0,))
    assert readable(inputs) == [True, False, True]
