"""C++ and CUDA C++ as a syntax tree: what moves look for, and edits that leave every other byte alone.

Directives such as `#pragma` stand between statements, where the grammar knows none: they are blanked before parsing,
at the same length, so that every place in the tree is a place in the text. `#if` and `#define` stay: the grammar
knows them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Language, Node, Parser, Tree

PARSED = 64
"""Parsed sources kept: every move of a brief looks at the same one, at 5 ms each."""
BLANKED = (b"KW_DEVICE", b"__align__(16)")
"""Words of CUDA sources that say nothing about structure and that the grammar does not know."""


class Unparsed(ValueError):
    """A source the grammar cannot read: no move applies to it."""


@dataclass(frozen=True)
class Pragma:
    """One `#pragma` line."""

    start: int
    end: int
    """Without the line's end."""
    text: str


@dataclass(frozen=True)
class Unit:
    """A parsed source."""

    data: bytes
    tree: Tree
    pragmas: tuple[Pragma, ...]

    @property
    def root(self) -> Node:
        """Return the whole file."""
        return self.tree.root_node

    def text(self, node: Node) -> str:
        """Return the source of a node."""
        return self.data[node.start_byte : node.end_byte].decode()

    def every(self, *kinds: str, within: Node | None = None) -> Iterator[Node]:
        """Yield the nodes of some kinds, in the order of the text, outer ones first."""
        waiting = [within or self.root]
        while waiting:
            node = waiting.pop()
            if node.type in kinds:
                yield node
            waiting.extend(reversed(node.children))

    def calls(self, *names: str, within: Node | None = None) -> Iterator[tuple[Node, list[Node]]]:
        """Yield calls of functions by their plain name, each with its arguments."""
        for call in self.every("call_expression", within=within):
            function, arguments = field(call, "function"), field(call, "arguments")
            if function and arguments and self.text(function).split("<")[0] in names:
                yield call, list(arguments.named_children)

    def names(self, node: Node) -> list[str]:
        """Return the identifiers in a node, in order."""
        return [self.text(one) for one in self.every("identifier", within=node)]

    def line_start(self, place: int) -> int:
        """Return where the line of a byte begins."""
        return self.data.rfind(b"\n", 0, place) + 1

    def indent(self, place: int) -> str:
        """Return the white space at the beginning of a byte's line."""
        line = self.data[self.line_start(place) :]
        return line[: len(line) - len(line.lstrip(b" "))].decode()

    def pragmas_above(self, node: Node) -> list[Pragma]:
        """Return the pragmas that belong to a statement: those on the lines right above it, the nearest first."""
        found: list[Pragma] = []
        place = self.line_start(node.start_byte)
        if self.data[place : node.start_byte].strip():
            return found
        for pragma in reversed(self.pragmas):
            if pragma.end + 1 == place:
                found.append(pragma)
                place = pragma.start
        return found


def field(node: Node, name: str) -> Node | None:
    """Return a named part of a node."""
    return node.child_by_field_name(name)


def enclosing(node: Node, *kinds: str) -> Node | None:
    """Return the nearest node around one that is of some kind."""
    above = node.parent
    while above is not None and above.type not in kinds:
        above = above.parent
    return above


def statement_of(node: Node) -> Node:
    """Return the outermost statement around a node that stands directly in a block of its function."""
    while node.parent is not None and node.parent.type != "compound_statement":
        node = node.parent
    return node


def top_of(node: Node) -> Node:
    """Return the declaration around a node that stands in a namespace or in the file itself."""
    while node.parent is not None and node.parent.type not in ("translation_unit", "declaration_list"):
        node = node.parent
    return node


def bare(node: Node) -> Node:
    """Return what stands inside parentheses."""
    while node.type == "parenthesized_expression":
        node = node.named_children[0]
    return node


def output_stores(unit: Unit) -> list[tuple[Node, str]]:
    """Return calls that store vectors to outputs inside a loop or a visitor, each with the name it calls."""
    found = []
    for name in ("store", "store_part"):
        for call, arguments in unit.calls(name):
            around = enclosing(call, "for_statement", "lambda_expression")
            if around is not None and arguments and _is_output(unit, call, arguments[0]):
                found.append((call, name))
    return found


def _is_output(unit: Unit, call: Node, place: Node) -> bool:
    """Tell whether an address is in a buffer of the template's element type: scratch memory is always fp32."""
    roots = unit.names(place)
    function = enclosing(call, "function_definition")
    if not roots or function is None:
        return False
    for declared in unit.every("parameter_declaration", "declaration", within=function):
        kind, declarator = field(declared, "type"), field(declared, "declarator")
        if kind is None or declarator is None or unit.text(kind) != "T":
            continue
        is_const = any(child.type == "type_qualifier" for child in declared.named_children)
        pointers = [one for one in unit.every("pointer_declarator", within=declarator)]
        if pointers and not is_const and unit.names(declarator)[:1] == roots[:1]:
            return True
    return False


@lru_cache(maxsize=PARSED)
def parse(source: str, backend: str) -> Unit:
    """Return the syntax tree of a C++ or CUDA source."""
    data = source.encode()
    masked, pragmas = bytearray(data), list[Pragma]()
    start = 0
    for line in data.splitlines(keepends=True):
        body = line.rstrip(b"\r\n")
        if body.lstrip().startswith(b"#pragma") and not body.endswith(b"\\"):
            pragmas.append(Pragma(start, start + len(body), body.decode()))
            masked[start : start + len(body)] = b" " * len(body)
        start += len(line)
    for word in BLANKED if backend == "cuda" else ():
        _blank(masked, word)
    tree = Parser(_language(backend)).parse(bytes(masked))
    if tree.root_node.has_error:
        raise Unparsed(f"the {backend} source has a construct the grammar does not know")
    return Unit(data, tree, tuple(pragmas))


def _blank(masked: bytearray, word: bytes) -> None:
    place = masked.find(word)
    while place >= 0:
        masked[place : place + len(word)] = b" " * len(word)
        place = masked.find(word, place)


def _language(backend: str) -> Language:
    if backend == "cuda":
        import tree_sitter_cuda

        return Language(tree_sitter_cuda.language())
    import tree_sitter_cpp

    return Language(tree_sitter_cpp.language())


@dataclass(frozen=True)
class Edit:
    """Bytes from `start` to `end` become `text`."""

    start: int
    end: int
    text: str


def replaced(node: Node, text: str) -> Edit:
    """Return the edit that puts a text in a node's place."""
    return Edit(node.start_byte, node.end_byte, text)


def inserted(place: int, text: str) -> Edit:
    """Return the edit that puts a text before a byte."""
    return Edit(place, place, text)


def edited(unit: Unit, edits: Sequence[Edit], backend: str) -> str:
    """Return the source after some edits; raises `Unparsed` if it can no longer be parsed."""
    data = unit.data
    for edit in sorted(edits, key=lambda one: (one.start, one.end), reverse=True):
        data = data[: edit.start] + edit.text.encode() + data[edit.end :]
    source = data.decode()
    parse(source, backend)
    return source
