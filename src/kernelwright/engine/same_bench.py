"""One run, one bench: every verdict of a run is by one version of the judge's rules and from one device.

A title, a product of evidence and a certified time are only worth something beside others from the same bench. A run
that is taken up after either has changed would mix them, so it is refused, with the way to go on.
"""

from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import CannotResume
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import JUDGE_VERSION
from kernelwright.hardware.detect import cpu_device, devices

TELLING = ("name", "arch", "driver", "units")
"""What a device's times depend on; how much memory a process may have differs from one sitting to the next."""


def rules_of(tree: Tree) -> list[str]:
    """Return the versions of the judge's rules that a run's verdicts and comparisons are by."""
    verdicts = {one.judge_version for node in tree.nodes.values() for one in node.evaluations}
    comparisons = {one.judge_version for node in tree.nodes.values() for one in node.comparisons}
    return sorted(verdicts | comparisons)


def refuse_other_rules(run_id: str, tree: Tree) -> None:
    """Raise for a run that holds verdicts by other rules than the judge's present ones."""
    found = rules_of(tree)
    if found and found != [JUDGE_VERSION]:
        named = " and ".join(found)
        raise CannotResume(run_id, f"it was judged by version {named} of the rules, this is {JUDGE_VERSION}")


def refuse_other_device(run_id: str, device: Device) -> None:
    """Raise for a run whose device is not here any more as it was."""
    near = [cpu_device()] if device.kind is DeviceKind.CPU else devices()
    here = next((one for one in near if (one.kind, one.index) == (device.kind, device.index)), None)
    if here is None:
        raise CannotResume(run_id, f"its device {device.title} is not here")
    changes = [
        f"{name} {getattr(device, name)} is now {getattr(here, name)}"
        for name in TELLING
        if getattr(device, name) != getattr(here, name)
    ]
    if changes:
        raise CannotResume(run_id, f"its device {device.title} has changed: {', '.join(changes)}")
