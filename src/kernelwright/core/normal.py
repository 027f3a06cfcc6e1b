"""The normal form of a source: what is left when comments, docstrings and layout are taken away.

Two candidates with the same normal form and the same parameters are one node of the tree; an author that only moved
a comment has proposed nothing. The normal form decides nothing else: what is judged is always the text itself.
"""

import ast
import re
from functools import lru_cache

from kernelwright.core.candidate import Candidate
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.plan_language import OPENING, PlanFault, python_part
from kernelwright.core.tree import Tree

PYTHON_BACKENDS = frozenset({"triton", "python", "eager", "compiled"})
KEY_DIGITS = 16
REMEMBERED = 1 << 16
"""Sources whose normal form is kept: a few milliseconds each, asked for again with every brief of a long run."""

TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<raw>(?:u8|[uUL])?R"(?P<edge>[^ ()\\\s]{0,16})\(.*?\)(?P=edge)")
  | (?P<text>(?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
  | (?P<number>\.?\d(?:[eEpP][+-]|'?\w|\.)*)
  | (?P<word>\w+)
  | (?P<line>\n)
  | (?P<space>[^\S\n]+)
  | (?P<operator><=>|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|.)
    """,
    re.VERBOSE | re.DOTALL,
)


def normal(source: str, backend: str) -> str:
    """Return the digest of a source's normal form in its language."""
    return _python(source) if backend in PYTHON_BACKENDS else _cpp(source)


def length(source: str, backend: str) -> int:
    """Return how long a source is, comments, docstrings and layout aside: parts of the tree, or tokens."""
    if backend not in PYTHON_BACKENDS:
        return len(_tokens(source.replace("\\\n", "")))
    try:
        return sum(1 for _ in ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return len(source.split())


def key_of(candidate: Candidate) -> str:
    """Return what no two nodes of a problem share: language, normal form and parameters."""
    choices = [[sorted(choice.case_hashes), choice.values] for choice in candidate.choices]
    parts = [candidate.op, candidate.backend, normal(candidate.source, candidate.backend), choices]
    return digest(canonical_json([*parts, candidate.origin.value]))[:KEY_DIGITS]


def known_keys(tree: Tree, problem_hash: str) -> dict[str, str]:
    """Return the candidate hash of every node of a problem by its key; the first of twins."""
    found: dict[str, str] = {}
    for (problem, own), node in tree.nodes.items():
        if problem == problem_hash:
            found.setdefault(key_of(node.candidate), own)
    return found


@lru_cache(maxsize=REMEMBERED)
def _python(source: str) -> str:
    """Return the digest of the syntax tree without docstrings; of the text itself if it cannot be parsed."""
    try:
        return digest("python:" + _dumped(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return digest("text:" + source)


def _dumped(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[isinstance(first.value.value, str) :]
    return ast.dump(tree, annotate_fields=False)


@lru_cache(maxsize=REMEMBERED)
def _cpp(source: str) -> str:
    """Return the digest of the tokens; the block comment with parameters and plan counts, as the Python it is."""
    ours = ""
    if OPENING in source:
        try:
            ours = _python(python_part(source))
        except PlanFault:
            return digest("text:" + source)
    # Lines joined by a backslash are one line; inside a raw string that is not so, which costs a missed twin at worst.
    tokens = _tokens(source.replace("\\\n", ""))
    return digest(canonical_json(["cpp", ours, tokens]))


def _tokens(source: str) -> list[str]:
    """Return the tokens that matter: spaces and line ends only inside directives, where they do."""
    found: list[str] = []
    starts_line, in_directive = True, False
    for match in TOKEN.finditer(source):
        kind, text = match.lastgroup, match[0]
        if kind == "line":
            if in_directive:
                found.append("\n")
            starts_line, in_directive = True, False
        elif kind in ("space", "comment"):
            if in_directive and found[-1] != " ":
                found.append(" ")
        else:
            in_directive = in_directive or (starts_line and text == "#")
            starts_line = False
            found.append(text)
    return [text for place, text in enumerate(found) if text != " " or found[place + 1 : place + 2] != ["\n"]]
