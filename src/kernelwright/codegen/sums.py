"""What an ATen operation that sums up is in plain loops: reductions, norms, softmax, products, attention."""

import math
from collections.abc import Sequence
from typing import Any

from kernelwright.codegen.operations import Elements, shape_of
from kernelwright.codegen.values import Kind, NotPlain, Value, as_kind, broadcast, reshaped

MOST_PRODUCTS = 1 << 25
"""Products a plain matrix product may take in one call: beyond, judging it would take minutes."""
TINY = 8 * 8 * 8
"""Products of one matrix product that a library takes longer to begin than to make: 4096 of 6x6 by 6x6 took eager and
torch.compile 0.8 ms and plain loops 0.1 ms (2-core Xeon)."""


class Lowering(Elements):
    """All operations that have a plain form."""

    def __init__(self, most_products: int = MOST_PRODUCTS) -> None:
        super().__init__()
        self.most_products = most_products

    def _reduced(self, x: Value, axes: Any, keep: bool, how: str, *, mean: bool = False) -> Value:
        rank = len(x.shape)
        chosen = [axes] if isinstance(axes, int) else list(axes or range(rank))
        chosen = [axis % rank for axis in chosen] if rank else []
        found = self.stages.reduced(x, chosen, how, mean=mean)
        return (
            found
            if keep
            else reshaped(found, tuple(n for axis, n in enumerate(x.shape) if axis not in chosen))
        )

    def _sum(self, x: Value, axes: Any = None, keep: bool = False, **_: Any) -> Value:
        return self._reduced(x, axes, keep, "sum")

    def _mean(self, x: Value, axes: Any = None, keep: bool = False, **_: Any) -> Value:
        return self._reduced(as_kind(x, Kind.FLOAT), axes, keep, "sum", mean=True)

    def _amax(self, x: Value, axes: Any = None, keep: bool = False) -> Value:
        return self._reduced(as_kind(x, Kind.FLOAT), axes, keep, "max")

    def _amin(self, x: Value, axes: Any = None, keep: bool = False) -> Value:
        return self._reduced(as_kind(x, Kind.FLOAT), axes, keep, "min")

    def _var(
        self, x: Value, axes: Any = None, *, correction: float | None = 1, keepdim: bool = False
    ) -> Value:
        x = self.stages.stored(x)
        centred = self.floats("square({0} - {1})", x, self._mean(x, axes, True))
        spread = self._mean(centred, axes, keepdim)
        count = x.numel // max(1, spread.numel)
        lost = 1 if correction is None else correction
        return spread if not lost else self.floats("({0} * {1})", spread, count / (count - lost))

    def _std(
        self, x: Value, axes: Any = None, *, correction: float | None = 1, keepdim: bool = False
    ) -> Value:
        return self.floats("std::sqrt({0})", self._var(x, axes, correction=correction, keepdim=keepdim))

    def _linalg_vector_norm(self, x: Value, order: float = 2, axes: Any = None, keep: bool = False) -> Value:
        if order != 2:
            raise NotPlain(f"aten.linalg_vector_norm of order {order}")
        return self.floats("std::sqrt({0})", self._sum(self.floats("square({0})", x), axes, keep))

    def _logsumexp(self, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        if len(axes) != 1:
            raise NotPlain("aten.logsumexp over several axes")
        x = self.stages.stored(x)
        peak = self._amax(x, axes, True)
        total = self._sum(self.floats("std::exp({0} - {1})", x, peak), axes, True)
        found = self.floats("({0} + std::log({1}))", peak, total)
        return found if keep else self._squeeze(found, list(axes))

    def _softmax(self, x: Value, axis: int, *_: Any) -> Value:
        weights = self.stages.stored(self._shifted(x, axis, "std::exp({0} - {1})"))
        return self.floats("({0} / {1})", weights, self._sum(weights, axis, True))

    def _log_softmax(self, x: Value, axis: int, *_: Any) -> Value:
        below = self.stages.stored(self._shifted(x, axis, "({0} - {1})"))
        total = self._sum(self.floats("std::exp({0})", below), axis, True)
        return self.floats("({0} - std::log({1}))", below, total)

    def _shifted(self, x: Value, axis: int, text: str) -> Value:
        x = self.stages.stored(x)
        return self.floats(text, x, self._amax(x, axis, True))

    def _rms_norm(
        self, x: Value, shape: Sequence[int], weight: Value | None = None, eps: Any = None
    ) -> Value:
        x, axes = self.stages.stored(x), list(range(-len(shape), 0))
        floor = 2.0**-23 if eps is None else eps
        scale = self.floats("rsqrt({0} + {1})", self._mean(self.floats("square({0})", x), axes, True), floor)
        found = self.floats("({0} * {1})", x, scale)
        return found if weight is None else self.floats("({0} * {1})", found, weight)

    def _layer_norm(
        self,
        x: Value,
        shape: Sequence[int],
        weight: Value | None = None,
        bias: Value | None = None,
        eps: float = 1e-5,
        *_: Any,
    ) -> Value:
        x, axes = self.stages.stored(x), list(range(-len(shape), 0))
        scale = self.floats("rsqrt({0} + {1})", self._var(x, axes, correction=0, keepdim=True), eps)
        found = self.floats("(({0} - {1}) * {2})", x, self._mean(x, axes, True), scale)
        found = found if weight is None else self.floats("({0} * {1})", found, weight)
        return found if bias is None else self.floats("({0} + {1})", found, bias)

    def _matmul(self, left: Value, right: Value) -> Value:
        a = left if len(left.shape) > 1 else reshaped(left, (1, *left.shape))
        b = right if len(right.shape) > 1 else reshaped(right, (*right.shape, 1))
        batch = shape_of([Value(a.shape[:-2], a.kind, a.at), Value(b.shape[:-2], b.kind, b.at)])
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        most = MOST_PRODUCTS if m * k * n <= TINY else self.most_products
        if math.prod(batch) * m * k * n > most:
            raise NotPlain(f"a product of {m}x{k} and {k}x{n}: plain loops would take too long")
        a, b = (broadcast(self.stages.stored(one), (*batch, *one.shape[-2:])) for one in (a, b))
        wide = reshaped(a, (*batch, m, 1, k))
        other = self._transpose(b, -1, -2)
        products = self.floats("({0} * {1})", wide, reshaped(other, (*batch, 1, n, k)))
        shape = [*batch, *([m] if len(left.shape) > 1 else []), *([n] if len(right.shape) > 1 else [])]
        return reshaped(self._sum(products, -1), tuple(shape))

    _mm = _bmm = _matmul

    def _addmm(self, bias: Value, left: Value, right: Value, **named: Any) -> Value:
        if named:
            raise NotPlain("aten.addmm with factors")
        return self._add(bias, self._matmul(left, right))

    def _linear(self, x: Value, weight: Value, bias: Value | None = None) -> Value:
        found = self._matmul(x, self._t(weight))
        return found if bias is None else self._add(found, bias)

    def _scaled_dot_product_attention(
        self,
        query: Value,
        key: Value,
        value: Value,
        mask: Value | None = None,
        dropout: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Value:
        if dropout or enable_gqa:
            raise NotPlain("attention with dropout or shared heads")
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = self.floats("({0} * {1})", self._matmul(query, self._transpose(key, -1, -2)), factor)
        if is_causal:
            rows, cols = (self._arange(extent) for extent in scores.shape[-2:])
            later = self.compared(">", cols, reshaped(rows, (*rows.shape, 1)))
            scores = self._masked_fill(scores, later, -math.inf)
        if mask is not None and mask.kind is Kind.BOOL:
            scores = self._where(mask, scores, -math.inf)
        elif mask is not None:
            scores = self._add(scores, mask)
        return self._matmul(self._softmax(scores, -1), value)
