"""Plain Python files: what the guard lets through, what it calls delegation, and what the census sees without it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.backends import python as backend
from kernelwright.backends._python_kernels import jitted
from kernelwright.core.candidate import Author, Candidate, ParamChoice
from kernelwright.core.case import DType
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Profile, Stage, Status
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import cpu_device
from kernelwright.ops import rmsnorm
from tests.cheats.specimen import honest_source

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
KERNEL = '''

@triton.jit
def rms_rows(x, weight, out, cols, eps, BLOCK: tl.constexpr):
    """Normalise one row."""
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        value = tl.load(x + row * cols + start + place, mask=start + place < cols, other=0.0).to(tl.float32)
        total += value * value
    scale = 1.0 / tl.sqrt_rn(tl.sum(total) / cols + eps)
    for start in range(0, cols, BLOCK):
        inside = start + place < cols
        value = tl.load(x + row * cols + start + place, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + start + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row * cols + start + place, value * scale * w, mask=inside)
'''
HOST = """

def kernel_fn(x, weight, eps):
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        rms_rows[(x.shape[0],)](x, weight, out, x.shape[1], eps, BLOCK=256, num_warps=4)
    return out
"""
GOOD = HEAD + KERNEL + HOST
DELEGATING = "def kernel_fn(x, weight, eps):\n    return {}\n"
NORM = "torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)"
NATIVE = r'''import torch

SOURCE = """
#include "kernelwright.h"
#include <cmath>
template <class T> static void rows(const kw_tensor* x, const kw_tensor* w, double eps, const kw_tensor* out) {
    for (long r = 0; r < x->shape[0]; ++r) {
        const T* a = static_cast<const T*>(x->data) + r * x->stride[0];
        T* b = static_cast<T*>(out->data) + r * out->stride[0];
        double sum = 0;
        for (long i = 0; i < x->shape[1]; ++i) sum += double(float(a[i])) * float(a[i]);
        const double scale = 1.0 / std::sqrt(sum / x->shape[1] + eps);
        const T* c = static_cast<const T*>(w->data);
        for (long i = 0; i < x->shape[1]; ++i) b[i] = T(float(float(a[i]) * scale * float(c[i])));
    }
}
extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* w, double eps, const kw_tensor* out) {
    if (x->dtype == KW_FP32) rows<float>(x, w, eps, out);
    else if (x->dtype == KW_FP16) rows<kw_fp16>(x, w, eps, out);
    else if (x->dtype == KW_BF16) rows<kw_bf16>(x, w, eps, out);
    else return KW_UNSUPPORTED_DTYPE;
    return KW_OK;
}
"""
norm = cpp_kernel(SOURCE)


def kernel_fn(x, weight, eps):
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    norm(x, weight, eps, out)
    return out
'''

MODEL = (
    HEAD
    + "import torch.nn as nn\n"
    + KERNEL
    + """

class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.RMSNorm(cols)
        self.scale = nn.Parameter(torch.ones(cols))

    def rows(self, x):
        return x.shape[0]

    def forward(self, x):
        out = torch.empty_like(x)
        rms_rows[(self.rows(x),)](x, self.norm.weight, out, x.shape[1], 1e-5, BLOCK=256)
        return out
"""
)


def remodelled(old: str, new: str) -> str:
    assert old in MODEL
    return MODEL.replace(old, new, 1)


def candidate(source: str) -> Candidate:
    return Candidate(
        op="rmsnorm",
        backend="python",
        source=source,
        choices=(ParamChoice(),),
        author=Author(name="test"),
    )


@pytest.fixture(scope="module")
def small() -> Problem:
    case = rmsnorm.case({"rows": 16, "cols": 64}, DType.FP32)
    return Problem(op="rmsnorm", cases=(case,), device=cpu_device())


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeClient]:
    """A judge that lets through what the static guards refuse."""
    home: Path = tmp_path_factory.mktemp("unguarded")
    settings = JudgeSettings(
        threads=2,
        max_pairs=16,
        alpha=0.001,
        hidden_shapes=2,
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
        guards_off=True,
    )
    client = JudgeClient(settings, lambda _: None)
    yield client
    client.close()


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


ACCEPTED = {
    "a Triton kernel": GOOD,
    "a grid that depends on meta": changed(
        "rms_rows[(x.shape[0],)]", "rms_rows[lambda meta: (triton.cdiv(x.numel(), x.shape[1]),)]"
    ),
    "a helper of its own": changed(
        "\n\ndef kernel_fn", "\n\ndef rows_of(x):\n    return x.shape[0]\n\n\ndef kernel_fn"
    ),
    "a C++ source through the door": NATIVE,
    "a model that holds parameters": MODEL,
    "annotations and a named refusal": changed(
        "def kernel_fn(x, weight, eps):\n",
        "def kernel_fn(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:\n"
        "    if x.dim() != 2:\n        raise NotImplementedError(f'{x.dim()} axes')\n",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_honest_file_passes_the_guard(name: str) -> None:
    assert (backend.check(ACCEPTED[name]), backend.delegates(ACCEPTED[name])) == (None, None)


REFUSED = {
    "syntax error": ("def kernel_fn(:\n", "not valid Python"),
    "no entry": (HEAD + KERNEL, "neither `kernel_fn` nor"),
    "import of os": ("import os\n" + GOOD, "import of os is not allowed"),
    "import of ctypes": ("from ctypes import CDLL\n" + GOOD, "import of ctypes.CDLL"),
    "torch's extension builder": (
        "from torch.utils.cpp_extension import load_inline\n" + GOOD,
        "import of torch.utils.cpp_extension.load_inline",
    ),
    "import inside": (changed("    out =", "    import os\n    out ="), "Import is not allowed"),
    "getattr": (changed("x.numel()", "getattr(x, 'sum')()"), "the name 'getattr'"),
    "eval": (changed("x.numel()", "eval('x.sum()')"), "the name 'eval'"),
    "open": (changed("x.numel()", "open('/etc/passwd')"), "the name 'open'"),
    "dunder": (changed("x.numel()", "x.__class__"), "'__class__' is not allowed"),
    "dunder behind an allowed name": (
        changed("x.numel()", "torch.empty.__self__"),
        "'__self__' is not allowed",
    ),
    "dunder import": (changed("x.numel()", "__import__('os')"), "the name '__import__'"),
    "module under another name": (
        changed("    out =", "    other = torch\n    out ="),
        "'torch' is not allowed",
    ),
    "torch's registry": (
        changed("x.numel()", "torch.ops.aten.sum(x)"),
        "'torch.ops.aten.sum' is not allowed",
    ),
    "torch's compiler": (changed("x.numel()", "torch.compile(max)"), "'torch.compile' is not allowed"),
    "try": (
        changed("    return out", "    try:\n        return out\n    except ValueError:\n        return x"),
        "Try is not allowed",
    ),
    "global": (changed("    out =", "    global cache\n    out ="), "Global is not allowed"),
    "cache in a constant": (
        changed("    return out", "    CACHE[0] = out\n    return out").replace(
            HEAD, HEAD + "\nCACHE = {}\n"
        ),
        "outlives the call",
    ),
    "cache in a default": (
        changed("eps):\n    x, weight", "eps, kept=[]):\n    x, weight"),
        "plain constants",
    ),
    "attribute of a function": (
        changed("    return out", "    rms_rows.kept = out\n    return out"),
        "outlives",
    ),
    "call at module level": (GOOD + "\nprint('hello')\n", "Expr is not allowed at module level"),
    "torch in a kernel": (
        changed("row = tl.program_id(0)", "row = torch.zeros(1)"),
        "not allowed in a kernel",
    ),
    "foreign class": (GOOD + "\nclass Thing:\n    pass\n", "the one class allowed"),
    "method with underscores": (remodelled("def rows", "def __getattr__"), "the method '__getattr__'"),
    "state in a model": (
        remodelled("        return out", "        self.kept = out\n        return out"),
        "outlives",
    ),
    "another base class": (remodelled("(nn.Module)", "(nn.Linear)"), "the one class allowed"),
    "too long": (GOOD + "#" * backend.SOURCE_LIMIT, "bytes of source"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_on_the_list_is_refused_by_name(name: str) -> None:
    source, words = REFUSED[name]
    reason = backend.check(source)
    assert reason is not None
    assert words in reason


DELEGATED = {
    "calls torch": ("import torch\n" + DELEGATING.format(NORM), "torch.nn.functional.rms_norm"),
    "calls it by a short name": (
        "from torch.nn.functional import rms_norm\n" + DELEGATING.format("rms_norm(x, (64,), weight, eps)"),
        "torch.nn.functional.rms_norm",
    ),
    "uses a method": (changed("x.numel()", "x.sum()"), "`.sum(...)`"),
    "multiplies matrices": (changed("return out", "return out @ weight"), "`@`"),
    "calls a module it holds": (
        remodelled("return out", "return self.norm(out)"),
        "calling the module `self.norm`",
    ),
    "calls the parent's forward": (
        remodelled("return out", "return super().forward(out)"),
        "`.forward(...)`",
    ),
    "has no kernel": ("import torch\n" + DELEGATING.format("torch.empty_like(x)"), "no kernel of its own"),
    "never launches its kernel": (
        HEAD + KERNEL + "\n\n" + DELEGATING.format("torch.empty_like(x)"),
        "never launches",
    ),
}


@pytest.mark.parametrize("name", DELEGATED)
def test_work_handed_to_the_framework_is_delegation(name: str, judge: JudgeClient, small: Problem) -> None:
    source, words = DELEGATED[name]
    reason = backend.delegates(source)
    assert reason is not None
    assert words in reason
    found = judge.evaluate(small, candidate(source), Profile.QUICK)
    assert (found.status, found.stages[-1].stage) == (Status.DELEGATION, Stage.GUARDS)


SEEN = {
    "calls torch": "import torch\n" + DELEGATING.format(NORM),
    "finds it by a string": "import torch\n"
    + DELEGATING.format("getattr(torch.nn.functional, 'rms_' + 'norm')(x, (x.shape[-1],), weight, eps)"),
    "multiplies tensors": "import torch\n"
    + DELEGATING.format(
        "x * torch.rsqrt((x.float() ** 2).mean(-1, keepdim=True) + eps).to(x.dtype) * weight"
    ),
    "falls back when its kernel fails": GOOD.replace(
        "    return out\n", f"    try:\n        return absent\n    except NameError:\n        return {NORM}\n"
    ),
    "hides behind a kernel": changed("    return out\n", f"    return {NORM}\n"),
}


@pytest.mark.parametrize("name", SEEN)
def test_the_census_sees_delegation_without_the_guards(
    name: str, unguarded: JudgeClient, small: Problem
) -> None:
    found = unguarded.evaluate(small, candidate(SEEN[name]), Profile.QUICK)
    assert (found.status, found.stages[-1].stage) == (Status.DELEGATION, Stage.SMOKE), found.failure
    assert "aten::" in found.stages[-1].reason


def test_the_census_lets_an_honest_kernel_pass(unguarded: JudgeClient, small: Problem) -> None:
    found = unguarded.evaluate(small, candidate(GOOD), Profile.QUICK)
    assert found.status is Status.ACCEPTED, found.failure


def test_a_triton_file_is_checked_in_the_interpreter_and_never_timed(
    judge: JudgeClient, small: Problem
) -> None:
    found = judge.evaluate(small, candidate(GOOD), Profile.QUICK)
    assert (found.status, found.timing) == (Status.ACCEPTED, None), found.failure
    compared = judge.compare(small, candidate(GOOD), candidate(GOOD))
    assert (compared.status, "no GPU here" in compared.reason) == (Status.UNSUPPORTED, True)


def test_a_wrong_file_is_wrong(judge: JudgeClient, small: Problem) -> None:
    found = judge.evaluate(
        small, candidate(changed("/ cols + eps", "/ cols + 2 * eps + 0.01")), Profile.QUICK
    )
    assert found.status is Status.WRONG, found.failure


def test_a_file_that_declines_a_case_is_unsupported(judge: JudgeClient, small: Problem) -> None:
    source = changed(
        "    out = torch", "    if x.shape[0]:\n        raise NotImplementedError('rows')\n    out = torch"
    )
    found = judge.evaluate(small, candidate(source), Profile.QUICK)
    assert found.status is Status.UNSUPPORTED, found.failure


def test_a_tensor_of_the_wrong_shape_leaves_the_output_unwritten(judge: JudgeClient, small: Problem) -> None:
    found = judge.evaluate(small, candidate(changed("return out", "return out.view(-1)")), Profile.QUICK)
    assert found.status is Status.NOT_WRITTEN, found.failure


def test_c_plus_plus_through_the_door_runs_natively(judge: JudgeClient, small: Problem) -> None:
    found = judge.evaluate(small, candidate(NATIVE), Profile.QUICK)
    assert found.status is Status.ACCEPTED, found.failure
    assert found.stages[-1].checked == 3  # bf16 too: nothing is interpreted


def test_c_plus_plus_that_does_not_compile_fails_with_the_compilers_words(
    judge: JudgeClient, small: Problem
) -> None:
    broken = NATIVE.replace("return KW_OK;", "return KW_NONSENSE;")
    found = judge.evaluate(small, candidate(broken), Profile.QUICK)
    assert found.status is Status.BUILD_FAILED
    assert "KW_NONSENSE" in found.stages[-1].reason


def test_kernels_of_the_files_own_are_known_by_their_decorators() -> None:
    source = honest_source("softmax", "python") + "\n\n@gluon.jit\ndef other(x):\n    pass\n"
    assert jitted(source) == {"softmax_rows", "other"}
