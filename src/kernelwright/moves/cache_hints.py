"""Tells the caches what will not be needed again: streamed loads and stores then leave room for what is shared."""

from collections.abc import Sequence

import libcst as cst

from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cst import Kernels, Unreadable, every, is_call, kernels_of, keyword

SUMMARY = "eviction hints on loads and stores"
BACKENDS = ("triton",)
AGAINST = (Bottleneck.CACHE_MISSES, Bottleneck.MEMORY_BANDWIDTH)
HINT = "eviction_policy"
WAYS = (
    ("tl.store", "evict_first", None, "stores marked as not needed again"),
    ("tl.load", "evict_first", False, "streamed loads marked as not needed again"),
    ("tl.load", "evict_last", True, "loads that all programs share marked as to be kept"),
)
"""Call, policy, whether it must be of an address that does not depend on the program, and the words for it."""


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with hints on its stores, on its streamed loads, and with shared operands kept."""
    try:
        kernels = kernels_of(subject.source)
        found = [moved for way in WAYS if (moved := _hinted(kernels, *way))]
    except Unreadable as error:
        return str(error)
    return found or "every load and store has a hint, or there is none"


def _hinted(kernels: Kernels, call: str, policy: str, is_shared: bool | None, words: str) -> Moved | None:
    editor = _Hinter(kernels, call, policy, is_shared)
    after = kernels.module.visit(editor)
    return Moved(after.code, f"{editor.count} {words}") if editor.count else None


class _Hinter(cst.CSTTransformer):
    def __init__(self, kernels: Kernels, call: str, policy: str, is_shared: bool | None) -> None:
        self.kernels, self.call, self.policy, self.is_shared = kernels, call, policy, is_shared
        self.count = 0
        self.own: set[str] = set()
        """Names whose value depends on which program it is."""

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802 - the library's own name
        self.own = _program_names(self.kernels, node)
        return self.kernels.is_kernel(node)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        words = {one.keyword.value for one in updated_node.args if one.keyword}
        if not is_call(original_node, self.call) or HINT in words or not original_node.args or not self.own:
            return updated_node
        names = {one.value for one in every(original_node.args[0], cst.Name)}
        if self.is_shared is not None and bool(names & self.own) == self.is_shared:
            return updated_node
        self.count += 1
        last = updated_node.args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        return updated_node.with_changes(
            args=[*updated_node.args[:-1], last, keyword(HINT, f'"{self.policy}"')]
        )


def _program_names(kernels: Kernels, function: cst.FunctionDef) -> set[str]:
    """Return the names of a kernel that are computed from its program's number, in any number of steps."""
    found: set[str] = set()
    for _ in range(2):  # a loop may use what a later line assigns
        for assignment in every(function.body, cst.Assign):
            value = {one.value for one in every(assignment.value, cst.Name)}
            is_own = bool(value & found) or "tl.program_id" in kernels.calls(assignment.value)
            if is_own:
                found |= {name.value for one in assignment.targets for name in every(one.target, cst.Name)}
    return found
