"""Cheap looks through the real judge: right statuses, an order of speeds, and no trial that harms another one."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kernelwright.core.brief import Trial
from kernelwright.core.candidate import Candidate, Origin, ParamChoice, ParamValue
from kernelwright.core.case import DType
from kernelwright.core.messages.judge import JudgeSettings, Screen
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Screening, Status
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.lock import DeviceLock
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.look_heat import _joined
from kernelwright.judge.stages import Failure
from kernelwright.ops import rmsnorm
from tests.cpu.conftest import cpp

SOURCE = """
#include "kernelwright.h"
#include <cmath>
#include <cstdlib>
/*kernelwright
PARAMS = {"MODE": [GOOD, SLOW, WRONG, BROKEN, CRASH, HANG, LATE], "TWIN": [1, 2]}
*/
#if MODE == BROKEN
#error this value does not build
#endif
extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    static int calls = 0;
    static volatile int64_t spins = 1;
    if (MODE == CRASH || (MODE == LATE && ++calls > 20)) std::abort();
    while (MODE == HANG && spins) ++spins;
    const int64_t cols = x->shape[1];
    const float* w = static_cast<const float*>(weight->data);
    for (int again = 0; again < (MODE == SLOW ? 3 : 1); ++again)
        for (int64_t row = 0; row < x->shape[0]; ++row) {
            const float* from = static_cast<const float*>(x->data) + row * x->stride[0];
            float* to = static_cast<float*>(out->data) + row * out->stride[0];
            double sum = 0;
            for (int64_t i = 0; i < cols; ++i) sum += static_cast<double>(from[i]) * from[i];
            const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(cols) + eps));
            for (int64_t i = 0; i < cols; ++i) to[i] = from[i] * scale * (MODE == WRONG ? 1.0f : w[i]);
            asm volatile("" ::: "memory");
        }
    return KW_OK;
}
"""
GOOD, SLOW, WRONG, BROKEN, CRASH, HANG, LATE = range(7)
NAMES = ("GOOD", "SLOW", "WRONG", "BROKEN", "CRASH", "HANG", "LATE")


def written(own: int = GOOD) -> Candidate:
    """Return the kernel, its own values those of a mode."""
    source = SOURCE
    for number, name in enumerate(NAMES):
        source = source.replace(name, str(number))
    return cpp(source).model_copy(update={"choices": (ParamChoice(values=values(own)),)})


def values(mode: int, twin: int = 1) -> dict[str, ParamValue]:
    return {"MODE": mode, "TWIN": twin}


class Room:
    """A judge, what it says, and where it keeps its builds."""

    def __init__(self, home: Path) -> None:
        self.said: list[str] = []
        self.cache = home / "cache"
        settings = JudgeSettings(
            threads=1,
            max_pairs=1,
            alpha=0.001,
            hidden_shapes=0,
            cache_folder=str(self.cache),
            blob_folder=str(home / "blobs"),
        )
        self.client = JudgeClient(settings, self.said.append)

    def look(
        self,
        problem: Problem,
        candidate: Candidate,
        wanted: Sequence[dict[str, ParamValue]],
        case_hash: str = "",
    ) -> tuple[Screening, ...]:
        where = case_hash or problem.cases[0].hash
        trials = [Trial(candidate_hash=candidate.hash, values=one, case_hash=where) for one in wanted]
        return self.client.screen(problem, candidate, trials)

    def artefacts(self) -> int:
        return len(list(self.cache.glob("*/result.json")))


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    room = Room(tmp_path_factory.mktemp("looks"))
    yield room
    room.client.close()


def statuses(looks: Sequence[Screening]) -> list[Status]:
    return [look.status for look in looks]


def test_every_value_gets_its_own_status_in_the_order_asked(looking: Room, problem: Problem) -> None:
    modes = [WRONG, GOOD, CRASH, BROKEN, HANG, SLOW]
    looks = looking.look(problem, written(), [values(mode) for mode in modes])
    expected = [
        Status.WRONG,
        Status.ACCEPTED,
        Status.CRASHED,
        Status.BUILD_FAILED,
        Status.TIMED_OUT,
        Status.ACCEPTED,
    ]
    assert statuses(looks) == expected, looking.said
    assert [look.values["MODE"] for look in looks] == modes
    assert [look.latency_us is not None for look in looks] == [one is Status.ACCEPTED for one in expected]
    assert {(look.candidate_hash, look.problem_hash, look.case_hash) for look in looks} == {
        (written().hash, problem.hash, problem.cases[0].hash)
    }
    assert any("this value does not build" in text for text in looking.said)


def test_three_times_the_work_ranks_behind_and_repeats_are_measured_anew(
    looking: Room, problem: Problem
) -> None:
    looking.look(problem, written(), [values(GOOD), values(SLOW)])
    built = looking.artefacts()
    began = time.monotonic()
    looks = looking.look(problem, written(), [values(mode) for mode in (SLOW, GOOD, SLOW, GOOD, SLOW, GOOD)])
    assert 0 < sum(look.seconds for look in looks) <= time.monotonic() - began
    times = [look.latency_us or 0.0 for look in looks]
    assert 1.7 * min(times[1::2]) < min(times[0::2]) < 5 * min(times[1::2])
    assert len(set(times)) == 6
    assert looking.artefacts() == built


def test_a_value_that_crashes_only_while_it_is_timed_costs_nobody_else_a_time(
    looking: Room, problem: Problem
) -> None:
    looks = looking.look(problem, written(), [values(GOOD), values(LATE), values(SLOW)])
    assert statuses(looks) == [Status.ACCEPTED, Status.CRASHED, Status.ACCEPTED]
    assert (looks[1].latency_us, (looks[0].latency_us or 0) < (looks[2].latency_us or 0)) == (None, True)


def test_a_candidate_whose_own_values_fail_is_looked_at_all_the_same(looking: Room, problem: Problem) -> None:
    looks = looking.look(problem, written(CRASH), [values(CRASH), values(GOOD), values(SLOW)])
    assert statuses(looks) == [Status.CRASHED, Status.ACCEPTED, Status.ACCEPTED]
    assert 0 < (looks[1].latency_us or 0) < (looks[2].latency_us or 0)


@pytest.mark.parametrize(
    "wanted",
    [
        values(77),
        {"MODE": GOOD},
        {**values(GOOD), "OTHER": 1},
        {"MODE": float(GOOD), "TWIN": 1},
        {"MODE": False, "TWIN": 1},
    ],
    ids=["no such value", "one is missing", "one too many", "a float", "a switch"],
)
def test_a_value_that_params_does_not_offer_is_refused_and_never_built(
    wanted: dict[str, ParamValue], looking: Room, problem: Problem
) -> None:
    built = looking.artefacts()
    looks = looking.look(problem, written(), [wanted])
    assert [(look.status, look.latency_us) for look in looks] == [(Status.REFUSED, None)]
    assert looking.artefacts() == built
    assert "not offered by PARAMS" in looking.said[-1]


def test_a_case_of_another_problem_is_refused(looking: Room, problem: Problem) -> None:
    stranger = rmsnorm.case({"rows": 3, "cols": 5}, DType.FP32)
    looks = looking.look(problem, written(), [values(GOOD)], stranger.hash)
    assert [(look.status, look.case_hash) for look in looks] == [(Status.REFUSED, stranger.hash)]
    assert "none of the problem's" in looking.said[-1]


def test_no_trial_is_no_look(looking: Room, problem: Problem) -> None:
    assert looking.look(problem, written(), []) == ()


def test_a_source_the_guards_refuse_is_refused_for_every_value(looking: Room, problem: Problem) -> None:
    refused = cpp("int main() { return 0; }")
    assert statuses(looking.look(problem, refused, [{}, {}])) == [Status.REFUSED] * 2


def test_what_only_an_interpreter_could_run_has_no_time(looking: Room, problem: Problem) -> None:
    candidate = seed("rmsnorm", "triton", Origin.AUTHOR)
    assert candidate is not None
    looks = looking.look(problem, candidate, [candidate.choices[0].values])
    assert [(look.status, look.latency_us) for look in looks] == [(Status.UNSUPPORTED, None)]


def test_two_cases_in_one_request_are_each_timed_on_their_own(looking: Room, problem: Problem) -> None:
    big = rmsnorm.case({"rows": 1024, "cols": 1024}, DType.FP32)
    both = problem.model_copy(update={"cases": (*problem.cases, big)})
    trials = [
        Trial(candidate_hash=written().hash, values=values(GOOD), case_hash=case.hash)
        for case in (big, problem.cases[0], big)
    ]
    looks = looking.client.screen(both, written(), trials)
    assert [look.case_hash for look in looks] == [trial.case_hash for trial in trials]
    times = [look.latency_us or 0.0 for look in looks]
    assert min(times[0], times[2]) > 4 * times[1] > 0


def test_nobody_is_at_work_on_the_device_while_another_process_times_there(
    looking: Room, problem: Problem
) -> None:
    found: list[tuple[Screening, ...]] = []
    twin = values(GOOD, twin=2)
    built = looking.artefacts()

    def ask() -> None:
        found.append(looking.look(problem, written(), [twin]))

    asking = threading.Thread(target=ask)
    looking.said.clear()
    with DeviceLock(problem.device):
        asking.start()
        deadline = time.monotonic() + 60
        while not any("waiting for" in text for text in looking.said) and time.monotonic() < deadline:
            time.sleep(0.02)
        while looking.artefacts() == built and time.monotonic() < deadline:
            time.sleep(0.02)  # what is built waits for nobody
        assert (looking.artefacts(), found) == (built + 1, [])
    asking.join()
    assert statuses(found[0]) == [Status.ACCEPTED]


def test_preparing_comes_back_at_once_and_spares_a_look_its_build(looking: Room, problem: Problem) -> None:
    fresh = written().model_copy(update={"source": written().source + "\n// another one\n"})
    built, started = looking.artefacts(), time.perf_counter()
    looking.client.prepare(problem, fresh)
    assert looking.artefacts() == built, "nobody waited for the build"
    while looking.artefacts() == built and time.perf_counter() - started < 60:
        time.sleep(0.05)
    assert looking.artefacts() == built + 1
    assert statuses(looking.look(problem, fresh, [values(GOOD)])) == [Status.ACCEPTED]
    assert looking.artefacts() == built + 1


def test_times_are_ratios_to_an_anchor_whose_first_time_is_kept(room: Judge, problem: Problem) -> None:
    wanted = Trial(candidate_hash=written().hash, values=values(SLOW), case_hash=problem.cases[0].hash)
    request = Screen(problem=problem, candidate=written(), trials=(wanted,))
    (first,) = room.screen(request).screenings
    ((key, anchor_us),) = room.anchors.items()
    assert anchor_us < (first.latency_us or 0)
    room.anchors[key] = anchor_us / 100  # as if the machine had been a hundred times faster then
    (second,) = room.screen(request).screenings
    assert (first.latency_us or 0) / 400 < (second.latency_us or 0) < (first.latency_us or 0) / 25
    assert room.anchors == {key: anchor_us / 100}


def test_pairs_timed_apart_are_joined_by_their_anchors() -> None:
    lost = Failure(Status.CRASHED, "it died")
    assert _joined([[lost, lost], [10.0, 20.0], [20.0, 20.0], [lost, 7.0]]) == [10.0, lost, 20.0, 10.0, 7.0]
