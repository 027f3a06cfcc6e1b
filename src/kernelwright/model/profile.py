"""Where the model's time goes, measured: end to end under eager, captured and compiled, and region by region.

1. Each way of running the model is called on every weighted set of inputs, warm, the calls of all ways interleaved.
2. One of them is the captured graph with marks (`model/marks`): it tells the time of every operation, and with that
   of every region. What it accounts for is compared with the same graph without marks; the difference is the rest.
3. torch.compile's kernels go to the regions they were made of (`model/inductor`); where that is not known, its time
   is shared out like the captured graph's, and said to be so.
"""

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, quantiles

import torch

from kernelwright.core.account import Account, Region, SetTimes, Spread
from kernelwright.core.messages.model import GraphBreak, ModelProfiled, ProfileModel
from kernelwright.model.arms import VALUES, Arms, SetSamples, blocks, sample
from kernelwright.model.capture import Capture, backend
from kernelwright.model.compiled_account import CompiledAccount, compiled_account, middle
from kernelwright.model.dry_run import USER_MISTAKES, said
from kernelwright.model.export import write_memory, write_trace
from kernelwright.model.extract import extract
from kernelwright.model.inductor import Compiler, profiled
from kernelwright.model.load import Loaded
from kernelwright.model.marks import Key, Watch, busy_us, marked_times
from kernelwright.model.partition import Partition, partition, summed

Show = Callable[[str], None]
DEVICE_CALLS = 10
RECOMPILES = 64
"""Shapes dynamo may compile one model for; its own 8 are fewer than a model can have sets."""


@contextmanager
def _dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(recompile_limit=RECOMPILES):
            yield
    finally:
        torch._dynamo.reset()


def profile(loaded: Loaded, request: ProfileModel, show: Show) -> ModelProfiled:
    """Return where a model's time goes."""
    with _dynamo(), loaded.calling():
        arms = _arms(loaded)
        for one in loaded.sets:
            show(f"capturing {loaded.spec}, set {one.name!r}")
            for number in range(VALUES):  # other values may take another way through the model
                one.make(number).call(arms.captured)
        show("looking for regions")
        rows = partition(arms.watch.graphs, arms.watch.names, extract(Capture(arms.watch.graphs)))
        if request.with_compiled:
            _compile(arms, show)
        else:
            arms.compiled, arms.compile_error = None, "not asked for"
        samples = []
        for one in loaded.sets:
            show(f"timing set {one.name!r}")
            samples.append(sample(arms, one, request.seconds))
        account, times = captured_account(arms, samples)
        under = compiled_account(arms.compiler, arms.watch, rows, times)
        if arms.compiled is not None:
            show("profiling the kernels of torch.compile")
            for found in samples:
                under.add(
                    blocks(arms, found.one, request.seconds),
                    median(found.walls["compiled"]),
                    found.one.weight,
                )
        notes = exported(arms, rows, request, show)
        return _answer(arms, samples, rows, (account, times, under), notes)


def _arms(loaded: Loaded) -> Arms:
    watch, compiler = Watch(), Compiler()
    module = loaded.module
    captured = torch.compile(module, backend=backend(module, watch.finish, watch.aside), dynamic=False)
    # A module of its own, or dynamo would serve both from one cache entry. Weights are shared.
    compiled = torch.compile(copy.copy(module), backend=compiler.backend, dynamic=False)
    return Arms(loaded, watch, captured, compiled, compiler)


def _compile(arms: Arms, show: Show) -> None:
    """Compile for every set; that it fails is a result like any other."""
    assert arms.compiled is not None
    started = time.perf_counter()
    try:
        for one in arms.loaded.sets:
            show(f"torch.compile, set {one.name!r}")
            for number in range(VALUES):
                one.make(number).call(arms.compiled)
    except USER_MISTAKES as error:
        arms.compiled, arms.compile_error = None, said(error)
    arms.compile_s = time.perf_counter() - started


def set_times(found: SetSamples) -> tuple[dict[Key, float], float, float]:
    """Return a set's time per operation, outside operations, and the rest, as they add up to the captured time."""
    total = median(found.walls["captured"])
    accounted = total * median(found.ratios())
    kept = middle(found.accounted)
    whole = mean(found.accounted[place] for place in kept)
    times, cost = {}, found.stamp_cost.us
    for key in {key for place in kept for key in found.times[place]}:
        raw = mean(found.times[place].get(key, 0.0) for place in kept)
        times[key] = accounted / whole * max(0.0, raw - found.runs.get(key[0], 0.0) * cost)
    return times, max(0.0, accounted - sum(times.values())), total - accounted


def captured_account(arms: Arms, samples: Sequence[SetSamples]) -> tuple[Account, dict[Key, float]]:
    """Return the account of the captured graph over all sets, and the time of every operation."""
    total = gaps = rest = 0.0
    times: dict[Key, float] = defaultdict(float)
    for found in samples:
        weight = found.one.weight
        own, outside, left = set_times(found) if not arms.on_gpu else device_times(arms, found)
        total += weight * median(found.walls["captured"])
        gaps, rest = gaps + weight * outside, rest + weight * left
        for key, us in own.items():
            times[key] += weight * us
    return Account(total_us=total, gaps_us=gaps, rest_us=rest), dict(times)


def device_times(arms: Arms, found: SetSamples) -> tuple[dict[Key, float], float, float]:
    """Return a set's time per operation on a GPU, the time it is idle, and kernels that belong to no operation."""
    given = found.one.make(0)
    if not any("annotated" in forms for forms in arms.watch.forms):
        arms.watch.annotate({})
    eager = profiled(lambda: given.call(arms.loaded.module), DEVICE_CALLS, on_gpu=True)
    found.eager_busy_us = busy_us(eager) / DEVICE_CALLS
    plain = profiled(lambda: given.call(arms.captured), DEVICE_CALLS, on_gpu=True)
    arms.watch.form = "annotated"
    marked = profiled(lambda: given.call(arms.captured), DEVICE_CALLS, on_gpu=True)
    arms.watch.form = "plain"
    times = {key: us / DEVICE_CALLS for key, us in marked_times(marked, on_gpu=True).items()}
    busy, total = busy_us(plain) / DEVICE_CALLS, median(found.walls["captured"])
    gaps = max(0.0, total - busy)
    return times, gaps, total - gaps - sum(times.values())


def exported(arms: Arms, rows: Partition, request: ProfileModel, show: Show) -> list[str]:
    """Write the trace and the memory snapshot that were asked for; return a line on each."""
    notes = []
    given = arms.loaded.sets[0].make(0)
    if request.trace_file is not None:
        show(f"writing {request.trace_file}")
        arms.watch.annotate({key: rows.parts[row].name for key, row in rows.owner.items()})
        ways = {"eager": arms.loaded.module, "captured": arms.captured, "compiled": arms.compiled}
        notes.append(write_trace(ways, arms.watch, given, Path(request.trace_file)))
    if request.memory_file is not None:
        path = Path(request.memory_file)
        notes.append(write_memory(arms.loaded.module, given, arms.loaded.device, path))
    return notes


def _spread(values: Sequence[float]) -> Spread:
    low, mid, high = quantiles(values, n=4)
    return Spread(median_us=mid, low_us=low, high_us=high, calls=len(values))


def _answer(
    arms: Arms,
    samples: Sequence[SetSamples],
    rows: Partition,
    accounts: tuple[Account, dict[Key, float], CompiledAccount],
    notes: Sequence[str],
) -> ModelProfiled:
    account, times, under = accounts
    weights = {
        number: sum(s.one.weight * s.runs.get(number, 0.0) for s in samples)
        for number in range(len(arms.watch.graphs))
    }
    own = summed(times, rows)
    compiled = (
        sum(s.one.weight * median(s.walls["compiled"]) for s in samples)
        if arms.compiled is not None
        else None
    )
    below, without = under.shared_out() if compiled is not None else ([None] * len(own), 0.0)
    regions = [
        Region(
            kind=part.kind, op=part.op, name=part.name, where=part.where, sites=len(part.graphs),
            calls=sum(weights[number] for number in part.graphs), captured_us=us, compiled_us=there,
            is_estimated=under.is_estimated and there is not None, work=part.work, case=part.case,
            captured=part.captured,
        )
        for part, us, there in zip(rows.parts, own, below, strict=True)
    ]  # fmt: skip
    return ModelProfiled(
        device=str(arms.loaded.device),
        sets=tuple(_set_times(found) for found in samples),
        regions=tuple(regions),
        eager=_eager(arms, samples, sum(own)),
        captured=account,
        compiled=None if compiled is None else _difference(compiled, under.busy_us, without),
        kernels=under.kernels,
        linked=under.linked,
        compile_s=arms.compile_s,
        compile_error=arms.compile_error,
        operations=sum(map(len, arms.watch.names)),
        graphs=len(arms.watch.graphs),
        breaks=tuple(
            GraphBreak(reason=one.ended_by.reason, where=one.ended_by.where)
            for one in arms.watch.graphs
            if one.ended_by
        ),
        notes=tuple(notes),
    )


def _set_times(found: SetSamples) -> SetTimes:
    walls = found.walls
    return SetTimes(
        name=found.one.name,
        weight=found.one.weight,
        eager=_spread(walls["eager"]),
        captured=_spread(walls["captured"]),
        compiled=_spread(walls["compiled"]) if "compiled" in walls else None,
    )


def _eager(arms: Arms, samples: Sequence[SetSamples], inside: float) -> Account:
    """Return the account of the model as written: kernels as in the captured graph, on a GPU idle time of its own."""
    total = sum(s.one.weight * median(s.walls["eager"]) for s in samples)
    if not arms.on_gpu:
        return _difference(total, inside, 0.0)
    gaps = max(0.0, total - sum(s.one.weight * s.eager_busy_us for s in samples))
    return Account(total_us=total, gaps_us=gaps, rest_us=total - gaps - inside)


def _difference(total: float, inside: float, without: float) -> Account:
    """Return an account whose gaps are what the kernels leave of the time; `without` of them belong to no region."""
    return Account(
        total_us=total, gaps_us=max(0.0, total - inside), rest_us=min(0.0, total - inside) + without
    )
