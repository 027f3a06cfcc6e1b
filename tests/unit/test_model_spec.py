"""How a model and its inputs are written: what is understood, and what is refused with which words."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.core.case import DType
from kernelwright.core.config import RunConfig, resolve
from kernelwright.core.errors import BadConfig, BadInput, ModelNotLoadable
from kernelwright.core.messages.model import MODEL_REQUEST, ExtractModel
from kernelwright.core.model_spec import (
    InputSpec,
    ModelMode,
    ModelOptions,
    Source,
    parse_input,
    parse_spec,
    refuse_foreign,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,512:int64", InputSpec(shape=(1, 512), axes=(None, None), dtype=DType.INT64)),
        ("4,3,8", InputSpec(shape=(4, 3, 8), axes=(None, None, None))),
        ("x=2:bfloat16", InputSpec(name="x", shape=(2,), axes=(None,), dtype=DType.BF16)),
        (
            "ids=1@batch,512@seq:int32:32000",
            InputSpec(name="ids", shape=(1, 512), axes=("batch", "seq"), dtype=DType.INT32, below=32000),
        ),
        ("start=:int64", InputSpec(name="start", shape=(), axes=(), dtype=DType.INT64)),
        ("0,4", InputSpec(shape=(0, 4), axes=(None, None))),
    ],
)
def test_an_input_is_a_name_a_shape_a_type_and_a_bound(text: str, expected: InputSpec) -> None:
    assert parse_input(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,x", "'x' in '1,x' is no dimension"),
        ("1,-2", "'-2' in '1,-2' is no dimension"),
        ("1,,2", "'' in '1,,2' is no dimension"),
        ("1@2,3", "'1@2' in '1@2,3' is no dimension"),
        ("1:int65", "did you mean 'int64'?"),
        ("1:int64:0", "'0' in '1:int64:0' is no bound"),
        ("1:int64:5:6", "is no input"),
        ("a b=1", "is no input"),
    ],
)
def test_what_is_no_input_is_refused_with_an_example(text: str, words: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_input(text)
    assert words in str(raised.value)
    assert "Write `1,512:int64" in str(raised.value)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from((None, "batch", "seq"))), min_size=1),
    st.sampled_from((None, *DType)),
    st.sampled_from((None, "tokens")),
)
def test_what_is_written_down_is_read_back(axes, dtype, name):
    shape = ",".join(f"{extent}@{label}" if label else str(extent) for extent, label in axes)
    found = parse_input((f"{name}=" if name else "") + shape + (f":{dtype.value}" if dtype else ""))
    assert list(zip(found.shape, found.axes, strict=True)) == axes
    assert (found.dtype, found.name) == (dtype, name)


@pytest.mark.parametrize(
    ("spec", "source", "place", "factory"),
    [
        ("model.py:build", Source.FILE, "model.py", "build"),
        ("/a b/c.py:Net.small", Source.FILE, "/a b/c.py", "Net.small"),
        ("torchvision.models:resnet18", Source.PACKAGE, "torchvision.models", "resnet18"),
        ("hf:llama", Source.HUB, "llama", ""),
        ("hf:./folder", Source.HUB, "./folder", ""),
        ("hf:owner/name-7B", Source.HUB, "owner/name-7B", ""),
    ],
)
def test_a_model_is_a_file_a_package_or_a_name(spec: str, source: Source, place: str, factory: str) -> None:
    found = parse_spec(spec)
    assert (found.source, found.place, found.factory) == (source, place, factory)
    assert (found.args, found.kwargs) == ((), {})


def test_arguments_in_a_name_are_literals() -> None:
    found = parse_spec("torch.nn:Linear(8, 4, bias=False)")
    assert (found.args, found.kwargs) == ((8, 4), {"bias": False})
    assert parse_spec("hf:llama(rope={'a:b': [1]})").kwargs == {"rope": {"a:b": [1]}}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("model.py", "names no factory"),
        (":build", "names no factory"),
        ("model.py:not a name", "names no factory"),
        ("some/folder:build", "neither a .py file nor a module"),
        ("hf:", "names no model"),
        ("hf:llama(2)", "need names"),
        ("m.py:f(open('x'))", "no arguments"),
        ("m.py:f(**{})", "no arguments"),
        ("m.py:f(", "not a name"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(spec: str, words: str) -> None:
    with pytest.raises(ModelNotLoadable) as raised:
        parse_spec(spec)
    assert words in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_settings_become_the_options_the_model_process_is_told() -> None:
    flags = {"input": ("x=2,3:fp16",), "dtype": "bfloat16", "device": "cuda:1", "mode": "train"}
    found = resolve(flags, {"download": True}, "defaults").model_options()
    assert found == ModelOptions(
        inputs=(parse_input("x=2,3:fp16"),),
        dtype=DType.BF16,
        device="cuda:1",
        mode=ModelMode.TRAIN,
        download=True,
    )
    assert RunConfig().model_options() == ModelOptions()


def test_options_survive_the_way_to_the_model_process() -> None:
    options = ModelOptions(inputs=(parse_input("1@batch,4:int64:9"),), dtype=DType.FP16, mode=ModelMode.EVAL)
    asked = ExtractModel(spec="m.py:build", options=options, threads=2)
    assert MODEL_REQUEST.validate_json(asked.model_dump_json()) == asked
    assert ExtractModel(spec="m.py:build", threads=1).options == ModelOptions()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("dtype", "int64", "'int64' is no type of weights; known: fp32, fp16, bf16, fp64"),
        ("dtype", "bfloat", "did you mean 'bfloat16'?"),
        ("mode", "evil", "'evil' is no mode; known: inference, eval, train"),
    ],
)
def test_a_setting_of_the_model_that_cannot_be_names_what_can(key: str, value: str, words: str) -> None:
    with pytest.raises(BadConfig) as raised:
        resolve({key: value}, {}, "defaults")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "spec",
    [
        "kernelwright.model.saved:build('{home}/models/../../x/models/y')",
        "kernelwright.model.saved:build('/tmp/models/of-another-user')",
        " kernelwright.model.saved:build('/tmp/models/of-another-user')",
        "\tkernelwright.model.saved:build('/tmp/models/of-another-user')\n",
        "kernelwright.model.saved:build(place='/tmp/models/of-another-user')",
        "kernelwright.model:saved.build('{home}/models/one')",
        "kernelwright.model.load:load('net.py:build')",
    ],
)
def test_a_saved_module_of_another_home_is_refused_however_it_is_written(tmp_path: Path, spec: str) -> None:
    with pytest.raises(ModelNotLoadable, match="another machine or user"):
        refuse_foreign(spec.format(home=tmp_path), tmp_path)


def test_a_saved_module_of_this_home_and_every_other_model_is_not_refused(tmp_path: Path) -> None:
    specs = (
        f"kernelwright.model.saved:build('{tmp_path}/models/one')",
        "net.py:build",
        "hf:llama",
        "a.b:C",
        "",
    )
    assert [refuse_foreign(one, tmp_path) for one in specs] == [None] * 5
