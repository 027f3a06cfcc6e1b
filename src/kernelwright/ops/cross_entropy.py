"""Cross-entropy of rows of logits against labels, averaged over the rows that are not ignored."""

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelwright.core.case import Case, Distribution, DType, Layout, TensorSpec
from kernelwright.core.ports import BigCase, Match, View
from kernelwright.core.roofline import Work
from kernelwright.core.verdict import NullModel
from kernelwright.ops._draw import (
    INTERNAL_SHARE,
    compute_class,
    declared_compute,
    draw,
    generator,
    hidden_extent,
    planted,
    rounded,
    slices_beyond,
)
from kernelwright.ops._match import RESHAPES, are_floats, argument, called, is_last, kind, shape

if TYPE_CHECKING:
    from torch import Generator, Tensor

SUMMARY = "mean of logsumexp(logits) - logits[label] over rows whose label is not ignore_index"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
BOARD = ((4096, 32000), (8192, 32000), (8192, 50257))
"""Sizes of the H200 board and of AutoKernel's table."""
SMALL = ((8, 64), (64, 1000), (128, 4096))
REQUIRED_LAYOUTS = (Layout.OFFSET, Layout.ROW_STRIDED)
"""Ways of lying in memory a candidate must serve; of others it may decline."""
ROUNDED_INTERMEDIATES = 0
"""Intermediates the framework rounds to the type of the output."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {
    NullModel.PASSED_THROUGH: "the loss is one number, and no input is",
    NullModel.PERMUTED_ROWS: "the loss is one number and has no rows",
    NullModel.DROPPED_TILE: "the loss is one number and has no tiles",
}
"""Null models that do not apply, and why."""
EDGES = (
    (1, 1, -100),
    (1, 50257, -100),
    (3, 50257, 50256),
    (7, 127, 0),
    (5, 1025, -1),
    (13, 1023, 5),
    (257, 33, -100),
    (1021, 2, 1),
    (4, 1, 0),
    (0, 100, -100),
)
"""rows, vocab, ignore_index; in the last two no row counts and the mean is nan, as the framework has it."""
TIMED_ELEMENTS = 1 << 24


def case(
    axes: Mapping[str, int], dtype: DType, scalars: Mapping[str, bool | int | float] | None = None
) -> Case:
    """Return the contiguous case of that size."""
    rows, vocab = axes["rows"], axes["vocab"]
    return Case(
        op="cross_entropy",
        axes={"rows": rows, "vocab": vocab},
        dtype=dtype,
        compute=declared_compute(dtype),
        inputs=(
            TensorSpec(name="logits", shape=(rows, vocab), dtype=dtype),
            TensorSpec(name="labels", shape=(rows,), dtype=DType.INT64),
        ),
        outputs=(TensorSpec(name="out", shape=(), dtype=dtype),),
        scalars={"ignore_index": -100, **(scalars or {})},
    )


def public_cases() -> tuple[Case, ...]:
    """Return small sizes in every dtype and the board in fp16."""
    small = [case({"rows": r, "vocab": v}, dtype) for r, v in SMALL for dtype in DTYPES]
    return (*small, *(case({"rows": r, "vocab": v}, DType.FP16) for r, v in BOARD))


def edge_cases() -> tuple[Case, ...]:
    """Return awkward sizes, ignored labels inside and outside the vocabulary, and means over nothing."""
    return tuple(
        case({"rows": r, "vocab": v}, dtype, {"ignore_index": ignored})
        for r, v, ignored in EDGES
        for dtype in DTYPES
    )


def sample_case(rng: random.Random) -> Case:
    """Return a random legal case of at most about a million logits."""
    vocab = hidden_extent(2, 65536, rng)
    rows = hidden_extent(1, (1 << 20) // vocab, rng)
    ignored = rng.choice((-100, -1, rng.randrange(vocab)))
    return case({"rows": rows, "vocab": vocab}, rng.choice(DTYPES), {"ignore_index": ignored})


def _labels(logits: "Tensor", ignored: int, rng: "Generator") -> "Tensor":
    """Return labels of which a random share is the likeliest, a fifth ignored, and where possible one is not.

    Labels that are all random would give a loss near log(vocab) + 1/2, which a constant can guess.
    """
    import torch

    rows, vocab = logits.shape
    labels = torch.randint(vocab, (rows,), generator=rng)
    if rows == 0:
        return labels
    likeliest = torch.rand(rows, generator=rng) < torch.rand((), generator=rng)
    labels = torch.where(likeliest, logits.float().argmax(-1), labels)
    # A kernel need not read ignored rows: in the large cases that are timed every row counts, as the floor assumes.
    share = 0.2 if logits.numel() < TIMED_ELEMENTS else 0.0
    labels = torch.where(torch.rand(rows, generator=rng) < share, ignored, labels)
    counted = torch.randint(vocab, (), generator=rng)
    if counted == ignored:
        counted = (counted + 1) % vocab
    labels[torch.randint(rows, (), generator=rng)] = counted
    return labels


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs on the CPU; a loss of two logits near the maximum still has a place in fp16."""
    rng = generator(seed)
    logits = draw(case.inputs[0], distribution, rng, huge=2e4)
    return {"logits": logits, "labels": _labels(logits, int(case.scalars["ignore_index"]), rng)}


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
    """Return logits whose loss is the logarithm of a power of two, or the distance to one logit above all others.

    The second value tells by how many roundings an honest answer may miss.
    """
    import torch

    rng = generator(seed)
    rows, vocab = case.inputs[0].shape
    if not rows or vocab < 2:
        return None
    order = torch.rand((rows, vocab), generator=rng).argsort(-1)
    labels = torch.where(order == 0)[1]
    if seed % 2:
        distance = 32.0 * torch.randint(1, 4, (rows, 1), generator=rng)
        logits = torch.where(order == 1, distance, 0.0) - 1000.0 * (order > 1)
    else:
        count = 1 << int(torch.randint(1, vocab.bit_length(), (), generator=rng))
        logits = -1000.0 * (order >= count)
    ignored = int(case.scalars["ignore_index"])
    labels[1:] = torch.where(torch.rand(rows - 1, generator=rng) < 0.2, ignored, labels[1:])
    return {"logits": rounded(logits, case.inputs[0]), "labels": labels}, 8


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return inputs with special values, all but the end of every row masked, and labels of which none counts."""
    import torch

    plain = make_inputs(case, Distribution.SIGNED, seed)
    labels, ignored = plain["labels"], int(case.scalars["ignore_index"])
    nothing = {**plain, "labels": labels * 0 + ignored}
    found = [*planted(plain, ("logits",), seed), ("every label ignored", nothing)]
    if plain["logits"].numel():
        # A kernel that walks a row in pieces meets some with nothing in them.
        masked = plain["logits"].clone()
        masked[:, : -max(1, case.axes["vocab"] // 8)] = -torch.inf
        seen = torch.where(labels == ignored, labels, masked.argmax(-1))
        found.append(("all but the end of every row -inf", {**plain, "logits": masked, "labels": seen}))
    return found


def other_scalars(case: Case) -> list[dict[str, bool | int | float]]:
    """Return scalars under which the same inputs have another answer and every label stays legal."""
    ignored, vocab = int(case.scalars["ignore_index"]), case.axes["vocab"]
    return [{"ignore_index": -100}] if 0 <= ignored < vocab else []


def growth_cases(dtype: DType) -> tuple[Case, ...]:  # noqa: ARG001
    """Return cases of growing length: none, one number per case says nothing of its error's growth."""
    return ()


def big_case(dtype: DType, elements: int) -> BigCase:
    """Return a case of a little more logits than that; ignored labels keep all but a few rows out of the loss."""
    found = case({"rows": slices_beyond(elements, 32000), "vocab": 32000}, dtype)
    return BigCase(found, "rows", 16, {"labels": int(found.scalars["ignore_index"])})


def depth(case: Case) -> int:
    """Return how many roundings of fp32 may pile up in the loss, in units of its error scale."""
    return case.axes["vocab"] + case.axes["rows"] + int(2 / INTERNAL_SHARE)


def reference(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the framework's own result, halves in fp32 and rounded once.

    In fp16 the CPU's own sum over rows overflows: the mean of 8192 rows came out infinite.
    """
    import torch
    import torch.nn.functional as F

    logits = inputs["logits"]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = F.cross_entropy(wide, inputs["labels"], ignore_index=int(scalars["ignore_index"]))
    return (loss.to(logits.dtype),)


def error_scale(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the mean of the losses, none of which is negative, with a share of the terms they consist of."""
    logits, labels = inputs["logits"].double(), inputs["labels"]
    counted = labels != int(scalars["ignore_index"])
    logits, labels = logits[counted], labels[counted]
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(-1, labels[:, None])[:, 0]
    terms = (normaliser - chosen).abs() + INTERNAL_SHARE * (normaliser.abs() + chosen.abs())
    return (terms.mean(),)


def work(case: Case) -> Work:
    """Return bytes of logits, labels and loss; four operations per logit."""
    logits, labels = case.inputs
    return Work(
        bytes_read=logits.nbytes + labels.nbytes,
        bytes_written=case.outputs[0].nbytes,
        flops=4 * logits.numel,
        compute_class=compute_class(case),
    )


MEAN = 1
"""ATen's number for the reduction to the mean."""
UNUSED = -100
"""The framework's usual label of rows that do not count."""


def recognise(node: Any) -> Match | None:
    """Return the mean cross-entropy of class numbers: `cross_entropy_loss`, `nll_loss`, or a mean of what is picked."""
    found = _called_loss(node) or _picked_loss(node) or _written_loss(node)
    if found is None:
        return None
    logits, labels, ignored = found
    dtype = kind(logits)
    if not are_floats(node, logits) or dtype is None or kind(labels) is not DType.INT64:
        return None
    *before, vocab = shape(logits)
    steps: tuple[tuple[str, tuple[int, ...]], ...] = ()
    if called(node, "cross_entropy_loss") and len(before) == 2:  # classes are the second axis
        before, vocab, steps = [before[0], vocab], before[1], (("transpose", (1, 2)),)
    if shape(labels) != tuple(before) or not before:
        return None
    rows = math.prod(before)
    if len(before) > 1:
        steps += (("reshape", (rows, vocab)),)
    made = case({"rows": rows, "vocab": vocab}, dtype, {"ignore_index": ignored})
    places = View(labels, (("reshape", (rows,)),) if len(before) > 1 else ())
    return Match(made, {"logits": View(logits, steps), "labels": places}, (View(node),))


def _called_loss(node: Any) -> tuple[Any, Any, int] | None:
    if not called(node, "cross_entropy_loss"):
        return None
    is_plain = argument(node, 2, "weight") is None and argument(node, 3, "reduction", MEAN) == MEAN
    if not is_plain or argument(node, 5, "label_smoothing", 0.0):
        return None
    return node.args[0], node.args[1], int(argument(node, 4, "ignore_index", -100))


def _written_loss(node: Any) -> tuple[Any, Any, int] | None:
    if not called(node, "getitem") or node.args[1] != 0 or not called(node.args[0], "nll_loss_forward"):
        return None
    likely, labels, weight, reduction, ignored = node.args[0].args
    if not called(likely, "log_softmax", "_log_softmax") or not is_last(likely, likely.args[1]):
        return None
    return (likely.args[0], labels, int(ignored)) if weight is None and reduction == MEAN else None


def _picked_loss(node: Any) -> tuple[Any, Any, int] | None:
    """Match the mean of -log_softmax(x)[label] or of logsumexp(x) - x[label]; no label can be left out there."""
    mean, is_negated = (node.args[0], True) if called(node, "neg") else (node, False)
    if not called(mean, "mean") or len(mean.args) > 1 or mean.kwargs:
        return None
    inner = mean.args[0]
    while called(inner, "neg"):
        inner, is_negated = inner.args[0], not is_negated
    if not is_negated and called(inner, "sub") and called(inner.args[0], "logsumexp"):
        total, found = inner.args[0], _picked(inner.args[1])
        is_own = found is not None and found[0] is total.args[0] and is_last(total.args[0], total.args[1])
        return (*found, UNUSED) if found is not None and is_own else None
    found = _picked(inner) if is_negated else None
    if found is None or not called(found[0], "log_softmax") or not is_last(found[0], found[0].args[1]):
        return None
    return found[0].args[0], found[1], UNUSED


def _picked(node: Any) -> tuple[Any, Any] | None:
    """Return values and the number of the one picked in each row; an index would take negative numbers as well."""
    inner = node.args[0] if called(node, "squeeze", *RESHAPES) else node
    if (
        called(inner, "gather")
        and is_last(inner.args[0], inner.args[1])
        and called(inner.args[2], "unsqueeze")
    ):
        return inner.args[0], inner.args[2].args[0]
    return None
