"""Winners as functions of addresses in the user's own process: certified files, checked before they are loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from kernelwright.backends._bare_launch import NativeKernel, PlannedKernel
from kernelwright.backends._bare_table import other_device
from kernelwright.core.errors import BlobMissing, DeviceMissing
from kernelwright.core.messages.model import Winner
from kernelwright.core.plan import kernel_unit
from kernelwright.store.manifest import certified

Kernel = Callable[..., int]
"""Takes the addresses of inputs and outputs in the case's order; answers 0, or a number if it declines."""


def is_home(winner: Winner, device: torch.device) -> bool:
    """Tell whether a winner was certified on such a device: a machine may have several kinds of them."""
    where = winner.device.model_dump(mode="json") if winner.device else None
    kind = "cpu" if winner.plan is None else "cuda"
    return bool(device.type == kind and not other_device(where, device.index))


def check(winner: Winner) -> None:
    """Raise unless every file of a winner is what was certified, and the device it was certified on is here."""
    where = winner.device.model_dump(mode="json") if winner.device else None
    count = torch.cuda.device_count() if winner.plan is not None else 1
    problems = [other_device(where, index) for index in range(max(1, count))]
    if all(problems):
        title = winner.device.title if winner.device else ""
        raise DeviceMissing(title, f"it is {problems[0]}", "Optimise the model on this machine.")
    if winner.plan is None:
        certified(Path(winner.artefact), winner.artefact_hash)
    for unit in winner.units:
        certified(Path(unit.binary), unit.binary_hash)
        certified(Path(unit.facts), unit.facts_hash)


def open_winner(winner: Winner, device: torch.device | None = None) -> Kernel:
    """Load a certified kernel on a device, refusing one whose content is not what was certified."""
    case = winner.case.model_dump(mode="json")
    if winner.plan is None:
        content = certified(Path(winner.artefact), winner.artefact_hash)
        return NativeKernel(content, case, winner.artefact)
    units = {
        unit.key: (
            certified(Path(unit.binary), unit.binary_hash),
            certified(Path(unit.facts), unit.facts_hash),
        )
        for unit in winner.units
    }
    kernels = []
    for launch in winner.plan.launches:
        key = kernel_unit(launch, winner.case).hash[:16]
        if key not in units:
            raise BlobMissing(key, f"is launched by the plan of {winner.case.label} but not among its files")
        kernels.append((units[key][0], json.loads(units[key][1])))
    index = device.index if device is not None and device.index is not None else 0
    return PlannedKernel(case, winner.plan.model_dump(mode="json"), kernels, index)
