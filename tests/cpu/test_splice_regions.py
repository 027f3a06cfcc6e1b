"""Regions without a name get their winner by what they compute: the same sizes alone are not enough."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kernelwright.backends import cpp
from kernelwright.core.frozen import digest
from kernelwright.core.manifest import FOLDER
from kernelwright.core.messages.model import Winner
from kernelwright.core.verdict import Status
from kernelwright.hardware.detect import cpu_device
from kernelwright.model.apply import winners_of
from kernelwright.model.capture import capture
from kernelwright.model.extract import extract
from kernelwright.model.graph import OP
from kernelwright.model.splice import Tally, compiled_with
from tests.cpu.splice_winners import written

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

KERNEL = """
#include "kernelwright.h"

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* out) {
    const float* from = static_cast<const float*>(a->data);
    float* to = static_cast<float*>(out->data);
    for (int64_t i = 0; i < a->shape[0] * a->shape[1]; ++i) to[i] = (from[i] * from[i] + 1) * from[i];
    return KW_OK;
}
"""


class Cubic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x + 1) * x


class OtherCubic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x - 1) * x


def region_winner(x: Tensor, folder: Path) -> Winner:
    with torch.no_grad():
        found = [one for one in extract(capture(Cubic(), (x,))) if one.op == OP]
    one = max(found, key=lambda problem: len(problem.sites[0].region.nodes))
    folder.mkdir()
    assert cpp.build(KERNEL, {}, folder).status is Status.ACCEPTED
    library = folder / "kernel.so"
    return Winner(
        problem_hash="p",
        candidate_hash=digest(KERNEL),
        backend="cpp",
        case=one.case,
        artefact=str(library),
        artefact_hash=digest(library.read_bytes()),
        source=KERNEL,
        device=cpu_device(),
        region=one.source,
    )


def test_a_region_is_served_by_its_own_winner_alone(tmp_path: Path) -> None:
    x = torch.randn(8, 64)
    made = region_winner(x, tmp_path / "built")
    for model, calls in ((Cubic(), 1), (OtherCubic(), 0)):
        tally = Tally()
        with torch.no_grad():
            answer = compiled_with(model, [made], tally)(x.abs())  # other values than it was found with
            assert float((answer - model(x.abs())).abs().max()) < 1e-4
        assert (tally.spliced, tally.fallbacks) == (calls, 0)


def test_a_region_keeps_its_text_in_a_folder_of_kernels(tmp_path: Path) -> None:
    x = torch.randn(8, 64)
    made = region_winner(x, tmp_path / "built")
    manifest = written(tmp_path / FOLDER, made)
    assert manifest.entries[0].module == f"graph_{digest(made.region)[:8]}"
    (back,) = winners_of(tmp_path / FOLDER)
    tally = Tally()
    with torch.no_grad():
        compiled_with(Cubic(), [back], tally)(x)
    assert (back.region, tally.spliced) == (made.region, 1)
    text = (tmp_path / FOLDER / f"{manifest.entries[0].module}.py").read_text()
    compile(text, "drop-in", "exec")
