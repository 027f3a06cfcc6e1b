"""Models from files, packages, transformers and live modules; their inputs; and every mistake in one line."""

import os
import shlex
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from kernelwright.core.case import DType
from kernelwright.core.errors import (
    BadInput,
    DeviceMissing,
    InputsDoNotFit,
    KernelwrightError,
    ModelNotLoadable,
    OutOfMemory,
    PackageMissing,
)
from kernelwright.core.messages.model import ExtractModel
from kernelwright.core.model_spec import AUTO_DEVICE, ModelMode, ModelOptions, parse_input
from kernelwright.engine.service import ask_model
from kernelwright.model import load as loading
from kernelwright.model.arguments import Arguments, InputSet
from kernelwright.model.dry_run import dry_run
from kernelwright.model.fit import check, largest
from kernelwright.model.load import Loaded, load, loaded_from
from kernelwright.model.memory import device_of, is_out_of_memory, limited_to, weight_bytes

GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens where no GPU is")
ROOT = Path(__file__).parents[2]
LINEAR = "torch.nn:Linear(8, 4)"
ON_META = "torch.nn:Linear(8, 4, device='meta')"


def options(*inputs: str, **others: Any) -> ModelOptions:
    return ModelOptions(inputs=tuple(parse_input(text) for text in inputs), **others)


def written(folder: Path, text: str, name: str = "m.py") -> str:
    (folder / name).write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(text))
    return str(folder / name)


def one_line(error: KernelwrightError, *words: str) -> None:
    text = str(error)
    assert [word for word in words if word not in text] == [], text
    assert (len(text.splitlines()), ".." in text.replace("...", "")) == (1, False), text


# Where a model comes from


def test_a_file_may_import_its_neighbours_and_hold_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_a_model.py").write_text("WIDTH = 6\n")
    path = written(
        tmp_path,
        """
        from dataclasses import dataclass, field
        from neighbour_of_a_model import WIDTH

        @dataclass
        class Sizes:
            width: "int" = WIDTH

        def build(out=2):
            return nn.Linear(Sizes().width, out)

        def sample_inputs(seed):
            return (torch.randn(3, 6, generator=torch.Generator().manual_seed(seed)),)
        """,
    )
    loaded = load(f"{path}:build(out=5)")
    (x,) = loaded.sample_inputs(0)
    assert (loaded.module(x).shape, loaded.module.training) == ((3, 5), False)
    assert torch.equal(x, loaded.sample_inputs(0)[0])
    assert not torch.equal(x, loaded.sample_inputs(1)[0])


def test_a_class_of_a_package_takes_arguments_from_its_name() -> None:
    loaded = load(LINEAR, options("3,8"))
    assert isinstance(loaded.module, nn.Linear)
    assert loaded.module(*loaded.sample_inputs(7)).shape == (3, 4)
    assert (loaded.sets[0].name, loaded.sets[0].weight) == ("input", 1.0)


def test_a_live_module_is_used_itself_with_any_form_of_inputs() -> None:
    module, x = nn.Linear(8, 4).eval(), torch.ones(2, 8)
    given: list[Any] = [x, (x,), {"input": x}, lambda seed: (x + seed,)]
    given.append([InputSet("mine", 3.0, lambda seed: Arguments((x * seed,)))])
    for inputs in given:
        loaded = loaded_from(module, inputs)
        assert loaded.module is module
        assert loaded.module(*loaded.sample_inputs(1)).shape == (2, 4)
        check(loaded)
    assert (loaded.sets[0].name, loaded.sets[0].weight) == ("mine", 1.0)


def test_a_live_module_is_left_in_its_own_mode_unless_another_is_asked_for() -> None:
    module = nn.Linear(8, 4)
    assert (loaded_from(module, torch.ones(2, 8)).mode, module.training) == (ModelMode.TRAIN, True)
    assert (loaded_from(module, torch.ones(2, 8), options()).mode, module.training) == (
        ModelMode.INFERENCE,
        False,
    )


def test_callers_that_know_only_a_tuple_of_inputs_get_one_set() -> None:
    loaded = Loaded("x", nn.Linear(8, 4), lambda seed: (torch.ones(1, 8) * seed,))
    (only,) = loaded.sets
    assert torch.equal(only.make(3).args[0], torch.full((1, 8), 3.0))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nosuch.py:build", ("nosuch.py does not exist",)),
        ("nosuchpackage:Net", ("no module 'nosuchpackage'", "Install it")),
        ("torch.nn:Linearr(8, 4)", ("no function or class 'Linearr'", "Did you mean 'Linear'?")),
        ("torch.nn:Linear", ("missing 2 required positional arguments", "give arguments")),
        ("torch:ones(3)", ("returned a Tensor, not a torch.nn.Module",)),
        ("model.py", ("names no factory", "`path.py:factory`")),
    ],
)
def test_a_model_that_does_not_load_says_why_in_one_line(spec: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ModelNotLoadable) as raised:
        load(spec, options("1,8"))
    one_line(raised.value, repr(spec), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def build(:\n", "SyntaxError"),
        ("import nosuchthing\ndef build(): ...\n", "No module named 'nosuchthing'"),
        ("def build():\n    raise KeyError('weights.pt')\n", "KeyError: 'weights.pt'"),
        ("def build(): return 3\n", "returned a int"),
        ("def built(): ...\n", "Did you mean 'built'?"),
    ],
)
def test_a_file_that_is_wrong_says_what_is(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(text)
    with pytest.raises(ModelNotLoadable) as raised:
        load(f"{tmp_path / 'm.py'}:build")
    one_line(raised.value, words)


# Inputs

SETS = """
def build():
    return nn.Linear(8, 4)

def build_wide(device="cpu", dtype=torch.float64):
    return nn.Linear(16, 4, device=device, dtype=dtype)

def sample_inputs(seed):
    return [
        {"name": "few", "weight": 1, "args": (torch.full((2, 8), float(seed)),), "dynamic": {"input": ("batch",)}},
        {"name": "many", "weight": 3, "kwargs": {"input": torch.ones(64, 8)}, "dynamic": {"input": {0: "batch"}}},
    ]

def sample_inputs_wide(seed):
    return torch.ones(3, 16, dtype=torch.float64)

def other(seed):
    return {"input": torch.ones(5, 8)}
"""


def test_several_sets_are_named_weighted_and_heaviest_first(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, SETS) + ":build")
    assert [(one.name, one.weight) for one in loaded.sets] == [("many", 0.75), ("few", 0.25)]
    assert [one.dynamic for one in loaded.sets] == [{"input": {0: "batch"}}] * 2
    assert loaded.sample_inputs(0)[0].shape == (64, 8), "the heaviest set, its keywords by position"
    assert loaded.sets[1].make(5).args[0][0, 0] == 5
    check(loaded)


def test_a_factory_has_inputs_of_its_own_or_those_that_are_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, SETS)
    assert load(f"{path}:build_wide").sample_inputs(0)[0].shape == (3, 16)
    assert load(f"{path}:build", options(input_function="other")).sample_inputs(0)[0].shape == (5, 8)
    assert load(f"{path}:build", options("7,8")).sample_inputs(0)[0].shape == (7, 8)


class ByName(nn.Module):
    """Takes its arguments by position, by default, and by keyword only."""

    def forward(
        self, x: torch.Tensor, scale: float = 2.0, y: torch.Tensor | None = None, *, z: float = 0.0
    ) -> torch.Tensor:
        return x * scale + (0 if y is None else y) + z


def test_keywords_become_positions_with_the_defaults_between() -> None:
    x, y = torch.ones(2), torch.full((2,), 3.0)
    found = loaded_from(ByName(), {"y": y, "x": x}).sample_inputs(0)
    assert (len(found), found[1], ByName()(*found).tolist()) == (3, 2.0, [5.0, 5.0])
    only = loaded_from(ByName(), {"x": x, "z": 4.0})
    check(only)
    assert only.sets[0].make(0).call(only.module).tolist() == [6.0, 6.0]
    with pytest.raises(InputsDoNotFit, match="'z' can only be given by keyword"):
        only.sample_inputs(0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("3", "returns a int"),
        ("[{'name': 'a', 'args': (), 'wieght': 2}]", "unknown key 'wieght'"),
        ("[{'name': 'a', 'args': (), 'weight': 0}]", "weight 0"),
        ("[{'name': 'a', 'args': ()}, {'name': 'a', 'args': ()}]", "two sets named 'a'"),
        ("1 / 0", "ZeroDivisionError"),
        ("[{'name': f'a{seed}', 'args': (torch.ones(1, 8),)}]", "has no set 'a0'"),
    ],
)
def test_what_a_function_may_not_return_is_said(answer: str, words: str, tmp_path: Path) -> None:
    text = f"def build(): return nn.Linear(8, 4)\ndef sample_inputs(seed): return {answer}\n"
    with pytest.raises(InputsDoNotFit) as raised:
        load(written(tmp_path, text) + ":build").sample_inputs(1)
    one_line(raised.value, words)


def test_a_model_without_inputs_says_how_to_give_them() -> None:
    with pytest.raises(InputsDoNotFit) as raised:
        load(LINEAR)
    one_line(raised.value, "torch.nn has no sample_inputs(seed)", "--input 1,512:int64")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (("3,7",), "(3x7 and 8x4)"),
        (("3,8:int64",), "(3, 8) int64"),
        (("3,8", "3,8"), "too many positional arguments"),
        (("inputs=3,8",), "forward(input)"),
        (("3,8", "mask=3:bool"), "unexpected keyword argument 'mask'"),
    ],
)
def test_inputs_that_do_not_fit_name_the_shapes_and_the_signature(
    inputs: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InputsDoNotFit) as raised:
        check(load(LINEAR, options(*inputs)))
    one_line(raised.value, words, "--input")


class Lookup(nn.Module):
    """Two tables, one of them small, and an id that is changed before it is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(1000, 4), nn.Embedding(3, 4)

    def forward(self, words: torch.Tensor, kinds: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
        return (
            self.words(words.view(-1)) + self.kinds(kinds).view(-1, 4) + self.words(shifted + 1).view(-1, 4)
        )


def test_integers_stay_below_the_table_they_are_looked_up_in() -> None:
    given = options("shifted=4,50:int64", "4,50:int64", "4,50:int64")
    spec = f"{__name__}:Lookup"
    words, kinds, shifted = load(spec, given).sample_inputs(0)
    assert (100 < int(words.max()) < 1000, int(kinds.max()), int(shifted.max())) == (True, 2, 2)
    bounded = load(spec, options("4,50:int64:7", "4,50:int64", "4,50:int64:2"))
    assert [int(tensor.max()) for tensor in bounded.sample_inputs(0)] == [6, 2, 1]
    check(bounded)


def test_axes_named_in_an_input_reach_the_set() -> None:
    loaded = load(LINEAR, options("5@batch,8"))
    assert loaded.sets[0].dynamic == {"input": {0: "batch"}}


# Type, device, mode


def test_the_type_of_weights_and_inputs_is_the_one_asked_for(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, SETS) + ":build", options(dtype=DType.BF16))
    assert {one.dtype for one in loaded.module.parameters()} == {torch.bfloat16}
    assert loaded.sample_inputs(0)[0].dtype == torch.bfloat16
    assert load(LINEAR, options("2,8", dtype=DType.BF16)).sample_inputs(0)[0].dtype == torch.bfloat16
    written_down = load(LINEAR, options("2,8:fp32", dtype=DType.BF16))
    assert written_down.sample_inputs(0)[0].dtype == torch.float32


def test_a_factory_that_asks_is_told_the_type(tmp_path: Path) -> None:
    path = written(tmp_path, SETS)
    assert load(f"{path}:build_wide").module.weight.dtype == torch.float64
    assert load(f"{path}:build_wide", options(dtype=DType.FP16)).module.weight.dtype == torch.float16


@pytest.mark.parametrize(
    ("mode", "is_training", "has_gradient"),
    [
        (ModelMode.INFERENCE, False, False),
        (ModelMode.EVAL, False, True),
        (ModelMode.TRAIN, True, True),
    ],
)
def test_the_mode_is_the_one_asked_for(mode: ModelMode, is_training: bool, has_gradient: bool) -> None:
    loaded = load(LINEAR, options("2,8", mode=mode))
    with loaded.calling():
        out = loaded.module(*loaded.sample_inputs(0))
    assert (loaded.module.training, out.requires_grad, out.is_inference()) == (
        is_training,
        has_gradient,
        mode is ModelMode.INFERENCE,
    )


@GPU
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_built(device: str) -> None:
    with pytest.raises(DeviceMissing) as raised:
        load("nosuch.py:build", options(device=device))
    one_line(raised.value, repr(device), "--device cpu", "kernelwright doctor")


@GPU
def test_a_factory_that_wants_a_gpu_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, "def build(): return nn.Linear(8, 4).cuda()\n")
    with pytest.raises(DeviceMissing) as raised:
        load(f"{path}:build")
    one_line(raised.value, "build() finds no GPU", "--device cpu")


def test_a_device_nobody_knows_is_refused() -> None:
    with pytest.raises(BadInput, match="Known: cpu, cuda"):
        load(LINEAR, options("1,8", device="gpu"))


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torch's device without memory stand in for a GPU that is here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading, "GPU", "meta")
    monkeypatch.setattr(loading, "named_device", torch.device)
    monkeypatch.setattr(loading, "free_bytes", lambda _: 1 << 40)


@pytest.mark.usefixtures("standing_in")
def test_auto_is_the_gpu_if_there_is_one(tmp_path: Path) -> None:
    text = """
        def build(device="cpu"): built = nn.Linear(8, 4, device=device); built.told = str(device); return built
        def build_plain(): return nn.Linear(8, 4)
    """
    path = written(tmp_path, text)
    told = load(f"{path}:build", options("2,8", device=AUTO_DEVICE))
    assert (told.device.type, told.module.told) == ("meta", "meta")
    assert load(f"{path}:build_plain", options("2,8", device=AUTO_DEVICE)).device.type == "meta"
    assert load(f"{path}:build_plain", options("2,8")).device.type == "cpu"
    assert load("torch.nn:ReLU", options("2,8", device=AUTO_DEVICE)).device.type == "meta", (
        "it has no weights"
    )


@pytest.mark.usefixtures("standing_in")
def test_auto_leaves_a_model_on_the_gpu_it_was_built_on(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[object] = []
    monkeypatch.setattr(nn.Module, "to", lambda self, where: moved.append(where) or self)
    assert (
        load("torch.nn:Linear(8, 4, device='meta')", options("2,8", device=AUTO_DEVICE)).device.type == "meta"
    )
    assert moved == []
    load(ON_META, options("2,8", device="meta"))
    assert moved == [torch.device("meta")]


def test_auto_without_a_gpu_leaves_a_model_where_it_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load(LINEAR, options("2,8", device=AUTO_DEVICE)).device.type == "cpu"


# What the docs say


def documented() -> list[list[str]]:
    text = (ROOT / "docs" / "loading.md").read_text().replace("\\\n", " ")
    return [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("kernelwright optimize ")]


@pytest.mark.parametrize("words", documented(), ids=lambda words: words[0])
def test_a_command_of_the_docs_loads_and_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if words[0].startswith("hf:"):
        pytest.importorskip("transformers")
    monkeypatch.chdir(ROOT)
    given: dict[str, list[str]] = {}
    for flag, value in zip(words[1::2], words[2::2], strict=True):
        given.setdefault(flag, []).append(value)
    (function,) = given.pop("--input-function", [None])
    loaded = load(words[0], options(*given.pop("--input", []), input_function=function))
    assert given == {}, "an option this test does not know"
    check(loaded)


# Memory


def free(count: int) -> Any:
    return lambda device: count


def shaped(*shape: int) -> Any:
    return lambda mode: Arguments((mode.from_tensor(torch.ones(shape)),))


def test_a_call_takes_its_inputs_and_what_lives_beside_them() -> None:
    module = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 4))
    with torch.inference_mode():
        found = dry_run(module, shaped(100, 8))
    # The input, the hidden state and the output of 100 rows of fp32: all three are held at the end of the call.
    assert (found.error, found.peak_bytes) == (None, 100 * 4 * (8 + 32 + 4))
    assert weight_bytes(module) == 4 * (8 * 32 + 32 + 32 * 4 + 4)


def test_too_large_a_batch_names_the_largest_that_fits() -> None:
    loaded = load(LINEAR, options("100000000000,8"))
    budget = 48 * 1000
    with loaded.calling():
        assert largest(loaded, loaded.sets[0], "batch", budget) == 1000
    with pytest.raises(OutOfMemory) as raised:
        check(loaded, free(10 * budget // 9 + 1))
    one_line(raised.value, "4800.0 GB", "The largest batch that fits is 1000.", "cpu")


@pytest.mark.gpu
def test_too_large_a_batch_on_a_gpu_names_the_largest_that_fits() -> None:
    loaded = load(LINEAR, options("100000000000,8", device="cuda"))
    with pytest.raises(OutOfMemory) as raised:
        check(loaded)
    one_line(raised.value, "4800.0 GB", "The largest batch that fits is", "cuda")
    free_bytes, _ = torch.cuda.mem_get_info()
    found = int(str(raised.value).split("fits is ")[1].rstrip("."))
    assert found == pytest.approx(0.9 * free_bytes / 48, rel=0.02)


def test_a_named_axis_is_shortened_where_the_batch_is_already_one() -> None:
    loaded = load("torch.nn:Softmax(-1)", options("1@batch,100000000000@seq"))
    with pytest.raises(OutOfMemory, match=r"The largest seq that fits is \d+"):
        check(loaded)


def test_a_model_in_training_needs_room_for_its_gradients() -> None:
    spec, given = "torch.nn:Linear(1000, 1000)", "1,1000"
    room = int(1.5 * 4e6)
    check(load(spec, options(given)), free(room))
    with pytest.raises(OutOfMemory):
        check(load(spec, options(given, mode=ModelMode.TRAIN)), free(int(0.9 * 4e6)))


def test_weights_that_do_not_fit_are_said_to() -> None:
    with pytest.raises(OutOfMemory) as raised:
        load("torch.nn:Linear(1000000, 4000000)", options("1,8"))
    one_line(raised.value, "its weights do not fit", "16000000000000", "free on cpu")


def test_memory_beyond_a_limit_is_an_exception_and_the_limit_ends() -> None:
    with pytest.raises(RuntimeError) as raised, limited_to(64 << 20):
        torch.ones(512 << 20)  # 2 GB; a GB of addresses nobody touches is granted besides
    assert is_out_of_memory(raised.value)
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert torch.ones(64 << 20).sum() == 64 << 20


class Remembers(nn.Module):
    """Keeps what it saw, as a cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * 2
        self.seen.add_(1)
        return self.last + self.seen


def test_a_users_function_never_sees_a_tensor_without_memory() -> None:
    seen: list[type] = []

    def inputs(seed: int) -> tuple[torch.Tensor]:
        made = torch.ones(2, 8)
        seen.append(type(made))
        return (made * float(made.sum()),)

    check(loaded_from(nn.Linear(8, 4), inputs))
    assert set(seen) == {torch.Tensor}


def test_a_dry_run_leaves_nothing_in_the_model() -> None:
    module = Remembers()
    found = dry_run(module, shaped(4))
    assert (found.error, module.last, module.seen.tolist()) == (None, None, [0.0] * 4)


# The model process


@pytest.mark.parametrize(
    ("spec", "given", "kind", "words"),
    [
        (LINEAR, options("3,7"), InputsDoNotFit, ("(3x7 and 8x4)",)),
        (LINEAR, options("9999999999999,8"), OutOfMemory, ("The largest batch that fits is",)),
    ],
)
def test_the_model_process_relays_the_mistake(
    spec: str, given: ModelOptions, kind: type[KernelwrightError], words: tuple[str, ...]
) -> None:
    with pytest.raises(kind) as raised:
        ask_model(ExtractModel(spec=spec, options=given, threads=1), lambda _: None)
    one_line(raised.value, repr(spec), *words)


# transformers


def test_a_missing_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # what Python itself takes for "not to be found"
    with pytest.raises(PackageMissing) as raised:
        load("hf:llama")
    one_line(raised.value, "'transformers'", "pip install 'kernelwright[hf]'")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model saved as transformers saves it, its norm unmistakable."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=50
    )
    module = transformers.LlamaForCausalLM(config)
    torch.nn.init.constant_(module.model.norm.weight, 3.0)
    folder = tmp_path_factory.mktemp("saved")
    module.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "kind", "inputs"),
    [
        ("llama", "LlamaForCausalLM", {"input_ids": (1, 128)}),
        ("gpt2", "GPT2LMHeadModel", {"input_ids": (1, 128)}),
        ("bert", "BertForMaskedLM", {"input_ids": (1, 128)}),
        ("vit", "ViTForImageClassification", {"pixel_values": (1, 3, 224, 224)}),
        (
            "t5",
            "T5ForConditionalGeneration",
            {"input_ids": (1, 128), "decoder_input_ids": (1, 32)},
        ),
        (
            "whisper",
            "WhisperForConditionalGeneration",
            {"input_features": (1, 80, 128), "decoder_input_ids": (1, 32)},
        ),
        ("mixtral", "MixtralForCausalLM", {"input_ids": (1, 128)}),
    ],
)
def test_a_type_of_transformers_is_a_small_model_with_inputs(
    name: str, kind: str, inputs: dict[str, tuple[int, ...]]
) -> None:
    pytest.importorskip("transformers")
    loaded = load(f"hf:{name}")
    made = loaded.sets[0].make(0)
    assert (type(loaded.module).__name__, loaded.weights) == (kind, "random weights from the config")
    assert {key: tuple(value.shape) for key, value in made.kwargs.items()} == inputs
    assert weight_bytes(loaded.module) < 40e6
    check(loaded)
    norms = [one for one in loaded.module.parameters() if one.ndim == 1 and len(one) > 1]
    assert all(len(one.unique()) > 1 for one in norms), "a weight of ones would hide a kernel that drops it"


def test_settings_of_a_config_are_given_in_the_name() -> None:
    pytest.importorskip("transformers")
    loaded = load("hf:llama(num_hidden_layers=1, vocab_size=77)", options(dtype=DType.BF16))
    assert (len(loaded.module.model.layers), loaded.module.lm_head.weight.shape[0]) == (1, 77)
    assert loaded.module.dtype == torch.bfloat16
    assert int(loaded.sets[0].make(0).kwargs["input_ids"].max()) < 77


def test_a_folder_with_weights_gives_those_weights_and_one_without_random_ones(
    saved: Path, tmp_path: Path
) -> None:
    loaded = load(f"hf:{saved}")
    assert (loaded.module.model.norm.weight[0], loaded.weights) == (3.0, f"weights of {saved}")
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    drawn = load(f"hf:{tmp_path}")
    assert (drawn.module.model.norm.weight[0] != 3.0, drawn.weights) == (
        True,
        "random weights from the config",
    )
    assert drawn.module.config.hidden_size == 32
    again = load(f"hf:{tmp_path}")
    assert torch.equal(drawn.module.lm_head.weight, again.module.lm_head.weight)


def test_a_name_in_the_hubs_cache_is_found_there(saved: Path, tmp_path: Path) -> None:
    commit = "0" * 40
    snapshot = tmp_path / "models--owner--tiny" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for path in saved.iterdir():
        (snapshot / path.name).write_bytes(path.read_bytes())
    (tmp_path / "models--owner--tiny" / "refs").mkdir()
    (tmp_path / "models--owner--tiny" / "refs" / "main").write_text(commit)
    loaded = load("hf:owner/tiny", options(hf_cache=str(tmp_path)))
    assert (loaded.module.model.norm.weight[0], loaded.weights) == (3.0, f"weights of {snapshot}")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("hf:owner/absent", ("not in", "--download", "config.json")),
        ("hf:lama", ("did you mean hf:llama",)),
        ("hf:a/b/c", ("is no name of the hub",)),
        ("hf:llama(layers=1)", ("no 'layers'", "Did you mean 'num_hidden_layers'?")),
        ("hf:llama(hidden_size=30)", ("transformers says",)),
    ],
)
def test_a_name_that_is_not_on_this_disk_says_how_to_get_it(
    spec: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ModelNotLoadable) as raised:
        load(spec, options(hf_cache=str(tmp_path)))
    one_line(raised.value, repr(spec), *words)


class Hub(BaseHTTPRequestHandler):
    """A hub that keeps everything behind a gate and notes what it is asked."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(f"{self.path} {self.headers.get('authorization')}")
        self.send_response(403)
        self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815


def test_nothing_is_fetched_unless_asked_for_and_a_gated_model_says_how(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # A process of its own: the hub's address is read once, at import.
    code = f"""
from kernelwright.core.errors import ModelNotLoadable
from kernelwright.core.model_spec import ModelOptions
from kernelwright.model.load import load
for download in (False, True):
    try:
        load("hf:owner/name", ModelOptions(download=download, hf_cache={str(tmp_path)!r}))
    except ModelNotLoadable as error:
        print(error, flush=True)
    if not download:
        input()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "HF_TOKEN": "planted",
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    absent = process.stdout.readline()
    assert ("not in" in absent, "Pass --download" in absent, Hub.asked) == (True, True, [])
    gated, _ = process.communicate("\n", timeout=60)
    server.shutdown()
    server.server_close()
    assert ("GatedRepoError" in gated, "`hf download owner/name`" in gated) == (True, True), gated
    assert any("owner/name" in path for path in Hub.asked)
    assert not any("planted" in path for path in Hub.asked), "no token leaves this process"


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ModelNotLoadable, match=r"holds no config\.json"):
        load(f"hf:{tmp_path}")


def test_a_config_too_large_for_this_machine_is_refused_before_its_weights_are_made() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(OutOfMemory) as raised:
        load("hf:llama(num_hidden_layers=90, hidden_size=65536, intermediate_size=262144)")
    one_line(raised.value, "its weights need", "float32", "times smaller fits")


def test_a_model_without_weights_goes_where_it_is_asked_to_go() -> None:
    elsewhere = torch.device("meta")
    assert device_of(nn.GELU(), elsewhere) == elsewhere
    assert device_of(nn.Linear(2, 2), elsewhere) == torch.device("cpu")
