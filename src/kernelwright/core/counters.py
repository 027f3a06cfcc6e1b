"""`CounterProfile`: what hardware counters said of one candidate on one case, kernel by kernel and as a whole.

A profile without counters still says which kernels took the time, and why there are no counters, in one typed word.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from pydantic import Field

from kernelwright.core.diagnosis import Metric, MetricSource
from kernelwright.core.foreign import Visible
from kernelwright.core.frozen import Frozen

TIME = "gpu__time_duration.sum"
"""The profiler's own name of a kernel's time, in nanoseconds."""
SUMMED = ".sum"
"""How a metric ends that is added up over kernels; every other one is averaged, weighted by time."""


class NoCounters(StrEnum):
    """Why there are no hardware counters."""

    NONE = ""
    """There are."""
    NOT_INSTALLED = "not_installed"
    """The profiler is not on this machine."""
    NOT_PERMITTED = "not_permitted"
    """The driver gives counters to administrators only."""
    NOT_SUPPORTED = "not_supported"
    """The machine's runtime or the device does not let the profiler in."""
    HOST_CODE = "host_code"
    """The candidate has host code of its own, which no process of ours runs unconfined."""
    TIMED_OUT = "timed_out"
    """The profiler did not end in time."""
    FAILED = "failed"
    """The profiler or the launcher under it failed otherwise."""

    @property
    def is_lasting(self) -> bool:
        """Tell whether the machine is the reason, so that the next candidate would fare no better."""
        return self in (NoCounters.NOT_INSTALLED, NoCounters.NOT_PERMITTED, NoCounters.NOT_SUPPORTED)


class KernelCounters(Frozen):
    """One kernel of a call, as the median over the profiled calls."""

    name: str
    """The kernel's name, as the compiled code has it."""
    time_us: float = Field(ge=0)
    """Time of its launch."""
    share: float = Field(ge=0, le=1)
    """Share of the call's kernel time; the shares of a call add up to one."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Counters by the profiler's own names, in its base units."""


class CounterProfile(Frozen):
    """A call of a candidate on a case under a profiler, after it was warmed up."""

    case_hash: str
    """What was profiled."""
    label: str = ""
    """The same in words."""
    tool: str = ""
    """The profiler and its version; empty if none ran."""
    calls: int = Field(default=0, ge=0)
    """Calls looked at."""
    kernels: tuple[KernelCounters, ...] = ()
    """Every launch of a call, in order."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Counters of the whole call: sums added up, everything else averaged by time."""
    missing: tuple[str, ...] = ()
    """Counters that were wanted and that this profiler or machine does not have."""
    seconds: float = Field(default=0.0, ge=0)
    """Wall time it took; none if it was known already."""
    lack: NoCounters = NoCounters.NONE
    """Why there are no hardware counters; a CPU's kernel still counts some things itself."""
    reason: Visible = ""
    """The same in one line, with the remedy; or why some are missing."""

    @property
    def is_hopeless(self) -> bool:
        """Tell whether there is nothing to count on this machine, now or for the next candidate."""
        return self.lack.is_lasting and not self.metrics

    @property
    def time_us(self) -> float:
        """Return the kernel time of a call."""
        return sum(kernel.time_us for kernel in self.kernels)

    def as_metrics(self) -> tuple[Metric, ...]:
        """Return the counters of the whole call as the judge of bottlenecks takes them."""
        return tuple(
            Metric(
                name=name, value=value, unit="%" if name.endswith("pct") else "", source=MetricSource.COUNTER
            )
            for name, value in sorted(self.metrics.items())
        )


def shares(times_us: Sequence[float]) -> list[float]:
    """Return each time's share of their sum."""
    whole = sum(times_us)
    return [one / whole if whole else 1 / len(times_us) for one in times_us]


def of_call(kernels: Sequence[KernelCounters]) -> dict[str, float]:
    """Return the counters of a whole call from those of its kernels; one that a kernel lacks is left out."""
    if not kernels:
        return {}
    common = set.intersection(*(set(kernel.metrics) for kernel in kernels))
    return {name: _over(kernels, name) for name in sorted(common)}


def _over(kernels: Sequence[KernelCounters], name: str) -> float:
    if name.endswith(SUMMED):
        return sum(kernel.metrics[name] for kernel in kernels)
    return sum(kernel.share * kernel.metrics[name] for kernel in kernels)


def middle(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every metric that all rows have."""
    from statistics import median

    common = set.intersection(*(set(row) for row in rows)) if rows else set()
    return {name: median(row[name] for row in rows) for name in sorted(common)}
