"""Specimens that tamper with the environment, attack the host or live off what they memorised.

Each is judged twice: as it is, and with static guards and audit off. The machine is tempting: keys and answers lie
about and a server listens.
"""

from collections.abc import Callable

import pytest

from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import cpu_device
from tests.cheats.conftest import Bar
from tests.cheats.specimen import Specimen, author_candidate, honest_source, problem_of, specimens
from tests.cheats.trial import PLANTED, Earned, judged

LOG_LIMIT = 10_000
HERE = [
    pytest.param(item, id=item.name, marks=[pytest.mark.slow] if item.slow else [])
    for item in specimens("cpu", ("ET", "HA", "ME"))
]

pytestmark = pytest.mark.usefixtures("temptations")


def tells_nothing(earned: Earned) -> bool:
    """Tell whether what is reported is short and carries nothing of what was planted."""
    secrets = [text.strip() for text in PLANTED.values()]
    return len(earned.reason) <= LOG_LIMIT and not any(secret in earned.reason for secret in secrets)


@pytest.mark.parametrize("specimen", HERE)
def test_a_specimen_earns_the_status_that_names_it(specimen: Specimen, bar: Bar) -> None:
    earned = judged(bar.guarded, specimen, cpu_device(), specimen.judged)
    assert (earned.status in specimen.earns, earned.is_a_win, tells_nothing(earned)) == (
        True,
        False,
        True,
    ), earned


@pytest.mark.parametrize("specimen", HERE)
def test_a_specimen_fails_without_guards_and_audit_too(specimen: Specimen, bar: Bar) -> None:
    earned = judged(bar.second(specimen), specimen, cpu_device(), specimen.unguarded)
    assert (earned.is_a_win, tells_nothing(earned)) == (False, True), earned
    assert not specimen.is_native or earned.status in specimen.expected, earned
    assert earned.is_where(specimen.behind), earned


def test_nobody_called_the_server(temptations: Callable[[], int]) -> None:
    assert temptations() == 0


def test_both_judges_work_on_after_all_of_them(bar: Bar) -> None:
    def verdict(client: JudgeClient) -> Status:
        candidate = author_candidate("softmax", "cpp", honest_source("softmax"))
        return client.evaluate(problem_of("softmax", cpu_device()), candidate, Profile.QUICK).status

    assert (verdict(bar.guarded), verdict(bar.unguarded)) == (Status.ACCEPTED, Status.ACCEPTED)
