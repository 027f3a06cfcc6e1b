"""Every stage earns its place: a candidate that smoke and shape sweep let pass and this stage does not."""

import random
import struct
import time
from dataclasses import replace

import pytest

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Compute, Distribution, DType, Layout
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Stage, Status
from kernelwright.engine.seeds import seed
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.elf import MAGIC, code_digest
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.stages import Failure, run_stage
from kernelwright.judge.stages.checks import answers_to
from kernelwright.judge.stages.intake import is_audited
from kernelwright.judge.stages.layout import overlaps
from kernelwright.judge.stages.layouts import laid_out
from kernelwright.judge.stages.numbers import kernels_of, other_paths
from kernelwright.judge.stages.reordering import declares_reordering
from kernelwright.ops import attention, layernorm, matmul, rmsnorm, softmax
from tests.cheats.test_catalogue import H200
from tests.cpu.conftest import cpp

HONEST = """
#include "kernelwright.h"
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <type_traits>
#include <vector>
/*kernelwright
PARAMS = {}
*/
/*outside*/
template <typename T>
static int norm(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1], step = x->stride[0];
    const T* w = static_cast<const T*>(weight->data);
    if (cols > 1 && (x->stride[1] != 1 || weight->stride[0] != 1)) return KW_UNSUPPORTED_LAYOUT;
    for (int64_t row = 0; row < rows; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * step;
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        double sum = 0;
        for (int64_t i = 0; i < cols; ++i) sum += double(float(from[i])) * float(from[i]);
        const double scale = 1 / std::sqrt(sum / cols + eps);
        for (int64_t i = 0; i < cols; ++i) to[i] = T(float(float(from[i]) * scale * float(w[i])));
    }
    return KW_OK;
}
static int honest(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    switch (x->dtype) {
        case KW_FP32: return norm<float>(x, weight, eps, out);
        case KW_FP16: return norm<kw_fp16>(x, weight, eps, out);
        case KW_BF16: return norm<kw_bf16>(x, weight, eps, out);
        default: return KW_UNSUPPORTED_DTYPE;
    }
}
extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    /*before*/
    const int done = honest(x, weight, eps, out);
    /*after*/
    return done;
}
"""
FLOATS = "const float* in = static_cast<const float*>(x->data); float* y = static_cast<float*>(out->data);"
PLAIN = f"{FLOATS} const int64_t n = x->shape[0] * x->shape[1]; if (x->dtype == KW_FP32 && n > 1)"


def changed(old: str, new: str) -> Candidate:
    """Return the honest kernel with one change; the text must be there."""
    assert HONEST.count(old) == 1
    return cpp(HONEST.replace(old, new))


LONG_BF16 = Problem(
    op="rmsnorm", cases=(rmsnorm.case({"rows": 16, "cols": 4096}, DType.BF16),), device=cpu_device()
)

SPECIMENS = {
    # One of 4096 terms is far below a rounding of bf16: only inputs that put everything on it tell.
    "leaves the last term out of a long sum": (
        changed("i < cols; ++i) sum", "i + (std::is_same<T, kw_bf16>() && cols >= 4096) < cols; ++i) sum"),
        (Stage.EXACTNESS, Status.WRONG),
    ),
    "takes denormals for zeros": (
        changed(
            "/*after*/",
            f"{PLAIN} for (int64_t i = 0; i < n; ++i) if (std::fabs(in[i]) < 0x1p-126f) y[i] = 0;",
        ),
        (Stage.STABILITY, Status.WRONG),
    ),
    "turns NaN into zeros": (
        changed("/*after*/", f"{PLAIN} for (int64_t i = 0; i < n; ++i) if (y[i] != y[i]) y[i] = 0;"),
        (Stage.SPECIAL_VALUES, Status.WRONG),
    ),
    "lets one row reach into another": (
        changed(
            "/*after*/", f"{PLAIN} if (std::fabs(in[0]) > 20) y[n - 1] = std::nextafter(y[n - 1], 0.0f);"
        ),
        (Stage.SENSITIVITY, Status.WRONG),
    ),
    "dies of an empty tensor": (
        changed("/*before*/", "if (x->shape[0] == 0) std::abort();"),
        (Stage.EDGE_CASES, Status.CRASHED),
    ),
    "takes every row for dense": (
        changed("step = x->stride[0]", "step = x->shape[1]"),
        (Stage.LAYOUT, Status.WRONG),
    ),
    "declines odd addresses": (
        changed("/*before*/", "if (reinterpret_cast<uintptr_t>(x->data) % 16) return KW_UNSUPPORTED_LAYOUT;"),
        (Stage.LAYOUT, Status.UNSUPPORTED),
    ),
    "tells its inputs apart by their addresses": (
        changed("/*after*/", f"{PLAIN} if (x->data == weight->data) y[0] = 0;"),
        (Stage.ALIASING, Status.WRONG),
    ),
    "looks at what was in its output": (
        changed("/*before*/", f"{FLOATS} const float old = x->shape[0] ? y[0] : 0;").source.replace(
            "/*after*/", "if (x->dtype == KW_FP32 && old > 1e30f) y[0] = std::nextafter(y[0], 0.0f);"
        ),
        (Stage.DETERMINISM, Status.NOT_DETERMINISTIC),
    ),
    "answers from memory when an address comes back": (
        changed(
            "/*before*/",
            "static const void* seen = nullptr; static std::vector<float> kept;"
            f"{PLAIN} if (x->data == seen && kept.size() == size_t(n)) {{"
            "std::memcpy(y, kept.data(), n * 4); return KW_OK; }",
        ).source.replace("/*after*/", "if (x->dtype == KW_FP32) { seen = x->data; kept.assign(y, y + n); }"),
        (Stage.STATE, Status.STATEFUL),
    ),
    "reads beside its own memory": (
        changed(
            "/*before*/",
            "float* own = new float[x->shape[1] + 1]; own[0] = 0; volatile float v ="
            " own[x->shape[1] + 1]; (void)v; delete[] own;",
        ),
        (Stage.SANITIZER, Status.SANITIZER),
    ),
    "shifts by more than there are bits": (
        changed("/*before*/", "volatile int by = 40; volatile int v = 1 << by; (void)v;"),
        (Stage.SANITIZER, Status.SANITIZER),
    ),
    "is another one in every build": (
        changed("/*outside*/", 'extern "C" const char* built() { return __TIME__; }'),
        (Stage.REBUILD, Status.BUILD_FAILED),
    ),
    "opens a library": (
        changed("/*outside*/", "#include <dlfcn.h>").source.replace(
            "/*before*/", 'if (dlsym(RTLD_DEFAULT, "cblas_sgemm")) return KW_OK;'
        ),
        (Stage.BUILD, Status.DELEGATION),
    ),
    "leaves the work to the framework's own library": (
        changed("/*outside*/", 'extern "C" void cblas_sgemm(int);').source.replace(
            "/*before*/", "if (!x) cblas_sgemm(0);"
        ),
        (Stage.BUILD, Status.DELEGATION),
    ),
    "hopes to find the framework's library in the process": (
        changed("/*outside*/", 'extern "C" __attribute__((weak)) void cblas_sgemm(int);').source.replace(
            "/*before*/", "if (!x && cblas_sgemm) cblas_sgemm(0);"
        ),
        (Stage.BUILD, Status.DELEGATION),
    ),
    "wants the network": (
        changed("/*outside*/", "#include <sys/socket.h>").source.replace(
            "/*before*/", "if (!x) socket(AF_INET, SOCK_STREAM, 0);"
        ),
        (Stage.BUILD, Status.REFUSED),
    ),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def first_failure(
    room: Judge, problem: Problem, candidate: Candidate, stages: tuple[Stage, ...]
) -> tuple[Stage, Failure] | None:
    bench = room.bench(problem, candidate)
    for stage in stages:
        if stage is Stage.REBUILD:
            time.sleep(1.1)  # the specimen's build holds the second it was made in
        result, failure = run_stage(stage, bench)
        assert result.passed == (failure is None)
        if failure:
            return stage, failure
    return None


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_stage_finds_what_smoke_and_sweep_let_pass(name: str, room: Judge, problem: Problem) -> None:
    candidate, (stage, status) = SPECIMENS[name]
    candidate = candidate if isinstance(candidate, Candidate) else cpp(candidate)
    about = LONG_BF16 if stage is Stage.EXACTNESS else problem
    plain = (Stage.GUARDS, Stage.BUILD, Stage.SMOKE)
    if stage not in (Stage.BUILD, Stage.REBUILD, Stage.SANITIZER):
        plain = (*plain, Stage.SHAPE_SWEEP)
    found = first_failure(room, about, candidate, tuple(dict.fromkeys((*plain, stage))))
    assert found is not None
    assert (found[0], found[1].status) == (stage, status), found[1].reason
    assert found[1].reason


def test_the_honest_kernel_passes_every_stage(room: Judge, problem: Problem) -> None:
    stages = tuple(stage for stage in Stage if stage is not Stage.TIMING)
    assert first_failure(room, problem, cpp(HONEST), stages) is None


def test_what_was_built_is_audited_with_the_guards_off_too(room: Judge, problem: Problem) -> None:
    bench = replace(room.bench(problem, cpp(SPECIMENS["wants the network"][0])), guards_off=True)
    failure = run_stage(Stage.BUILD, bench)[1]
    assert failure is not None
    assert (failure.status, "socket" in failure.reason) == (Status.REFUSED, True)
    hopeless = replace(room.bench(problem, cpp("int main() { return 0; }")), guards_off=True)
    assert run_stage(Stage.GUARDS, hopeless)[1] is None


def test_with_the_audit_off_what_it_refuses_is_run(room: Judge, problem: Problem) -> None:
    candidate = cpp(SPECIMENS["wants the network"][0])
    bench = replace(room.bench(problem, candidate), guards_off=True, audit_off=True)
    assert (run_stage(Stage.BUILD, bench)[1], is_audited(bench)) == (None, False)


UNSTEADY = (
    "static int calls = 0; if (x->dtype == KW_FP32 && ++calls % 2) static_cast<float*>(out->data)[0] *= {};"
)


@pytest.mark.parametrize(
    ("declaration", "factor", "status"),
    [
        ("", "1.0000001f", Status.NOT_DETERMINISTIC),
        ("REORDER = True", "1.0000001f", None),
        ("REORDER = True", "1.001f", Status.NOT_DETERMINISTIC),
        ("REORDER = 1", "1.0000001f", Status.NOT_DETERMINISTIC),
    ],
)
def test_last_bits_may_differ_only_where_that_was_declared(
    declaration: str, factor: str, status: Status | None, room: Judge, problem: Problem
) -> None:
    source = HONEST.replace("PARAMS = {}", f"PARAMS = {{}}\n{declaration}")
    candidate = cpp(source.replace("/*after*/", UNSTEADY.format(factor)))
    failure = run_stage(Stage.DETERMINISM, room.bench(problem, candidate))[1]
    assert (failure.status if failure else None) is status, failure


def test_reordering_is_declared_by_a_literal_of_the_file_and_by_nothing_else() -> None:
    assert declares_reordering("/*kernelwright\nREORDER = True\n*/ int kernel_fn();")
    assert declares_reordering("REORDER = True\ndef plan(case, params, device): ...")
    for source in ("// REORDER = True", "REORDER = bool(1)", "if 1:\n    REORDER = True", "REORDER = 'True'"):
        assert not declares_reordering(source)


def test_every_layout_is_what_its_name_says(problem: Problem) -> None:
    case = matmul.case({"m": 6, "n": 5, "k": 7}, DType.FP16)
    found = list(laid_out(case, random.Random(1)))
    assert {kind for kind, _, _ in found} == set(Layout)
    for kind, _, one in found:
        assert [spec.shape for spec in one.inputs] == [spec.shape for spec in case.inputs]
        dense = all(spec.is_contiguous for spec in one.inputs)
        assert dense == (kind is Layout.OFFSET)
        if kind is Layout.ROW_STRIDED:
            assert all(
                spec.element_strides[1] == 1 < spec.shape[1] < spec.element_strides[0] for spec in one.inputs
            )
    moved = {
        (any(spec.offset for spec in one.inputs), any(spec.offset for spec in one.outputs))
        for _, what, one in found
        if what.endswith("not")
    }
    assert moved == {(True, False), (False, True)}


@pytest.mark.parametrize("draw", range(3))
def test_odd_addresses_of_the_output_alone_are_tried(draw: int, room: Judge, problem: Problem) -> None:
    # Right wherever the input is at an odd address too.
    entry = "const double scale"
    wrong = "if ((uintptr_t)x->data % 64 == 0 && (uintptr_t)out->data % 64 != 0) sum += 1e30;"
    assert entry in HONEST
    bench = room.bench(problem, cpp(HONEST.replace(entry, f"{wrong} {entry}")))
    _, failure = run_stage(Stage.LAYOUT, replace(bench, rng=random.Random(draw)))
    assert failure is not None
    assert "outputs offset" in failure.reason


def test_inputs_share_a_storage_only_with_one_of_their_own_type() -> None:
    axes = {"batch": 1, "heads": 2, "kv_heads": 1, "seq": 4, "kv_seq": 4, "head_dim": 8}
    pairs = [shared for _, shared in overlaps(attention.case(axes, DType.FP32))]
    assert {"k": "q"} in pairs
    assert {"v": "k"} in pairs
    assert {"k": "q", "v": "q"} in pairs


@pytest.mark.parametrize("draw", range(3))
def test_special_values_are_planted_in_a_long_row_too(draw: int, room: Judge, problem: Problem) -> None:
    # Right but for one thing: in long rows a NaN does not reach its neighbours.
    entry = "const double scale"
    assert entry in HONEST
    candidate = cpp(HONEST.replace(entry, f"if (cols > 4000 && sum != sum) sum = 1; {entry}"))
    bench = replace(room.bench(problem, candidate), rng=random.Random(draw))
    _, failure = run_stage(Stage.SPECIAL_VALUES, bench)
    assert failure is not None
    assert (failure.status, failure.case and failure.case.axes["cols"] > 4000) == (Status.WRONG, True)


@pytest.mark.parametrize("draw", range(3))
def test_an_unstable_formula_is_found_in_fp32_whatever_the_problems_own_type(draw: int, room: Judge) -> None:
    honest = seed("layernorm", "cpp", Origin.AUTHOR)
    assert honest is not None
    # The rough mean is a sixteenth of the mean: what it was to spare the variance, an offset, is still in there.
    wrong = honest.source.replace("lanes[i] += lanes[i + half]", "lanes[i] = lanes[i + half]")
    assert wrong != honest.source
    case = layernorm.case({"rows": 64, "cols": 256}, DType.BF16)
    problem = Problem(op="layernorm", cases=(case,), device=cpu_device())
    candidate = honest.model_copy(update={"source": wrong})
    bench = replace(room.bench(problem, candidate), rng=random.Random(draw))
    result, failure = run_stage(Stage.STABILITY, bench)
    assert failure is not None
    assert (failure.status, result.failing_case) == (Status.WRONG, failure.case and failure.case.label)
    assert failure.case is not None and failure.case.dtype is DType.FP32


def test_only_what_a_debugger_reads_may_differ_between_two_builds() -> None:
    def file(code: bytes, line: bytes) -> bytes:
        names = b"\0.text\0.debug_line\0.names\0"
        parts, offset, table = [code, line, names], 64, [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
        for place, part in zip((1, 7, 19), parts, strict=True):
            table.append(struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, offset, len(part), 0, 0, 0, 0))
            offset += len(part)
        head = MAGIC.ljust(40, b"\0") + struct.pack("<Q", offset) + bytes(10) + struct.pack("<HHH", 64, 4, 3)
        return head + b"".join([*parts, *table])

    one, other = file(b"code", b"/a/b"), file(b"code", b"/c/d")
    assert one != other
    assert code_digest(one) == code_digest(other) != code_digest(file(b"c0de", b"/a/b"))


def test_the_framework_is_measured_in_the_declared_compute_class(room: Judge) -> None:
    axes, errors = {"m": 32, "n": 32, "k": 64}, {}
    for compute in (Compute.STRICT_FP32, Compute.TF32_OK):
        case = matmul.case(axes, DType.FP32, compute=compute)
        bench = room.bench(Problem(op="matmul", cases=(case,), device=cpu_device()), cpp(HONEST))
        with bench.arena([case], [0]) as arena:
            arena.write_inputs(0, matmul.make_inputs(case, Distribution.SIGNED, 5))
            (answer,) = answers_to(bench, arena, 0)
        errors[compute] = float(((answer.framework - answer.exact) / answer.scale).square().mean().sqrt())
    assert errors[Compute.STRICT_FP32] < 2**-23
    assert 2**-15 < errors[Compute.TF32_OK] < 2**-11


def test_hidden_shapes_look_for_kernels_no_known_size_reaches(room: Judge) -> None:
    candidate = seed("softmax", "cuda", Origin.AUTHOR)
    assert candidate is not None
    case = softmax.case({"rows": 64, "cols": 256}, DType.FP16)
    on_cpu = room.bench(Problem(op="softmax", cases=(case,), device=cpu_device()), candidate)
    bench = replace(on_cpu, problem=Problem(op="softmax", cases=(case,), device=H200), rng=random.Random(1))
    found = other_paths(bench, bench.known_cases(), 1 << 30)
    assert [name for one in found for name in kernels_of(bench, one)] == ["softmax_streamed"]
    assert other_paths(bench, (*bench.known_cases(), *found), 1 << 30) == []
    assert other_paths(on_cpu, (), 1 << 30) == []
