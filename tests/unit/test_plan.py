"""The launch plan is data that names only what exists, and says exactly what must be compiled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernelwright.core.case import DType, TensorSpec
from kernelwright.core.plan import (
    BufferArg,
    Launch,
    LaunchPlan,
    Parameter,
    ScalarArg,
    TensorMap,
    TensorMapArg,
    Workspace,
    kernel_unit,
)

BUFFERS = frozenset({"x", "weight", "out"})


def tile(**changes) -> TensorMap:
    fields = {
        "name": "tile",
        "buffer": "x",
        "dtype": "fp16",
        "shape": (64, 8),
        "strides_bytes": (128,),
        "box": (64, 8),
    }
    return TensorMap(**(fields | changes))


def plan(*args, **changes) -> LaunchPlan:
    return LaunchPlan(launches=(Launch(kernel="k", grid=(1, 1, 1), args=args),), **changes)


def parameter(make, arg, **changes) -> Parameter:
    whole = plan(arg, **changes)
    return kernel_unit(whole.launches[0], make.case()).parameters[0]


def test_plan_whose_names_all_exist_passes_its_check():
    args = (BufferArg(name="x"), BufferArg(name="partial"), TensorMapArg(name="tile"))
    whole = plan(*args, workspaces=(Workspace(name="partial", nbytes=8),), tensor_maps=(tile(),))
    assert whole.check(BUFFERS) is None


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        (plan(BufferArg(name="y")), "launch of 'k' names unknown buffer 'y'"),
        (plan(BufferArg(name="tile"), tensor_maps=(tile(),)), "unknown buffer 'tile'"),
        (plan(TensorMapArg(name="tile")), "launch of 'k' names unknown tensor map 'tile'"),
        (plan(TensorMapArg(name="x")), "unknown tensor map 'x'"),
        (plan(tensor_maps=(tile(buffer="y"),)), "tensor map 'tile' names unknown buffer 'y'"),
    ],
)
def test_plan_that_names_what_does_not_exist_fails_its_check(whole, words):
    with pytest.raises(ValueError, match=words):
        whole.check(BUFFERS)


@pytest.mark.parametrize(
    "change",
    [
        {"box": (64,)},
        {"strides_bytes": ()},
        {"strides_bytes": (128, 8)},
        {"shape": (), "strides_bytes": (), "box": ()},
        {"shape": (1,) * 6, "strides_bytes": (1,) * 5, "box": (1,) * 6},
        {"dtype": "fp8"},
        {"swizzle": "48b"},
    ],
)
def test_tensor_map_that_the_hardware_has_not_is_refused(change):
    with pytest.raises(ValidationError):
        tile(**change)


@pytest.mark.parametrize(
    "build",
    [
        lambda: BufferArg(name="x", offset_bytes=-1),
        lambda: ScalarArg(value=1, type="fp8"),
        lambda: ScalarArg(value=float("nan"), type="fp32"),
        lambda: Workspace(name="w", nbytes=-1),
        lambda: Launch(kernel="k", grid=(1, 1)),
        lambda: Launch(kernel="k", grid=(1, 1, 1), shared_bytes=-1),
        lambda: Launch(kernel="k", grid=(1, 1, 1), priority=1),
        lambda: LaunchPlan(launches=(Launch(kernel="k", grid=(1, 1, 1)),) * 65),
    ],
)
def test_launch_that_cannot_be_is_refused(build):
    with pytest.raises(ValidationError):
        build()


NUMBERS = st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.floats(-1e6, 1e6)


@given(st.lists(NUMBERS, max_size=4), st.dictionaries(st.text("AB", min_size=1), NUMBERS, max_size=3))
def test_plan_keeps_values_and_their_types_through_json(values, constants):
    types = {bool: "i1", int: "i64", float: "fp64"}
    args = tuple(ScalarArg(value=value, type=types[type(value)]) for value in values)
    whole = LaunchPlan(launches=(Launch(kernel="k", grid=(1, 2, 3), args=args, constants=constants),))
    again = LaunchPlan.model_validate_json(whole.model_dump_json())
    assert again == whole
    assert [type(arg.value) for arg in again.launches[0].args] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("arg", "expected"),
    [
        (BufferArg(name="x"), Parameter(type="*fp16", divisible_by_16=True)),
        (BufferArg(name="x", offset_bytes=32), Parameter(type="*fp16", divisible_by_16=True)),
        (BufferArg(name="x", offset_bytes=8), Parameter(type="*fp16")),
        (BufferArg(name="partial"), Parameter(type="*u8", divisible_by_16=True)),
        (BufferArg(name="partial", offset_bytes=4), Parameter(type="*u8")),
        (ScalarArg(value=32, type="i32"), Parameter(type="i32", divisible_by_16=True)),
        (ScalarArg(value=-16, type="i64"), Parameter(type="i64", divisible_by_16=True)),
        (ScalarArg(value=0, type="i32"), Parameter(type="i32")),
        (ScalarArg(value=1, type="i32"), Parameter(type="i32", is_one=True)),
        (ScalarArg(value=17, type="i32"), Parameter(type="i32")),
        (ScalarArg(value=True, type="i1"), Parameter(type="i1")),
        (ScalarArg(value=1.0, type="fp32"), Parameter(type="fp32")),
        (ScalarArg(value=16.0, type="fp32"), Parameter(type="fp32")),
        (TensorMapArg(name="tile"), Parameter(type="tensor_map")),
    ],
)
def test_compiler_is_told_exactly_what_is_known_of_an_argument(make, arg, expected):
    spaces = (Workspace(name="partial", nbytes=64),)
    assert parameter(make, arg, workspaces=spaces, tensor_maps=(tile(),)) == expected


@pytest.mark.parametrize("number", [1, 16])
def test_whole_number_passed_as_a_float_is_no_integer_to_the_compiler(make, number):
    assert parameter(make, ScalarArg(value=number, type="fp32")) == Parameter(type="fp32")


@pytest.mark.parametrize(("offset", "is_aligned"), [(0, True), (1, False), (8, True), (12, False)])
def test_misaligned_tensor_is_not_called_aligned(make, offset, is_aligned):
    x = TensorSpec(name="x", shape=(8, 64), dtype=DType.FP16, offset=offset)
    whole = plan(BufferArg(name="x"))
    unit = kernel_unit(whole.launches[0], make.case(inputs=(x,)))
    assert unit.parameters[0].divisible_by_16 is is_aligned


def test_unit_depends_on_what_is_compiled_and_not_on_how_much_is_launched(make):
    def unit(grid=(1, 1, 1), constants=None, meta=None, rows=8):
        args = (BufferArg(name="x"), ScalarArg(value=rows, type="i32"))
        launch = Launch(kernel="k", grid=grid, args=args, constants=constants or {}, meta=meta or {})
        return kernel_unit(launch, make.case()).hash

    assert unit(grid=(9, 9, 9)) == unit(rows=9) == unit()
    assert len({unit(), unit(rows=1), unit(rows=16), unit(constants={"B": 1}), unit(meta={"B": 1})}) == 5


def test_a_block_that_no_driver_takes_is_refused_by_name() -> None:
    assert Launch(kernel="rows", grid=(1, 1, 1), block=(32, 32, 1)).block == (32, 32, 1)
    with pytest.raises(ValueError, match="2048 threads in a block of 'rows'; at most 1024"):
        Launch(kernel="rows", grid=(1, 1, 1), block=(2048, 1, 1))
