"""Plain kernels written from captured graphs give the function's own answer, in C++, CUDA C++ and Triton."""

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from kernelwright.backends import cpp, cuda, triton
from kernelwright.codegen import plain_cpp, plain_cuda, plain_triton
from kernelwright.codegen.indices import Index
from kernelwright.codegen.lowering import Port
from kernelwright.codegen.values import Kind as ValueKind
from kernelwright.codegen.values import NotPlain, Read, buffer, reshaped
from kernelwright.core.case import Case, Compute, DType, TensorSpec
from kernelwright.core.device import DeviceKind
from kernelwright.core.plan import LaunchPlan, kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.verdict import Status
from kernelwright.hardware.detect import cpu_device
from kernelwright.model.capture import capture
from kernelwright.model.graph import DTYPES
from kernelwright.ops._match import packet

Function = Callable[..., Any]


def halves(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return a * torch.sigmoid(b)


def typed_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def causal(x: torch.Tensor) -> torch.Tensor:
    later = torch.arange(6)[None, :] > torch.arange(6)[:, None]
    return x.masked_fill(later, float("-inf")).softmax(-1)


def turned(x: torch.Tensor) -> torch.Tensor:
    return (x.view(3, 4, 10).permute(2, 0, 1).reshape(10, 12) + 1).t()[1:9:2].unsqueeze(1).squeeze(1)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def rotated(q: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return q * c + torch.cat((-q[..., 8:], q[..., :8]), -1) * s


def interacting(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is returned is read again, by rows of another length too."""
    a, b = torch.tanh(x), y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    wide = a.unsqueeze(1).expand(b.shape)
    return a, b, torch.cat((b, wide, b - wide, b * wide), -1)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


FUNCTIONS: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "rms norm": (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
        (drawn(7, 33), drawn(33)),
    ),
    "rms norm in fp16": (typed_norm, (drawn(7, 33).half(), drawn(33).half())),
    "bf16": (lambda x, y: torch.tanh(x) * y + 1, (drawn(9, 9).bfloat16(), drawn(9).bfloat16())),
    "softmax": (lambda x: torch.softmax(x * 3, -1), (drawn(4, 5, 17),)),
    "log softmax of rows": (lambda x: F.log_softmax(x, 0), (drawn(9, 5),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (33,), w, b), (drawn(7, 33), drawn(33), drawn(33))),
    "swiglu": (lambda g, u: F.silu(g) * u, (drawn(6, 40), drawn(6, 40))),
    "both gelus": (lambda x: F.gelu(x, approximate="tanh") + F.gelu(x), (drawn(100),)),
    "rope": (rotated, (drawn(2, 3, 5, 16), drawn(5, 16), drawn(5, 16))),
    "linear": (lambda x, w, b: torch.relu(F.linear(x, w, b)), (drawn(6, 20), drawn(12, 20), drawn(12))),
    "products": (lambda a, b: a @ b.transpose(-1, -2) / 4, (drawn(2, 3, 5, 8), drawn(2, 3, 7, 8))),
    "attention": (attended, (drawn(1, 2, 5, 8), drawn(1, 2, 5, 8), drawn(1, 2, 5, 8))),
    "views": (turned, (drawn(12, 10),)),
    "a mask": (lambda x, m: torch.where(m, x, -x).clamp(-1, 0.5), (drawn(8, 9), drawn(8, 9) > 0)),
    "rows by index": (
        lambda t, i: F.embedding(i, t).sum(-1) * 2,
        (drawn(11, 6), torch.tensor([[0, 10], [3, 3]])),
    ),
    "variance": (lambda x: (x - x.mean(1, keepdim=True)) / x.var(1, keepdim=True).sqrt(), (drawn(5, 6, 7),)),
    "several answers": (lambda x: (x.sum(), x.amax(0), torch.logsumexp(x, -1)), (drawn(5, 6),)),
    "causal mask": (causal, (drawn(6, 6),)),
    "halves": (halves, (drawn(6, 8),)),
    "powers": (lambda x: x.abs() ** 1.7 + x**3 - 2 / (1 + x**2), (drawn(50),)),
    "unit vectors": (lambda x: x / x.norm(dim=-1, keepdim=True), (drawn(6, 8),)),
    "stacked": (lambda x, y: torch.stack((x, y + 1), 1).flatten(1), (drawn(4, 5), drawn(4, 5))),
    "interactions": (interacting, (drawn(9, 8), drawn(9, 3, 8))),
    "an argument that is not used": (lambda x, y: y - 1, (drawn(4, 5), drawn(3))),
}


@dataclass(frozen=True)
class Sketch:
    """A function, captured."""

    graph: Any
    order: list[int]
    given: tuple[torch.Tensor, ...]
    wanted: list[torch.Tensor]

    @property
    def inputs(self) -> list[Port]:
        return [_port(f"x{place}", tensor) for place, tensor in enumerate(self.given)]

    @property
    def outputs(self) -> list[Port]:
        return [_port(f"out{place}", tensor) for place, tensor in enumerate(self.wanted)]


def _port(name: str, tensor: torch.Tensor) -> Port:
    return Port(name, tuple(tensor.shape), DTYPES[tensor.dtype].value)


def sketched(function: Function, given: tuple[torch.Tensor, ...]) -> Sketch:
    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return function(*tensors)

    with torch.no_grad():
        (captured,) = capture(Module(), given).graphs
        answer = function(*given)
    order = [next(place for place, one in enumerate(given) if one is value) for value in captured.arguments]
    return Sketch(captured.graph, order, given, list(answer) if isinstance(answer, tuple) else [answer])


@pytest.fixture(scope="module")
def sketches() -> dict[str, Sketch]:
    return {name: sketched(*FUNCTIONS[name]) for name in FUNCTIONS}


def assert_alike(name: str, got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(got, wanted, strict=True):
        eps = torch.finfo(other.dtype).eps
        scale = max(1.0, float(other.double().abs().max()))
        assert float((one.double() - other.double()).abs().max()) <= 8 * eps * scale, name


def struct(tensor: torch.Tensor) -> Any:
    spec = TensorSpec(name="x", shape=tuple(tensor.shape), dtype=DTYPES[tensor.dtype])
    return cpp.tensor_struct(spec, tensor.data_ptr())


def test_a_plain_cpp_kernel_gives_the_functions_answer(sketches: dict[str, Sketch], tmp_path: Path) -> None:
    # One file for all: compiling them one by one would take half a minute.
    texts = []
    for number, one in enumerate(sketches.values()):
        text = plain_cpp.written(one.graph, one.inputs, one.outputs, one.order)
        body = re.sub(r"#include.*\n", "", text).replace("kernel_fn", f"kernel_{number}")
        texts.append(f"namespace function{number} {{\n{body}}}\n")
    headers = '#include "kernelwright.h"\n' + "".join(
        f"#include <{name}>\n" for name in ("bit", "cmath", "initializer_list", "vector")
    )
    built = cpp.build(headers + "".join(texts), {}, tmp_path)
    assert (built.status, built.log) == (Status.ACCEPTED, "")
    library = ctypes.CDLL(str(tmp_path / "kernel.so"))
    for number, (name, one) in enumerate(sketches.items()):
        got = [torch.full_like(tensor, float("nan")) for tensor in one.wanted]
        structs = [struct(tensor) for tensor in (*one.given, *got)]
        assert library[f"kernel_{number}"](*map(ctypes.byref, structs)) == 0, name
        assert_alike(name, got, one.wanted)


def test_a_plain_kernel_declines_other_shapes_types_and_layouts(tmp_path: Path) -> None:
    one = sketched(lambda x: x + 1, (drawn(4, 6),))
    built = cpp.build(plain_cpp.written(one.graph, one.inputs, one.outputs, one.order), {}, tmp_path)
    assert built.status is Status.ACCEPTED
    kernel = cpp.open_kernel(tmp_path / "kernel.so")
    out = torch.empty(4, 6)
    for given in (drawn(6, 4), drawn(4, 6).half(), drawn(4, 6, 1)):
        assert kernel(ctypes.byref(struct(given)), ctypes.byref(struct(out))) == 3
    strided = struct(drawn(4, 6))
    strided.stride[0] = 12
    assert kernel(ctypes.byref(strided), ctypes.byref(struct(out))) == 3
    assert kernel(ctypes.byref(struct(one.given[0])), ctypes.byref(struct(out))) == 0
    assert torch.equal(out, one.wanted[0])


SHIM = """
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(count)
#define __syncthreads()
#undef INFINITY
#undef NAN
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
struct Dim { int x; };
static Dim blockIdx, threadIdx;
namespace kw {
struct Sum {};
struct MaxOrNan {};
template <typename Op, int TEAM> float team_reduce(float value, float*) { return value; }
}  // namespace kw
using __half = _Float16;
struct __nv_bfloat16 {
    uint16_t bits;
    explicit __nv_bfloat16(float value) {
        uint32_t u;
        memcpy(&u, &value, 4);
        bits = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    }
    explicit operator float() const {
        const uint32_t u = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &u, 4);
        return value;
    }
};
using std::exp, std::sqrt, std::log, std::pow, std::erfc, std::tanh;
template <int N, class... A> auto argument(void (*)(A...)) -> std::tuple_element_t<N, std::tuple<A...>>;
"""
"""Enough of CUDA for a C++ compiler: threads one after the other, each a team of its own."""


def planned(one: Sketch, source: str, threads: int = 1) -> tuple[Case, LaunchPlan]:
    def spec(name: str, tensor: torch.Tensor) -> TensorSpec:
        return TensorSpec(name=name, shape=tuple(tensor.shape), dtype=DTYPES[tensor.dtype])

    case = Case(
        op="module",
        axes={"n": 1},
        dtype=DTYPES[one.wanted[0].dtype],
        compute=Compute.STRICT_FP32,
        inputs=tuple(spec(f"input:{place}", tensor) for place, tensor in enumerate(one.given)),
        outputs=tuple(spec(f"out{place}", tensor) for place, tensor in enumerate(one.wanted)),
    )
    device = cpu_device().model_copy(update={"kind": DeviceKind.CUDA, "arch": "sm_90"})
    plan = run_plan(parse_plan(source), case, {**first_values(source), "THREADS": threads}, device)
    plan.check(frozenset(spec.name for spec in (*case.inputs, *case.outputs)))
    return case, plan


def driver(plan: LaunchPlan, number: int, body: str) -> str:
    """Return functions that run each kernel of a plan thread by thread."""
    made = []
    for launch in plan.launches:
        given = ", ".join(
            f"(decltype(argument<{place}>({launch.kernel})))p[{place}]" for place in range(len(launch.args))
        )
        constants = {**launch.constants, f"KW_KERNEL_{launch.kernel}": 1}
        made.append(
            "".join(f"#define {name} {value}\n" for name, value in constants.items())
            + f"namespace function{number}_{launch.kernel} {{\n{body}\n"
            f'extern "C" void run_{number}_{launch.kernel}(int blocks, int threads, void** p) {{\n'
            "    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)\n"
            f"        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {launch.kernel}({given});\n}}\n}}\n"
            + "".join(f"#undef {name}\n" for name in constants)
        )
    return "".join(made)


def test_plain_cuda_kernels_give_the_functions_answer(sketches: dict[str, Sketch], tmp_path: Path) -> None:
    texts, plans = [SHIM], []
    for number, one in enumerate(sketches.values()):
        source = plain_cuda.written(one.graph, one.inputs, one.outputs, one.order)
        plans.append(planned(one, source)[1])
        body = source.split("#define NAN", 1)[1].split("\n", 1)[1].replace('extern "C" ', "")
        texts.append(driver(plans[-1], number, body))
    (tmp_path / "all.cpp").write_text("".join(texts))
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "all.cpp", "-o", "all.so"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    library = ctypes.CDLL(str(tmp_path / "all.so"))
    for number, (name, one) in enumerate(sketches.items()):
        got = [torch.full_like(tensor, float("nan")) for tensor in one.wanted]
        buffers = {f"input:{place}": tensor.contiguous() for place, tensor in enumerate(one.given)}
        buffers |= {f"out{place}": tensor for place, tensor in enumerate(got)}
        buffers |= {
            space.name: torch.empty(space.nbytes, dtype=torch.uint8) for space in plans[number].workspaces
        }
        for launch in plans[number].launches:
            addresses = [buffers[arg.name].data_ptr() for arg in launch.args]  # type: ignore[union-attr]
            pointers = (ctypes.c_void_p * len(addresses))(*addresses)
            library[f"run_{number}_{launch.kernel}"](launch.grid[0], launch.block[0], pointers)
        assert_alike(name, got, one.wanted)


@pytest.mark.skipif(not cuda.available().usable, reason="needs NVRTC")
@pytest.mark.parametrize(
    "name", ["rms norm in fp16", "bf16", "rows by index", "powers", "rope", "interactions"]
)
def test_plain_cuda_kernels_compile(name: str, sketches: dict[str, Sketch], tmp_path: Path) -> None:
    one = sketches[name]
    source = plain_cuda.written(one.graph, one.inputs, one.outputs, one.order)
    assert cuda.check(source) is None
    case, plan = planned(one, source, 256)
    units = {unit.hash: unit for unit in (kernel_unit(launch, case) for launch in plan.launches)}
    for unit in units.values():
        built = cuda.compile_unit(source, unit, "sm_90", tmp_path)
        assert built.status is Status.ACCEPTED, built.log


NOT_IN_TRITON = {
    **dict.fromkeys(
        ("log softmax of rows", "attention", "variance", "several answers"),
        "sums over other axes than the last",
    ),
    "powers": "std::pow",
    "interactions": "a row that is read out of order",
}


def test_plain_triton_kernels_give_the_functions_answer() -> None:
    command = [sys.executable, "-m", "tests.cpu.interpret_plain"]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {one.pop("name"): one for one in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == FUNCTIONS.keys() - {"bf16"}
    for name, one in found.items():
        if name in NOT_IN_TRITON:
            assert NOT_IN_TRITON[name] in one["not_plain"], name
        else:
            assert one["refused"] is None and one["units"] <= 8, (name, one)
            assert one["python_refused"] is None and one["python_units"] == one["units"], (name, one)


@pytest.mark.skipif(not triton.available().usable, reason="needs Triton")
@pytest.mark.parametrize("name", ["rms norm in fp16", "bf16", "softmax", "rope"])
def test_plain_triton_kernels_compile(name: str, sketches: dict[str, Sketch], tmp_path: Path) -> None:
    one = sketches[name]
    source = plain_triton.written(one.graph, one.inputs, one.outputs, one.order)
    assert triton.check(source) is None
    case, plan = planned(one, source)
    for launch in plan.launches:
        built = triton.compile_unit(source, kernel_unit(launch, case), "sm_90", tmp_path)
        assert built.status is Status.ACCEPTED, built.log


NO_FORM: dict[str, tuple[Function, tuple[torch.Tensor, ...], str]] = {
    "a running sum": (lambda x: x.cumsum(-1), (drawn(4, 5),), "aten.cumsum"),
    "a large product": (
        lambda a, b: a @ b,
        (drawn(512, 512), drawn(512, 512)),
        "a product of 512x512 and 512x512",
    ),
    "a division that rounds": (lambda x: torch.div(x, 2, rounding_mode="floor"), (drawn(4),), "that rounds"),
}


@pytest.mark.parametrize("name", NO_FORM)
def test_what_has_no_plain_form_is_named(name: str) -> None:
    function, given, words = NO_FORM[name]
    one = sketched(function, given)
    with pytest.raises(NotPlain, match=re.escape(words)):
        plain_cpp.written(one.graph, one.inputs, one.outputs, one.order)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((12, 10), (3, 4, 10)),
        ((3, 4, 10), (12, 10)),
        ((4, 6), (6, 4)),
        ((2, 1, 6), (3, 4)),
        ((1,), ()),
        ((5,), (1, 5, 1)),
    ],
)
def test_every_element_is_found_under_another_shape(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    value = reshaped(buffer("x", old, ValueKind.FLOAT), new)
    wanted = torch.arange(torch.Size(old).numel()).reshape(new)
    for place in (
        torch.cartesian_prod(*[torch.arange(n) for n in new]).reshape(-1, len(new)).tolist() if new else [[]]
    ):
        assert value.at([Index((), one) for one in place]) == Read("x", Index((), int(wanted[tuple(place)])))


def test_every_type_of_a_case_has_a_cpp_type() -> None:
    from kernelwright.codegen.lowering import TYPES

    assert set(TYPES) == {kind.value for kind in DType} - {"fp64"}


def test_a_users_operator_that_is_called_like_one_of_atens_is_not_written_as_it() -> None:
    library = torch.library.Library("kernelwright_test_plain", "DEF")
    for name in ("mul", "getitem"):
        library.define(f"{name}(Tensor a, Tensor b) -> Tensor")
        library.impl(name, lambda a, b: a * b + 1000, "CompositeExplicitAutograd")
    ports = [Port("a", (4, 4), "fp32"), Port("b", (4, 4), "fp32")], [Port("out0", (4, 4), "fp32")], [0, 1]
    given = (torch.rand(4, 4), torch.rand(4, 4))
    own = torch.ops.kernelwright_test_plain
    for called in (lambda a, b: [own.mul(a, b)], lambda a, b: [own.getitem(a, b)]):
        graph = make_fx(called)(*given)
        (node,) = [one for one in graph.graph.nodes if one.op == "call_function"]
        assert packet(node) == ""
        for language in (plain_cpp, plain_cuda, plain_triton):
            with pytest.raises(NotPlain, match="kernelwright_test_plain"):
                language.written(graph, *ports)
    assert "a[" in plain_cpp.written(make_fx(lambda a, b: [torch.mul(a, b)])(*given), *ports)
