"""Equal GPUs: a process that sees another one in the place of its own measures there, and knows no difference.

The driver numbers what a variable lists, in that order. With two numbers exchanged in it, `cuda:0` is another piece of
silicon of the same kind: problems, verdicts and the journal name one device, and the lock, which goes by UUID, is the
other's.
"""

from collections.abc import Mapping, Sequence

from kernelwright.core.device import Device, DeviceKind

VISIBLE = {DeviceKind.CUDA: "CUDA_VISIBLE_DEVICES", DeviceKind.ROCM: "HIP_VISIBLE_DEVICES"}


def in_its_place(
    device: Device, every: Sequence[Device], environment: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return for every GPU that differs by its number alone the variable that puts it in the place of this one."""
    if device.kind is DeviceKind.CPU:
        return []
    name, count = VISIBLE[device.kind], sum(one.kind is device.kind for one in every)
    order = (environment.get(name) or ",".join(map(str, range(count)))).split(",")
    twins = [
        one for one in every if one != device and one.model_copy(update={"index": device.index}) == device
    ]
    if max([device.index, *(one.index for one in twins)]) >= len(order):
        return []  # the driver counts otherwise than the variable
    found = []
    for twin in twins:
        exchanged = list(order)
        exchanged[device.index], exchanged[twin.index] = order[twin.index], order[device.index]
        found.append({name: ",".join(exchanged)})
    return found
