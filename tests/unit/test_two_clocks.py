"""How the benchmark sums up what two clocks say of the same replays."""

from benchmarks.judge_validity import CLOCKED, clocks_summary


def rows(name: str, *ratios: float) -> list[dict[str, object]]:
    """Return looks at one kernel whose replays take 5 ms by their events."""
    return [
        {"key": f"clocks/cuda/{name}/{number:04d}", "events_ms": 5.0, "slope_ms": 5.0 * ratio}
        for number, ratio in enumerate(ratios)
    ]


def test_clocks_are_told_as_a_ratio_with_its_spread_and_the_worst_kernel() -> None:
    looks = [*rows("softmax-cuda", 1.001, 1.002, 1.006), *rows("reduce-cuda", 0.996, 0.996, 1.5)]
    assert clocks_summary([*looks, {"key": "aa/cuda/A/00000"}]) == {
        "wall clock over events": {
            "reduce-cuda": {"looks": 3, "median ratio": 0.996, "spread (median deviation)": 0.0},
            "softmax-cuda": {"looks": 3, "median ratio": 1.002, "spread (median deviation)": 0.001},
            "worst median off by": 0.004,
        }
    }


def test_without_looks_nothing_is_said_of_clocks() -> None:
    assert clocks_summary([{"key": "aa/cuda/A/00000"}]) == {}


def test_five_kernels_are_looked_at_each_under_a_name_of_its_own() -> None:
    assert len({(kernel.op, kernel.backend) for kernel in CLOCKED}) == len(CLOCKED) == 5
