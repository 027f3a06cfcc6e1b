"""How attention is written in models: a private file of `ops/attention.py`."""

from typing import Any, NamedTuple

from kernelwright.core.ports import View
from kernelwright.ops._match import (
    COPIES,
    RESHAPES,
    argument,
    bare,
    called,
    commuted,
    folded,
    inside_cast,
    is_last,
    is_node,
    number,
    shape,
    uncast,
)

HIDDEN = -1e4
"""A score that is filled with this or less counts as masked."""


class Mask(NamedTuple):
    """What decides which scores count."""

    node: Any
    """Added to the scores, or a condition on them."""
    hides: bool = False
    """Whether a condition that holds hides the score."""
    fill: Any = None
    """What takes the place of a hidden score; None if the mask is added."""

    @property
    def read(self) -> tuple[Any, ...]:
        """Return the nodes that are read for it."""
        return tuple(node for node in (self.node, self.fill) if is_node(node))


Form = tuple[Any, View, View, Mask | None, bool, float | None]
"""Nodes of q, views of k and v as keys by elements, the mask, whether it is causal by itself, and the scale, None for
the usual one."""


def forms(node: Any) -> Form | None:
    """Return the attention that ends in this node, as the fused operation or written out."""
    return _called(node) if called(node, "scaled_dot_product_attention") else _written(inside_cast(node))


def _called(node: Any) -> Form | None:
    q, k, v = node.args[:3]
    if argument(node, 4, "dropout_p", 0.0):
        return None
    causal = bool(argument(node, 5, "is_causal", False))
    mask = argument(node, 3, "attn_mask")
    found = None if mask is None else Mask(mask)
    return q, shared_heads(k), shared_heads(v), found, causal, node.kwargs.get("scale")


def _written(node: Any) -> Form | None:
    """Match softmax(q k^T * scale + mask) v, casts and copies anywhere in it, all heads one batch or not."""
    if not called(node, "matmul", "bmm"):
        return None
    weights, v = bare(node.args[0]), node.args[1]
    if not called(weights, "softmax") or not is_last(weights.args[0], weights.args[1]):
        return None
    scores, mask = _unmasked(bare(weights.args[0]))
    scores, scale = _unscaled(scores)
    scores = bare(scores)
    if not called(scores, "matmul", "bmm"):
        return None
    return scores.args[0], _keys(scores.args[1]), shared_heads(v), mask, False, scale


def _keys(turned: Any) -> View:
    """Return keys by elements from elements by keys."""
    last = len(shape(turned)) - 1
    if called(turned, "transpose") and {axis % (last + 1) for axis in turned.args[1:]} == {last - 1, last}:
        return shared_heads(turned.args[0])
    return View(turned, (("transpose", (last - 1, last)),))


def _unmasked(scores: Any) -> tuple[Any, Mask | None]:
    """Return scores before a mask, and the mask: added to them, or where they are filled."""
    if called(scores, "masked_fill"):
        return uncast(scores.args[0]), Mask(scores.args[1], hides=True, fill=scores.args[2])
    if called(scores, "where"):
        return uncast(scores.args[1]), Mask(scores.args[0], fill=scores.args[2])
    for inner, mask in commuted(scores, "add"):
        if called(bare(_unscaled(uncast(inner))[0]), "matmul", "bmm"):
            return uncast(inner), Mask(mask)
    return scores, None


def _unscaled(scores: Any) -> tuple[Any, float]:
    if called(scores, "div") and (divisor := number(scores.args[1])):
        return uncast(scores.args[0]), 1.0 / divisor
    for inner, scale in commuted(scores, "mul"):
        if number(scale) is not None:
            return uncast(inner), float(scale)
    return scores, 1.0


def shared_heads(node: Any) -> View:
    """Return keys or values before their heads were repeated for the queries of a group."""
    plain = uncast(node)
    is_turned = called(plain, "transpose") and {axis % 4 for axis in plain.args[1:]} == {1, 2}
    whole, axis = (plain.args[0], 2) if is_turned else (plain, 1)
    repeated: Any = whole.args[0] if called(whole, *RESHAPES) else None
    while called(repeated, *COPIES):
        repeated = repeated.args[0]
    if not called(repeated, "expand") or not called(repeated.args[0], "unsqueeze"):
        return View(node)
    inner, place = repeated.args[0].args
    if place != axis + 1 or len(shape(inner)) != 4 or len(shape(repeated)) != 5:
        return View(node)
    heads, copies = shape(repeated)[axis], shape(repeated)[axis + 1]
    is_group = shape(whole) == tuple(
        heads * copies if one == axis else extent for one, extent in enumerate(shape(inner))
    )
    return View(inner, (("transpose", (1, 2)),) if is_turned else ()) if is_group else View(node)


def is_causal(mask: Mask, scores: tuple[int, int]) -> bool | None:
    """Tell whether a mask that depends on no data is causal, False if it hides nothing; None for any other mask."""
    import torch

    fill = folded(mask.fill) if is_node(mask.fill) else mask.fill
    value = folded(mask.node)
    if value is None or (mask.fill is not None and (fill is None or float(fill) > HIDDEN)):
        return None
    if value.dtype is torch.bool:
        visible = value != mask.hides
    else:
        visible = value == 0
        if mask.fill is not None or not bool((visible | (value <= HIDDEN)).all()):
            return None
    if bool(visible.all()):
        return False
    lower = torch.ones(scores, dtype=torch.bool, device=visible.device).tril()
    is_lower = visible.ndim >= 2 and scores[0] == scores[1] and bool((visible == lower).all())
    return True if is_lower else None
