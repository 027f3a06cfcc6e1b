# ruff: noqa: F821, SIM300 (`plan` is in a language of its own, kernels are in theirs)
"""Cross-entropy: mean of logsumexp(logits) - logits[label] over rows whose label is not ignored; fp32 arithmetic.

Declared layout: last axis of logits contiguous, any row stride; labels with any stride.

First launch: the loss of each row. Short rows: a tile of whole rows in registers. Long rows: one program reads its
row once, each lane with a running maximum and sum of its own; the row is cut into an aligned body of whole 16-byte
vectors and two edges of less than a vector, so that 50257 half-precision columns are read as wide as 32000. Ignored
rows are not read. Second launch: one program adds the losses in a fixed order and divides; no row gives 0 / 0 = NaN.
"""

import triton
import triton.language as tl

PARAMS = {
    "tile_elements": [4096, 2048, 8192],
    "lane_elements": [16, 32, 8],
    "long_warps": [8, 16, 4],
    "long_vectors": [2, 4, 1],
}

# -2^127: its product with log2(e) is exact, so peak minus peak is 0 in a fused multiply-add too, not 1e31.
LOWEST = tl.constexpr(-1.7014118346046923e38)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2_HIGH = tl.constexpr(0.693359375)
LN_2_LOW = tl.constexpr(-2.12194440054690583e-4)


@triton.jit
def _exp_below(value, peak, KIND: tl.constexpr):
    """Return exp(value - peak) for value <= peak, as exactly as the element type KIND asks for."""
    if KIND == tl.float16:
        # No fp16 number is as small as those that exp2 flushes to zero.
        return tl.exp2(value * LOG2_E - peak * LOG2_E)
    if KIND == tl.bfloat16:
        return tl.exp(value - peak)
    # exp(-110) is zero in fp32: the bound keeps the powers of two below in range, and NaN comes through.
    distance = tl.maximum(value - peak, -110.0, propagate_nan=tl.PropagateNan.ALL)
    # The hardware's exp2 costs |distance| units in the last place here; distance = whole * ln(2) + part and a
    # polynomial in part cost less than one.
    whole = tl.floor(distance * LOG2_E + 0.5)
    part = (distance - whole * LN_2_HIGH) - whole * LN_2_LOW
    series = ((1.982308604e-04 * part + 1.394577557e-03) * part + 8.333436213e-03) * part + 4.166627675e-02
    series = (series * part + 1.666666567e-01) * part + 0.5
    result = (series * (part * part) + part) + 1.0
    power = whole.to(tl.int32)
    half = power >> 1
    # 2^power in two factors: results below the normal range are then rounded, not flushed.
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((power - half + 127) << 23).to(tl.float32, bitcast=True)
    return result * first * second


@triton.jit
def _loss(total, chosen, peak, KIND: tl.constexpr):
    """Return log(total) - (chosen - peak) as fp64, computed as exactly as the element type KIND asks for."""
    if KIND == tl.float32:
        return tl.log(total.to(tl.float64)) - (chosen.to(tl.float64) - peak.to(tl.float64))
    return (tl.log(total) - (chosen - peak)).to(tl.float64)


@triton.jit
def loss_rows(
    logits,
    labels,
    losses,
    rows,
    vocab,
    stride,
    label_stride,
    ignored,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the losses of a tile of whole rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)[None, :]
    wide_row = row.to(tl.int64)
    label = tl.load(labels + wide_row * label_stride, mask=row < rows, other=0)
    counts = (row < rows) & (label != ignored)
    chosen = tl.load(logits + wide_row * stride + label, mask=counts, other=0.0).to(tl.float32)
    inside = (row < rows)[:, None] & (col < vocab)
    value = tl.load(logits + wide_row[:, None] * stride + col, mask=inside, other=float("-inf")).to(
        tl.float32
    )
    peak = tl.max(value, axis=1)
    total = tl.sum(_exp_below(value, peak[:, None], logits.dtype.element_ty), axis=1)
    loss = tl.where(counts, _loss(total, chosen, peak, logits.dtype.element_ty), 0.0)
    tl.store(losses.to(tl.pointer_type(tl.float64)) + row, loss, mask=row < rows)


@triton.jit
def _merge(peak, total, value, KIND: tl.constexpr):
    """Return maximum and sum of each lane with its vectors of one more chunk in them."""
    # The peak starts at the lowest finite number: a lane that saw only -inf then adds exp(-inf) = 0, not NaN.
    fresh = tl.maximum(peak, tl.max(tl.max(value, axis=2), axis=0))
    weight = _exp_below(value, fresh[None, :, None], KIND)
    return fresh, total * _exp_below(peak, fresh, KIND) + tl.sum(tl.sum(weight, axis=2), axis=0)


@triton.jit
def loss_long(
    logits, labels, losses, vocab, stride, label_stride, ignored,
    VECTORS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the loss of one row: chunks of VECTORS vectors per lane, then pieces of one."""
    row = tl.program_id(0).to(tl.int64)
    KIND: tl.constexpr = logits.dtype.element_ty
    PIECE: tl.constexpr = LANES * VECTOR
    label = tl.load(labels + row * label_stride)
    loss = tl.full([], 0.0, tl.float64)
    if label != ignored:
        start = row * stride
        chosen = tl.load(logits + start + label).to(tl.float32)
        head = tl.minimum((VECTOR - start % VECTOR) % VECTOR, vocab).to(tl.int32)
        body = tl.multiple_of((vocab - head) // VECTOR * VECTOR, VECTOR)
        chunks = body // (VECTORS * PIECE)
        source = logits + tl.multiple_of(start + head, VECTOR)
        piece = (tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :])[None]
        chunk = tl.arange(0, VECTORS)[:, None, None] * PIECE + piece
        side = tl.arange(0, 2 * VECTOR)
        edge = tl.where(side < VECTOR, side, head + body + side - VECTOR)
        in_edge = edge < tl.where(side < VECTOR, head, vocab)

        margin = tl.load(logits + start + edge, mask=in_edge, other=float("-inf")).to(tl.float32)
        peak = tl.full([LANES], LOWEST, tl.float32)
        total = tl.zeros([LANES], tl.float32)
        for i in range(chunks):
            spot = i * (VECTORS * PIECE) + chunk
            value = tl.load(source + spot, eviction_policy="evict_first").to(tl.float32)
            peak, total = _merge(peak, total, value, KIND)
        for i in range(chunks * VECTORS, tl.cdiv(body, PIECE)):
            spot = i * PIECE + piece
            value = tl.load(source + spot, mask=spot < body, other=float("-inf")).to(tl.float32)
            peak, total = _merge(peak, total, value, KIND)
        top = tl.maximum(tl.max(peak, axis=0), tl.max(margin, axis=0))
        weight = tl.sum(total * _exp_below(peak, top, KIND), axis=0)
        weight += tl.sum(_exp_below(margin, top, KIND), axis=0)
        loss = _loss(weight, chosen, top, KIND)
    tl.store(losses.to(tl.pointer_type(tl.float64)) + row, loss)


@triton.jit
def mean_loss(losses, labels, out, rows, label_stride, ignored, BLOCK: tl.constexpr):
    """Add all losses in a fixed order and divide by the number of rows that count."""
    # fp64: one program with a few elements per lane, and the only rounding left is the result's.
    total = tl.zeros([BLOCK], tl.float64)
    count = tl.zeros([BLOCK], tl.float64)
    for first in range(0, rows, BLOCK):
        row = first + tl.arange(0, BLOCK)
        total += tl.load(losses.to(tl.pointer_type(tl.float64)) + row, mask=row < rows, other=0.0)
        label = tl.load(labels + row.to(tl.int64) * label_stride, mask=row < rows, other=ignored)
        count += tl.where(label != ignored, 1.0, 0.0)
    tl.store(out, (tl.sum(total, axis=0) / tl.sum(count, axis=0)).to(out.dtype.element_ty))


def plan(case, params, device):
    """Return the launches of a case."""
    logits, labels = case.tensors.logits, case.tensors.labels
    rows, vocab, ignored = case.axes.rows, case.axes.vocab, ("i64", case.scalars.ignore_index)
    if vocab > 1 and logits.strides[1] != 1:
        return {"unsupported": "the last axis of logits must be contiguous"}
    vector = 16 // logits.itemsize
    wave = 64 if device.arch in ("gfx90a", "gfx942", "gfx950") else 32
    block = next_power_of_2(max(vocab, 1))
    if vocab <= 8192 and (vocab < 2048 or logits.strides[0] % vector + vocab % vector == 0):
        # No more rows in a tile than leave every multiprocessor some work.
        fair = next_power_of_2(max(1, rows // (2 * device.units)))
        tile_rows = min(max(1, params.tile_elements // block), fair)
        first = {
            "kernel": "loss_rows",
            "grid": (cdiv(rows, tile_rows),),
            "args": [
                "logits",
                "labels",
                "losses",
                rows,
                vocab,
                logits.strides[0],
                labels.strides[0],
                ignored,
            ],
            "constants": {"ROWS": tile_rows, "BLOCK": block},
            "num_warps": min(16, max(1, tile_rows * block // (wave * params.lane_elements))),
        }
    else:
        warps = min(params.long_warps, 1024 // wave)
        first = {
            "kernel": "loss_long",
            "grid": (rows,),
            "args": ["logits", "labels", "losses", vocab, logits.strides[0], labels.strides[0], ignored],
            "constants": {"VECTORS": params.long_vectors, "LANES": warps * wave, "VECTOR": vector},
            "num_warps": warps,
        }
    block = min(4096, next_power_of_2(max(rows, 16)))
    mean = {
        "kernel": "mean_loss",
        "grid": (1,),
        "args": ["losses", "labels", "out", rows, labels.strides[0], ignored],
        "constants": {"BLOCK": block},
        "num_warps": min(16, max(1, block // (4 * wave))),
    }
    return {
        "launches": [first, mean],
        "workspaces": [{"name": "losses", "nbytes": 8 * rows, "zero_fill": False}],
    }
