"""From a model's name to a ranking: the model process measures, the device's ceilings give the floors."""

from pathlib import Path

from kernelwright.core.account import Against, Ranking, ranking
from kernelwright.core.errors import ServiceDied
from kernelwright.core.messages.model import ModelProfiled, ProfileModel
from kernelwright.engine.service import Show, ask_model
from kernelwright.hardware.calibrate import ceilings
from kernelwright.hardware.detect import torch_device


def profiled(request: ProfileModel, show: Show) -> ModelProfiled:
    """Return where a model's time goes."""
    answer = ask_model(request, show)
    if not isinstance(answer, ModelProfiled):
        raise ServiceDied("model", f"answered {type(answer).__name__} to ProfileModel")
    return answer


def ranked(found: ModelProfiled, home: Path, against: Against, show: Show) -> Ranking:
    """Return the regions by what they would gain over a baseline; over eager if torch.compile has none to offer."""
    measured = ceilings(torch_device(found.device), home, show=show).ceilings
    if against is Against.COMPILED and found.compiled is not None:
        return ranking(found.regions, found.compiled, measured, against)
    return ranking(found.regions, found.eager, measured, Against.EAGER)
