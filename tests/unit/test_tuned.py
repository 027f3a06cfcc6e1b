"""A call as data: what tells one from another, and what a damaged file says."""

import pytest

from kernelwright.core.case import DType, TensorSpec
from kernelwright.core.errors import BadInput
from kernelwright.core.tuned import (
    Argument,
    ArgumentKind,
    FunctionCall,
    KernelStep,
    LayoutStep,
    Program,
    TextStep,
    TunedCall,
    call_key,
    parse_tuned,
)


def tensor(
    *shape: int, dtype: DType = DType.FP32, strides: tuple[int, ...] | None = None, **more: object
) -> Argument:
    spec = TensorSpec(name="", shape=shape, dtype=dtype, strides=strides)
    return Argument.model_validate({"kind": "tensor", "tensor": spec, **more})


def literal(text: str) -> Argument:
    return Argument(kind=ArgumentKind.LITERAL, text=text)


def key(
    *args: Argument, function: str = "a.py:f", code: str = "c", place: str = "cpu", **named: Argument
) -> str:
    return call_key(function, code, FunctionCall(args=args, kwargs=named), place)


def test_a_key_is_stable_and_tells_calls_apart() -> None:
    known = key(tensor(8, 16), literal("1"))
    assert known == key(tensor(8, 16), literal("1"))
    others = [
        key(tensor(16, 8), literal("1")),
        key(tensor(8, 16, dtype=DType.FP16), literal("1")),
        key(tensor(8, 16, strides=(1, 8)), literal("1")),
        key(tensor(8, 16), literal("1.0")),
        key(tensor(8, 16), literal("True")),
        key(tensor(8, 16), n=literal("1")),
        key(tensor(8, 16), literal("1"), function="a.py:g"),
        key(tensor(8, 16), literal("1"), code="other"),
        key(tensor(8, 16), literal("1"), place="cuda: H200"),
        key(Argument(kind=ArgumentKind.TUPLE, items=(tensor(8, 16), literal("1")))),
    ]
    assert len({known, *others}) == len(others) + 1


def test_how_samples_are_drawn_does_not_change_the_key() -> None:
    assert key(tensor(4, dtype=DType.INT64, low=0, below=9)) == key(
        tensor(4, dtype=DType.INT64, low=1, below=2)
    )
    assert key(tensor(4, positive=True)) == key(tensor(4))


def test_a_call_says_itself_in_words() -> None:
    call = FunctionCall(
        args=(tensor(8, 16, strides=(1, 8)), literal("None")),
        kwargs={"pair": Argument(kind=ArgumentKind.TUPLE, items=(literal("2"), tensor()))},
    )
    assert call.label() == "8x16 fp32 strided, None, pair=(2, scalar fp32)"


def test_an_argument_is_one_thing() -> None:
    with pytest.raises(ValueError, match="only a tensor"):
        Argument(kind=ArgumentKind.TENSOR)
    with pytest.raises(ValueError, match="1 items have 0 names"):
        Argument(kind=ArgumentKind.DICT, items=(literal("1"),))


def test_what_was_written_is_read_back() -> None:
    steps = (
        TextStep(source="text", inputs=(0,), outputs=(1,)),
        KernelStep(entry=0, inputs=(1,), outputs=(2,), given=(), made=(), returned=((("reshape", (4,)),),)),
        LayoutStep(strides=(1,), inputs=(2,), outputs=(3,)),
    )
    found = TunedCall(
        key="k",
        function="a.py:f",
        call=FunctionCall(args=(tensor(4),)),
        device="cpu",
        run="r",
        reason="it pays",
        program=Program(tensors=1, steps=steps, outputs=(3,), form="tuple"),
    )
    assert parse_tuned(found.model_dump_json(indent=1), "tuned.json") == found


BAD = {
    "nothing": ("{}", "key: Field required"),
    "no JSON": ("{", "file: Invalid JSON"),
    "a newer one": ('{"format": 99}', "format 99, this version reads up to 1. Upgrade"),
    "more than known": ('{"format": 1, "colour": 1}', "Remove the folder"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_file_is_one_line_with_the_remedy(name: str) -> None:
    text, words = BAD[name]
    with pytest.raises(BadInput) as caught:
        parse_tuned(text, "tuned.json")
    assert words in str(caught.value)
