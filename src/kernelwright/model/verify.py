"""The model with winners against the model without: outputs against float64, and paired end-to-end times."""

import copy
import random
import time

import torch

from kernelwright.core.messages.model import ModelTimed, Winner
from kernelwright.model.load import Loaded
from kernelwright.model.splice import Tally, compiled_with

WARM_UP = 3
CHECKED_INPUTS = 2
HOPELESS = 1e30
"""An error no limit admits; messages carry no infinity."""


def _rms_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative rms error; beyond every limit if an element is not finite where float64 is."""
    if not torch.equal(torch.isfinite(found), torch.isfinite(exact)):
        return HOPELESS
    finite = torch.isfinite(exact)
    error = (found.double() - exact)[finite].square().mean().sqrt()
    return float(error / exact[finite].square().mean().sqrt())


def verify(loaded: Loaded, winners: tuple[Winner, ...], rounds: int, seed: int) -> ModelTimed:
    """Return raw times of three arms in random order per round: eager, captured as is, captured with the winners."""
    rng, tally = random.Random(seed), Tally()
    torch._dynamo.reset()
    captured = compiled_with(loaded.module, (), Tally())
    # A module of its own, or dynamo would serve both arms from one cache entry. Weights are shared.
    twin = copy.copy(loaded.module)
    spliced = compiled_with(twin, winners, tally)
    arms = {"eager": loaded.module, "captured": captured, "spliced": spliced}
    times: dict[str, list[float]] = {name: [] for name in arms}
    with torch.inference_mode():
        errors = _errors(loaded, spliced)
        for number in range(WARM_UP + rounds):
            inputs = loaded.sample_inputs(rng.getrandbits(31))
            order = list(arms)
            rng.shuffle(order)
            for name in (*order, *reversed(order)):
                started = time.perf_counter()
                arms[name](*inputs)
                if number >= WARM_UP:
                    times[name].append((time.perf_counter() - started) * 1e6)
    return ModelTimed(
        eager_us=tuple(times["eager"]),
        captured_us=tuple(times["captured"]),
        spliced_us=tuple(times["spliced"]),
        original_error=errors[0],
        spliced_error=errors[1],
        spliced_calls=tally.spliced,
        fallbacks=tally.fallbacks,
    )


def _errors(loaded: Loaded, spliced: object) -> tuple[float, float]:
    """Return the largest error of the original and of the spliced model against float64 over several inputs."""
    exact_model = copy.deepcopy(loaded.module).double()
    worst = [0.0, 0.0]
    for number in range(CHECKED_INPUTS):
        inputs = loaded.sample_inputs(1000 + number)
        exact = exact_model(*(item.double() if item.is_floating_point() else item for item in inputs))
        for place, model in enumerate((loaded.module, spliced)):
            assert callable(model)
            worst[place] = max(worst[place], _rms_error(model(*inputs), exact))
    return worst[0], worst[1]
