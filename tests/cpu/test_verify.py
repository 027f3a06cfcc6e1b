"""The end-to-end check: what counts as drift, and when a splice is shipped."""

import pytest
import torch

from kernelwright.core.messages.model import ModelTimed
from kernelwright.engine.loop import DRIFT_LIMIT, verification
from kernelwright.model.verify import HOPELESS, _rms_error


def timed(spliced_us: float = 90.0, spliced_error: float = 1e-6, calls: int = 9) -> ModelTimed:
    return ModelTimed(
        eager_us=(110.0, 111.0, 109.0),
        captured_us=(100.0, 101.0, 99.0),
        spliced_us=(spliced_us, spliced_us + 1, spliced_us - 1),
        original_error=1e-6,
        spliced_error=spliced_error,
        spliced_calls=calls,
        fallbacks=0,
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_that_answers_nan_is_hopelessly_wrong(bad: float) -> None:
    exact = torch.ones(8, dtype=torch.float64)
    found = torch.ones(8)
    found[3] = bad
    assert _rms_error(found, exact) == HOPELESS
    assert _rms_error(torch.ones(8), exact) == 0


def test_a_faster_splice_within_the_error_is_shipped() -> None:
    found = verification((), [timed()] * 5)
    assert (found.shipped, found.ci_low > 1, found.drift) == (True, True, 1.0)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (timed(spliced_error=2e-6), "drift"),
        (timed(spliced_error=HOPELESS), "drift"),
        (timed(spliced_us=100.0), "interval reaches 1"),
        (timed(spliced_us=120.0), "interval reaches 1"),
        (timed(calls=0), "never called"),
    ],
)
def test_what_does_not_pay_or_drifts_is_not_shipped(one: ModelTimed, words: str) -> None:
    found = verification((), [one] * 5)
    assert (found.shipped, words in found.reason) == (False, True)
    assert DRIFT_LIMIT < 2
