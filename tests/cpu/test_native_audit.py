"""The audit of native code: what it refuses and why, and that every honest kernel of this repository passes it."""

import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.backends import cpp
from kernelwright.codegen import plain_cpp, product_cpp
from kernelwright.core import plugins
from kernelwright.core.plan_language import first_values
from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge import at_load, instructions, native
from kernelwright.judge.delegation import Finding
from kernelwright.judge.elf import sections_of
from tests.cheats.specimen import author_candidate, honest_source, problem_of, specimens
from tests.cpu.test_plain_kernels import sketched
from tests.cpu.test_product_kernels import FUNCTIONS as PRODUCTS
from tests.cpu.test_product_kernels import SMALL

ROOT = Path(plugins.__file__).parents[1]
CHEATS = Path(__file__).parents[1] / "cheats"
HONEST = sorted((*ROOT.glob("seeds/*/*.cpp"), *CHEATS.glob("honest/*.cpp"), *CHEATS.glob("honest_zoo/*.cpp")))
START = '#include "kernelwright.h"\nstatic volatile int woken [[maybe_unused]] = 0;\n'
ENTRY = 'extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) { %s return KW_OK; }\n'
X86_ONLY = pytest.mark.skipif(
    subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip() != "x86_64",
    reason="the assembly is of x86",
)

Builder = Callable[[str], bytes]


@pytest.fixture
def built(tmp_path: Path) -> Builder:
    """Return what builds a source as the builder would, with every parameter at its first value."""

    def build(source: str) -> bytes:
        result = cpp.build(source, first_values(source), tmp_path)
        assert result.artefact is not None, result.log
        return (tmp_path / result.artefact).read_bytes()

    return build


def outside(text: str) -> str:
    return START + text + ENTRY % ""


def inside(text: str, headers: str = "") -> str:
    return headers + START + ENTRY % text


@pytest.mark.parametrize("path", HONEST, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_honest_kernel_passes(path: Path, built: Builder) -> None:
    assert native.audit(built(path.read_text())) is None


def test_generated_kernels_pass(built: Builder) -> None:
    function, inputs = PRODUCTS["gelu"]
    one = sketched(function, inputs)
    for source in (
        plain_cpp.written(one.graph, one.inputs, one.outputs, one.order),
        product_cpp.written(one.graph, one.inputs, one.outputs, one.order, SMALL),
    ):
        assert native.audit(built(source)) is None


RUNS_UNASKED = {
    "a constructor": (
        outside("__attribute__((constructor)) static void wake() { woken = 1; }\n"),
        "constructors",
    ),
    "a destructor": (
        outside("__attribute__((destructor)) static void leave() { woken = 1; }\n"),
        "destructors",
    ),
    "an object of namespace scope": (
        outside(
            "#include <vector>\nstatic std::vector<int> kept(4);\nint* first() { return kept.data(); }\n"
        ),
        "static in a function",
    ),
    "an entry in the array by name": (
        outside(
            "static void wake() { woken = 1; }\n"
            '__attribute__((used, section(".init_array"))) static void (*const entry)() = wake;\n'
        ),
        "constructors",
    ),
    "code in .init": (
        outside('asm(".section .init,\\"ax\\",%progbits\\n\\tnop\\n\\t.text");\n'),
        "code of its own in .init",
    ),
    "code in .fini": (
        outside('asm(".section .fini,\\"ax\\",%progbits\\n\\tnop\\n\\t.text");\n'),
        "code of its own in .fini",
    ),
    "a function the start-up code looks for": (
        outside('extern "C" __attribute__((visibility("hidden"))) void __gmon_start__() {}\n'),
        "defines __gmon_start__",
    ),
    "a resolver": (
        outside(
            'extern "C" int one() { return 1; }\n'
            'extern "C" int (*choose())() { return one; }\n'
            'extern "C" int chosen() __attribute__((ifunc("choose")));\n'
        ),
        "resolver",
    ),
    "memory that is written and executed": (
        outside('asm(".section .both,\\"awx\\",%progbits\\n\\t.long 0\\n\\t.text");\n'),
        "both written and executed",
    ),
    "an executable stack": (
        outside('asm(".section .note.GNU-stack,\\"x\\",%progbits\\n\\t.text");\n'),
        "executable stack",
    ),
}


@pytest.mark.parametrize("name", RUNS_UNASKED)
def test_what_runs_unasked_is_refused_with_and_without_the_guards(name: str, built: Builder) -> None:
    source, words = RUNS_UNASKED[name]
    raw = built(source)
    for guarded in (True, False):
        found = native.audit(raw, guarded=guarded)
        assert found is not None
        assert (found.status, words in found.reason) == (Status.REFUSED, True), found.reason


INSTRUCTIONS = {
    "syscall": 'asm volatile("syscall" ::: "rax", "rcx", "r11");',
    "int 0x80": 'asm volatile("int $0x80" ::: "rax");',
    "rdtsc": "if (!__builtin_ia32_rdtsc()) return KW_UNSUPPORTED_SHAPE;",
    "rdtscp": 'asm volatile("rdtscp" ::: "rax", "rcx", "rdx");',
}


@X86_ONLY
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_instruction_no_kernel_needs_is_refused_by_name(name: str, built: Builder) -> None:
    found = native.audit(built(inside(INSTRUCTIONS[name])), guarded=False)
    assert found is not None
    assert (found.status, f"the instruction {name}," in found.reason) == (Status.REFUSED, True), found.reason


@X86_ONLY
def test_the_same_bytes_inside_another_instruction_are_none(built: Builder) -> None:
    raw = built(
        inside("volatile int number = 0x310f050f; if (number == 0x050f310f) return KW_UNSUPPORTED_SHAPE;")
    )
    assert raw.count(b"\x0f\x05\x0f\x31") == 1
    assert native.audit(raw) is None


@X86_ONLY
def test_bytes_that_cannot_be_counted_off_are_refused() -> None:
    assert instructions.starts_at(b"\x90\x06\x0f\x05", 0, 2)
    assert not instructions.starts_at(b"\x90\xb8\x0f\x05\x00\x00\xc3", 0, 2)


@X86_ONLY
@pytest.mark.skipif(shutil.which("objdump") is None, reason="no disassembler to compare with")
def test_instructions_are_counted_off_as_a_disassembler_does(built: Builder, tmp_path: Path) -> None:
    raw = built((ROOT / "seeds" / "softmax" / "cpp.cpp").read_text())
    (text,) = (section for section in sections_of(raw) if section.name == ".text")
    code = raw[text.offset : text.offset + text.size]
    said = subprocess.run(
        ["objdump", "-d", "-j", ".text", "--no-show-raw-insn", str(tmp_path / "kernel.so")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    starts = [int(found[1], 16) - text.address for found in re.finditer(r"^ +([0-9a-f]+):\t", said, re.M)]
    assert len(starts) > 1000
    assert [instructions.instruction(code, start)[1] for start in starts[:-1]] == starts[1:]


@pytest.mark.parametrize(
    ("word", "name"), [(0xD400_0001, "svc"), (0xD53B_E040, "mrs")], ids=("system call", "clock")
)
def test_instructions_of_arm_are_found_where_they_are_aligned(word: int, name: str, built: Builder) -> None:
    raw = bytearray(built(inside("")))
    (text,) = (section for section in sections_of(raw) if section.name == ".text")
    struct.pack_into("<H", raw, 18, at_load.ARM64)
    for section in sections_of(raw):
        if section.flags & 4:
            raw[section.offset : section.offset + section.size] = bytes(section.size)
    assert instructions.refusal(bytes(raw)) is None
    struct.pack_into("<I", raw, text.offset + 6, word)
    assert instructions.refusal(bytes(raw)) is None
    struct.pack_into("<I", raw, text.offset + 16, word)
    assert f"the instruction {name}," in (instructions.refusal(bytes(raw)) or "")


IMPORTS = {
    "sigaction": (
        "#include <csignal>\n",
        "struct sigaction how = {}; sigaction(SIGALRM, &how, nullptr);",
        "signals",
    ),
    "setitimer": ("#include <sys/time.h>\n", "setitimer(ITIMER_REAL, nullptr, nullptr);", "do without it"),
    "clock_gettime": (
        "#include <ctime>\n",
        "timespec now; clock_gettime(CLOCK_MONOTONIC, &now);",
        "no clock",
    ),
    "omp_get_wtime": (
        "#include <omp.h>\n",
        "if (omp_get_wtime() < 0) return KW_UNSUPPORTED_SHAPE;",
        "no clock",
    ),
    "pthread_create": (
        "#include <pthread.h>\n",
        "pthread_t t; pthread_create(&t, nullptr, [](void* p) { return p; }, nullptr);",
        "OpenMP",
    ),
    "puts": ("#include <cstdio>\n", 'std::puts("here");', "prints"),
    "fopen": ("#include <cstdio>\n", 'if (!std::fopen("x", "r")) return KW_UNSUPPORTED_SHAPE;', "files"),
    "getenv": (
        "#include <cstdlib>\n",
        'if (std::getenv("HOME")) return KW_UNSUPPORTED_SHAPE;',
        "do without it",
    ),
    "rand": ("#include <cstdlib>\n", "if (std::rand() == 3) return KW_UNSUPPORTED_SHAPE;", "at random"),
}


@pytest.mark.parametrize("name", IMPORTS)
def test_what_is_not_on_the_list_is_refused_by_name_with_a_remedy(name: str, built: Builder) -> None:
    headers, statement, remedy = IMPORTS[name]
    raw = built(inside(statement, headers))
    found = native.audit(raw)
    assert found is not None
    assert (found.status, f"uses {name} of lib" in found.reason, remedy in found.reason) == (
        Status.REFUSED,
        True,
        True,
    ), found.reason
    assert native.audit(raw, guarded=False) is None


def test_a_verdict_tells_what_the_audit_read_and_who_fails_it_never_runs(judge: JudgeClient) -> None:
    problem = problem_of("rmsnorm", cpu_device())
    found = judge.evaluate(
        problem, author_candidate("rmsnorm", "cpp", honest_source("rmsnorm")), Profile.QUICK
    )
    assert (found.status, found.environment["audit"].split("+")[:3]) == (
        Status.ACCEPTED,
        ["symbols", "list", "load"],
    )
    (sleeper,) = (one for one in specimens("cpu") if one.name == "ET7_sleeps_until_it_is_shipped")
    found = judge.evaluate(problem, sleeper.candidate(), Profile.QUICK)
    assert (found.status, found.stages[-1].stage.value) == (Status.REFUSED, "build")
    assert found.artefact_hashes == {}


def test_a_file_that_is_no_library_is_refused_and_source_is_left_to_others() -> None:
    assert native.audit(b"print('hello')") is None
    assert native.audit(b"\x7fELF\x02\x01" + bytes(10)) == Finding(
        Status.REFUSED,
        "the artefact is not a well-formed ELF file: unpack_from requires a buffer of at least 48 bytes for unpacking 8"
        " bytes at offset 40 (actual buffer size is 16)",
    )
