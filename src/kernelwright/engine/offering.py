"""From a ranking to the problems a run works on: the most end-to-end time to win first, and why others are left out."""

from collections.abc import Sequence
from pathlib import Path

from kernelwright.backends import _compute_sanitizer
from kernelwright.core import plugins
from kernelwright.core.account import Ranking, Row
from kernelwright.core.candidate import Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import BackendUnavailable
from kernelwright.core.events import ModelRanked, RankedRegion
from kernelwright.core.problem import Problem
from kernelwright.engine.regions import reference_of
from kernelwright.engine.seeds import seed, seed_file
from kernelwright.hardware.detect import devices

LANGUAGES = {
    DeviceKind.CPU: ("cpp",),
    DeviceKind.CUDA: ("triton", "cuda"),
    DeviceKind.ROCM: ("triton",),
}
"""What `--backend auto` tries on a device, in this order."""
NO_AUTHOR = "no author for it yet"
AT_FLOOR = "within 3 % of its floor"
NO_PROBLEM = "no kernel type, left alone"


def refuse_unusable(config: RunConfig) -> None:
    """Raise for a language that is unknown or that this machine cannot use, whatever the model."""
    if config.backend == "auto":
        return
    backend = plugins.load("backends", config.backend)
    status = backend.available()
    if not status.usable:
        raise BackendUnavailable(config.backend, status.detail, status.remedy)
    if backend.TIER == "A" and all(one.kind is DeviceKind.CPU for one in devices()):
        remedy = "On a CPU pass --backend cpp."
        raise BackendUnavailable(config.backend, "a GPU to be timed on", remedy)


def languages(config: RunConfig, device: Device) -> tuple[str, ...]:
    """Return the languages to try on the model's device, refusing one that cannot be used there."""
    if config.backend == "auto":
        wanted = LANGUAGES[device.kind]
        usable = tuple(name for name in wanted if plugins.load("backends", name).available().usable)
        if not usable:
            status = plugins.load("backends", wanted[0]).available()
            raise BackendUnavailable(wanted[0], status.detail, status.remedy)
        return usable
    is_planned = plugins.load("backends", config.backend).TIER == "A"
    if is_planned and device.kind is DeviceKind.CPU:
        raise BackendUnavailable(config.backend, "the model on a GPU", "Pass --device cuda.")
    if config.backend == "cpp" and device.kind is not DeviceKind.CPU:
        raise BackendUnavailable("cpp", "the model on a CPU", "Pass --device cpu.")
    return (config.backend,)


def refuse_unwatched(backends: Sequence[str], device: Device) -> None:
    """Raise where plans would be searched for that nobody could ship: on an NVIDIA GPU without compute-sanitizer."""
    if device.kind is not DeviceKind.CUDA or _compute_sanitizer.program() is not None:
        return
    planned = [name for name in backends if plugins.load("backends", name).TIER == "A"]
    if planned:
        remedy = "`pip install nvidia-cuda-sanitizer-api`, or put the CUDA toolkit's on PATH."
        raise BackendUnavailable(planned[0], "compute-sanitizer, under which every winner is run", remedy)


def offered(
    order: Ranking,
    device: Device,
    backends: Sequence[str],
    top: int,
    eager_us: float,
    *,
    drafts: bool = False,
    regions_in: Path | None = None,
) -> tuple[list[Problem], ModelRanked]:
    """Return the problems to work on, largest gain first, and the whole ranking with what became of every region.

    With `drafts` an author can begin with the reference alone: a region needs no seed. `regions_in` is where the files
    of captured regions lie; without it none of them is offered.
    """
    chosen: dict[tuple[str, str, str], list[Row]] = {}
    regions = []
    for row in order.rows:
        region, skipped = row.region, _skipped(row, backends, drafts)
        if region.captured is not None and regions_in is None:
            skipped = skipped or NO_AUTHOR
        if region.work is None:
            continue
        if not skipped and region.case is not None:
            # The same case may be written in several forms; one kernel serves them all.
            key = (region.op, region.case.hash, region.captured.source if region.captured else "")
            if key in chosen or len(chosen) < top:
                chosen.setdefault(key, []).append(row)
            else:
                skipped = f"beyond --top {top}"
        regions.append(
            RankedRegion(
                name=region.name, op=region.op, count=region.sites, share=row.share, gain=row.gain, skipped=skipped
            )
        )  # fmt: skip
    problems = [_problem(rows, device, regions_in) for rows in chosen.values()]
    ranked = ModelRanked(
        against=order.against,
        total_us=order.account.total_us,
        eager_us=eager_us,
        limit=order.limit,
        regions=tuple(regions),
    )
    return problems, ranked


def _skipped(row: Row, backends: Sequence[str], drafts: bool) -> str:
    region = row.region
    if region.case is None:
        return NO_PROBLEM
    if not row.is_offered:
        return AT_FLOOR
    if region.captured is not None:
        made = region.captured
        if drafts or any(name in made.kernels for name in backends):
            return ""
        return f"no plain loops for {made.not_plain}" if made.not_plain else NO_AUTHOR
    if seed(region.op, "eager", Origin.BASELINE) is None:
        return NO_AUTHOR
    return "" if drafts or any(seed_file(region.op, name) for name in backends) else NO_AUTHOR


def _problem(rows: Sequence[Row], device: Device, regions_in: Path | None) -> Problem:
    case, captured = rows[0].region.case, rows[0].region.captured
    assert case is not None, "only a region with a case is offered"
    return Problem(
        op=case.op,
        cases=(case,),
        device=device,
        reference=reference_of(captured, regions_in) if captured and regions_in else None,
        captured=captured,
        count=sum(row.region.sites for row in rows),
        share=min(1.0, sum(row.share for row in rows)),
    )
