"""Tessera, the language of the Orrery-3: an invented accelerator, emulated on the CPU by way of C++ (tier B)."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from kernelwright.core import plugins
from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case
from kernelwright.core.frozen import digest
from kernelwright.core.ports import Availability, BuildResult
from kernelwright.core.verdict import Status

SUMMARY = "tessera on an emulated Orrery-3"
EXTENSION = ".tsr"
TIER = "B"
NOTES = "One program for a row; its instructions are in the documents of the chip."

INSIDE = {
    "quill": "const double {0} = static_cast<double>(static_cast<float>({1}_row[i * {1}_step]));",
    "ember": "{0}_row[i * {0}_step] = static_cast<T>(static_cast<float>({1}));",
    "braid": "{0} += {1} * {2};",
    "weld": "const double {0} = {1} * {2};",
}
OUTSIDE = {
    "tally": "double {0} = 0.0;",
    "plinth.mean": "{0} = {1} / static_cast<double>(cols);",
    "plinth.add": "{0} = {1} + {2};",
    "plinth.rsqrt": "{0} = 1.0 / std::sqrt({1});",
}
WORD = re.compile(r"[a-z][a-z0-9_]*")


class Misprint(Exception):
    """A line that is no tessera."""


def cpp() -> ModuleType:
    """Return the language the chip is emulated in."""
    return plugins.load("backends", "cpp")


def available() -> Availability:
    """Tell whether the emulator can be built."""
    found: Availability = cpp().available()
    return found


def fingerprint() -> str:
    """Return what decides the artefact besides the source: this file and the compiler."""
    return digest(Path(__file__).read_bytes()) + str(cpp().fingerprint())


def check(source: str) -> str | None:
    """Return why the assembler refuses a program, or None."""
    try:
        assembled(source)
    except Misprint as fault:
        return str(fault)
    return None


def build(source: str, values: Mapping[str, ParamValue], folder: Path) -> BuildResult:
    """Assemble a program and compile its emulation."""
    try:
        text = assembled(source)
    except Misprint as fault:
        return BuildResult(status=Status.BUILD_FAILED, log=str(fault))
    found: BuildResult = cpp().build(text, values, folder)
    return found


def bind(
    artefact: Path, cases: Sequence[Case], calls: Sequence[tuple[int, Mapping[str, int]]]
) -> list[Callable[[], int]]:
    """Return one closure per call."""
    found: list[Callable[[], int]] = cpp().bind(artefact, cases, calls)
    return found


def assembled(source: str) -> str:
    """Return the C++ that emulates a program."""
    lines = [(number, line.partition(";")[0].strip()) for number, line in enumerate(source.splitlines(), 1)]
    (first, head), *rest = [(number, line) for number, line in lines if line] or [(1, "")]
    parts = [part.split() for part in head.removeprefix("lanes ").split("|")]
    if not head.startswith("lanes ") or len(parts) != 3 or not all(map(_are_words, parts)):
        raise Misprint(f"line {first}: a program begins with `lanes INPUTS | SCALARS | OUTPUTS`")
    inputs, scalars, outputs = parts
    body = "\n".join(_body(rest))
    rows = "\n".join(_row(name) for name in (*inputs, *outputs))
    signature = ", ".join(
        [*(f"const kw_tensor* {one}" for one in inputs), *(f"double {one}" for one in scalars)]
        + [f"const kw_tensor* {one}" for one in outputs]
    )
    handed = ", ".join((*inputs, *scalars, *outputs))
    return TEMPLATE.format(
        rows=rows, body=body, signature=signature, handed=handed, first=inputs[0], last=outputs[0]
    )


def _are_words(names: Sequence[str]) -> bool:
    return all(WORD.fullmatch(name) for name in names)


def _row(name: str) -> str:
    return (
        f"T* {name}_row = static_cast<T*>({name}->data) + ({name}->ndim > 1 ? row * {name}->stride[0] : 0);\n"
        f"const int64_t {name}_step = {name}->stride[{name}->ndim - 1];"
    )


def _body(lines: Sequence[tuple[int, str]]) -> list[str]:
    """Return the statements of a row."""
    found, inside = [], False
    for number, line in lines:
        name, _, operands = line.partition(" ")
        if name in ("sweep", "furl"):
            if inside is (name == "sweep"):
                raise Misprint(f"line {number}: `{name}` has no counterpart")
            inside = name == "sweep"
            found.append("for (int64_t i = 0; i < cols; ++i) {" if inside else "}")
            continue
        table = INSIDE if inside else OUTSIDE
        given = [one.strip() for one in operands.split(",")]
        wanted = 1 + max((int(one) for one in re.findall(r"\{(\d)\}", table.get(name, ""))), default=-1)
        if name not in table or len(given) != wanted or not _are_words(given):
            raise Misprint(f"line {number}: `{line}` is no instruction here")
        found.append(table[name].format(*given))
    if inside:
        raise Misprint("the last sweep is not furled")
    return found


TEMPLATE = """#include "kernelwright.h"
#include <cmath>
template <typename T> static void rows_of({signature}) {{
    const int64_t rows = {first}->shape[0], cols = {first}->shape[1];
#pragma omp parallel for schedule(static) if (rows * cols >= 65536)
    for (int64_t row = 0; row < rows; ++row) {{
        {rows}
        {body}
    }}
}}
extern "C" int kernel_fn({signature}) {{
    switch ({last}->dtype) {{
        case KW_FP32: rows_of<float>({handed}); return KW_OK;
        case KW_FP16: rows_of<kw_fp16>({handed}); return KW_OK;
        case KW_BF16: rows_of<kw_bf16>({handed}); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }}
}}
"""
