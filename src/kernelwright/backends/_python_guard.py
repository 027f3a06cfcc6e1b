"""The static guard of a plain Python file: an allow-list of statements, imports, names, attributes and calls.

Everything is allowed by name or refused. What a file may do on the host is allocate, take views, do arithmetic on
sizes, and launch kernels of its own; work handed to the framework is `DELEGATION`, anything else that is not on the
lists is `REFUSED`. It reads the syntax tree only and cannot tell a tensor from a number in `a * b`: that is what the
census in the runner is for.
"""

import ast
from dataclasses import dataclass, field

from kernelwright.backends._triton_guard import MODULES as TRITON_MODULES
from kernelwright.backends._triton_guard import PACKAGES, TritonGuard
from kernelwright.core.verdict import Status

ENTRY, MODEL = "kernel_fn", "ModelNew"
CPP_DOOR = "cpp_kernel"
"""`NAME = cpp_kernel(SOURCE)`: C++ with the C ABI of the cpp backend, compiled by the builder."""
IMPORTS = ("torch", "torch.nn", "torch.nn.functional", *TRITON_MODULES)
DTYPES = tuple(
    f"torch.{name}"
    for name in (
        "float32",
        "float16",
        "bfloat16",
        "float64",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    )
)
ALLOCATORS = tuple(
    f"torch.{name}" for name in ("empty", "empty_like", "empty_strided", "zeros", "zeros_like")
)
TRITON = frozenset({"triton.cdiv", "triton.next_power_of_2"}) | {
    f"triton.language.{name}"
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8")
}
TORCH = frozenset({*DTYPES, *ALLOCATORS, "torch.Tensor", "torch.nn.Module", "torch.device", "torch.Size"})
INITIAL = frozenset({"torch.randn", "torch.rand", "torch.ones", "torch.full", "torch.nn.Parameter", *TORCH})
"""What `ModelNew.__init__` may use besides modules of torch.nn as holders of parameters: its values are replaced."""
TENSOR = frozenset(
    {
        *("shape", "dtype", "device", "ndim", "itemsize", "is_cuda", "T", "mT"),
        *("size", "stride", "numel", "dim", "data_ptr", "element_size", "storage_offset", "is_contiguous"),
        *(
            "view",
            "reshape",
            "flatten",
            "permute",
            "transpose",
            "t",
            "squeeze",
            "unsqueeze",
            "expand",
            "narrow",
        ),
        *("select", "as_strided", "contiguous", "detach", "new_empty", "new_zeros", "weight", "bias"),
    }
)
"""Attributes of a tensor: facts, views, allocation, and one copy (`contiguous`)."""
BUILTINS = frozenset(
    {
        *(
            "range",
            "len",
            "min",
            "max",
            "int",
            "float",
            "bool",
            "abs",
            "round",
            "sum",
            "tuple",
            "list",
            "zip",
        ),
        *("enumerate", "isinstance", "super", "True", "False", "None", "all", "any", "reversed", "sorted"),
        *("ValueError", "TypeError", "RuntimeError", "NotImplementedError", "AssertionError"),
    }
)
HOST_NODES: tuple[type[ast.AST], ...] = (
    *(ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.If),
    *(ast.For, ast.While, ast.Break, ast.Continue, ast.Pass, ast.Raise, ast.Assert, ast.Expr, ast.Lambda),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Starred),
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Tuple, ast.List, ast.Dict),
    *(ast.ListComp, ast.GeneratorExp, ast.comprehension, ast.JoinedStr, ast.FormattedValue),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


@dataclass(frozen=True)
class Finding:
    """Why a file is not accepted."""

    status: Status
    reason: str


def examine(source: str) -> Finding | None:
    """Return the first thing wrong with a file: what is not allowed before what is delegated."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Finding(Status.REFUSED, f"not valid Python: {error}")
    reading = _Reading()
    for node in tree.body:
        reading.statement(node)
    reading.bodies()
    found = sorted(reading.findings, key=lambda finding: finding.status is Status.DELEGATION)
    return found[0] if found else reading.without_kernel()


@dataclass
class _Reading:
    """What a file defines, and what was found on the way."""

    triton: TritonGuard = field(default_factory=TritonGuard)
    kernels: dict[str, ast.FunctionDef] = field(default_factory=dict)
    doors: set[str] = field(default_factory=set)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    methods: dict[str, ast.FunctionDef] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    def refuse(self, node: ast.AST, reason: str) -> None:
        """Note what is not allowed."""
        self.findings.append(Finding(Status.REFUSED, f"line {getattr(node, 'lineno', 1)}: {reason}"))

    def delegate(self, node: ast.AST, what: str) -> None:
        """Note work that is handed to the framework."""
        reason = f"line {getattr(node, 'lineno', 1)}: {what} is the framework's work, not a kernel of the file's own"
        self.findings.append(Finding(Status.DELEGATION, reason))

    def statement(self, node: ast.stmt) -> None:
        """Read one statement of the module."""
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.Import() | ast.ImportFrom():
                if reason := self.triton.bind_import(node, IMPORTS, PACKAGES):
                    self.refuse(node, reason)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if self.triton.is_literal(value):
                self.constants.add(name)
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Name(id=door), args=[ast.Constant(value=str()) | ast.Name()], keywords=[]
                ),
            ) if door == CPP_DOOR:
                self.doors.add(name)
            case ast.FunctionDef(decorator_list=[]):
                self.functions[node.name] = node
            case ast.FunctionDef():
                self.kernels[node.name] = node
                if reason := self.triton.kernel_head(node):
                    self.refuse(node, reason)
            case ast.ClassDef():
                self._class(node)
            case _:
                self.refuse(node, f"{type(node).__name__} is not allowed at module level")

    def _class(self, node: ast.ClassDef) -> None:
        bases = [self.triton.dotted(base) for base in node.bases]
        if node.name != MODEL or bases != ["torch.nn.Module"] or node.keywords or node.decorator_list:
            self.refuse(node, f"the one class allowed is `class {MODEL}(torch.nn.Module)`")
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef) and not inner.decorator_list:
                self.methods[inner.name] = inner
                if inner.name.startswith("__") and inner.name != "__init__":
                    self.refuse(inner, f"the method {inner.name!r} is not allowed")
            elif not (isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant)):
                self.refuse(inner, f"{type(inner).__name__} is not allowed in a class")

    def bodies(self) -> None:
        """Read what functions, methods and kernels do."""
        for function in self.functions.values():
            _Host(self, function).read()
        for name, method in self.methods.items():
            _Host(self, method, is_initial=name == "__init__").read()
        for kernel in self.kernels.values():
            for node in ast.walk(kernel):
                full = self.triton.bound.get(node.id, "") if isinstance(node, ast.Name) else ""
                if full.startswith("torch"):
                    self.refuse(node, f"{full!r} is not allowed in a kernel")
                elif reason := self.triton.reach(node):
                    self.refuse(node, reason)

    def without_kernel(self) -> Finding | None:
        """Return why no kernel of the file's own does the work, or None."""
        start = self.functions.get(ENTRY) or self.methods.get("forward")
        if start is None:
            return Finding(Status.REFUSED, f"neither `{ENTRY}` nor `class {MODEL}` with `forward`")
        if not self.kernels and not self.doors:
            reason = f"no kernel of its own: no function under triton.jit or gluon.jit, no {CPP_DOOR}(source)"
            return Finding(Status.DELEGATION, reason)
        waiting, seen = [start], set()
        while waiting:
            function = waiting.pop()
            seen.add(function.name)
            for node in ast.walk(function):
                match node:
                    case ast.Call(func=ast.Subscript(value=ast.Name(id=name))) if name in self.kernels:
                        return None
                    case ast.Call(func=ast.Name(id=name)) if name in self.doors:
                        return None
                    case ast.Name(id=name) if name in self.functions and name not in seen:
                        waiting.append(self.functions[name])
                    case ast.Attribute(value=ast.Name(id="self"), attr=name) if (
                        name in self.methods and name not in seen
                    ):
                        waiting.append(self.methods[name])
        return Finding(Status.DELEGATION, f"{start.name!r} never launches a kernel of the file's own")


class _Host:
    """Reads one function that runs on the host."""

    def __init__(self, file: _Reading, function: ast.FunctionDef, *, is_initial: bool = False) -> None:
        self.file, self.function, self.is_initial = file, function, is_initial
        stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _stores(node)}
        arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        self.known = stored | arguments | file.constants | file.kernels.keys() | file.doors
        self.known |= file.functions.keys() | BUILTINS | {MODEL}
        self.inner: set[int] = set()
        """Attributes that are part of a longer chain already read."""

    def read(self) -> None:
        """Note everything the function may not do."""
        for node in ast.walk(self.function):
            if not isinstance(node, HOST_NODES):
                self.file.refuse(node, f"{type(node).__name__} is not allowed in a function of the host")
            elif isinstance(node, ast.FunctionDef) and node is not self.function:
                self.file.refuse(node, "a function inside a function is not allowed")
            elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
                self.file.delegate(node, "`@`")
            elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                self._store(node)
            elif isinstance(node, ast.arguments):
                self._defaults(node)
            elif isinstance(node, ast.Name):
                self._name(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Attribute) and id(node) not in self.inner:
                self._attribute(node, is_called=False)

    def _store(self, node: ast.Attribute | ast.Subscript) -> None:
        """Refuse what would carry something from one call to the next."""
        self.inner.add(id(node))
        root: ast.expr = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        name = root.id if isinstance(root, ast.Name) else ""
        is_own = self.is_initial and name == "self" and isinstance(node, ast.Attribute)
        is_local = isinstance(node, ast.Subscript) and name not in (*self.file.constants, "self")
        if not (is_own and not node.attr.startswith("__")) and not is_local:  # type: ignore[union-attr]
            self.file.refuse(node, f"`{ast.unparse(node)}` may not be assigned: it outlives the call")

    def _defaults(self, node: ast.arguments) -> None:
        values = [*node.defaults, *(value for value in node.kw_defaults if value)]
        if not all(isinstance(value, ast.Constant | ast.UnaryOp) for value in values):
            self.file.refuse(self.function, f"defaults of {self.function.name!r} must be plain constants")

    def _name(self, node: ast.Name) -> None:
        if node.id in self.file.triton.bound:
            if id(node) not in self.inner:
                self._library(node, [], node, is_called=False)
        elif node.id not in self.known or node.id.startswith("__"):
            self.file.refuse(node, f"the name {node.id!r} is not allowed")

    def _call(self, node: ast.Call) -> None:
        """Read what is called; plain names were read as names."""
        if isinstance(node.func, ast.Attribute):
            self._attribute(node.func, is_called=True)

    def _attribute(self, node: ast.Attribute, *, is_called: bool) -> None:
        """Read a whole chain `a.b.c` once, from its outermost attribute."""
        chain, root = _chain(node)
        if node.attr.startswith("__") and not (self.is_initial and node.attr == "__init__"):
            return self.file.refuse(node, f"{node.attr!r} is not allowed")
        for part in chain[1:]:
            self.inner.add(id(part))
        self.inner |= {id(node), id(root)}
        if isinstance(root, ast.Name) and root.id in self.file.triton.bound:
            return self._library(node, [part.attr for part in reversed(chain)], root, is_called=is_called)
        if isinstance(root, ast.Name) and root.id == "self":
            return self._own(node, [part.attr for part in reversed(chain)], is_called=is_called)
        names = [part.attr for part in reversed(chain)]
        if self.is_initial and names == ["__init__"]:
            return None
        return self._facts(node, names, is_called=is_called)

    def _facts(self, node: ast.AST, names: list[str], *, is_called: bool) -> None:
        """Read attributes of a value: a fact, a view, or the framework's work."""
        for name in names:
            if name not in TENSOR:
                if is_called and not name.startswith("_"):
                    return self.file.delegate(node, f"`.{name}(...)`")
                return self.file.refuse(node, f"the attribute {name!r} is not allowed")
        return None

    def _own(self, node: ast.AST, names: list[str], *, is_called: bool) -> None:
        """Read an attribute of the model: its methods may be called, modules it holds may not."""
        if any(name.startswith("__") for name in names):
            return self.file.refuse(node, "a name with two underscores is not allowed")
        if self.is_initial:
            return None
        if is_called and len(names) == 1 and names[0] not in self.file.methods:
            return self.file.delegate(node, f"calling the module `self.{names[0]}`")
        return self._facts(node, names[-1:], is_called=True) if is_called and len(names) > 1 else None

    def _library(self, node: ast.AST, names: list[str], root: ast.Name, *, is_called: bool) -> None:
        """Read a name of an imported module; attributes may follow one that is allowed."""
        allowed = (INITIAL if self.is_initial else TORCH) | TRITON
        full = self.file.triton.bound[root.id]
        for place in range(len(names) + 1):
            full = ".".join([self.file.triton.bound[root.id], *names[:place]])
            if full in allowed or _is_formula(full) or (self.is_initial and _is_holder(full)):
                return self._facts(node, names[place:], is_called=is_called)
        if full.startswith("torch.") and not _is_private(full):
            return self.file.delegate(node, f"`{full}`")
        return self.file.refuse(node, f"{full!r} is not allowed on the host")


def _is_formula(full: str) -> bool:
    """Tell whether a name is a function or constant of the math module."""
    return full.startswith("math.") and "_" not in full and full.count(".") == 1


def _is_private(full: str) -> bool:
    """Tell whether a name of torch leads behind its public functions."""
    doors = (
        "torch.ops",
        "torch.jit",
        "torch.compile",
        "torch.utils",
        "torch.library",
        "torch.classes",
        "torch.hub",
    )
    return full.startswith(doors) or any(part.startswith("_") for part in full.split("."))


def _is_holder(full: str) -> bool:
    """Tell whether a name is a class of torch.nn or a way to fill its parameters."""
    words = full.split(".")
    return (len(words) == 3 and full.startswith("torch.nn.") and words[2][:1].isupper()) or (
        len(words) == 4 and full.startswith("torch.nn.init.")
    )


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _chain(node: ast.Attribute) -> tuple[list[ast.Attribute], ast.expr]:
    """Return the attributes of `a.b.c`, outermost first, and `a`."""
    parts, inner = [node], node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner)
        inner = inner.value
    return parts, inner
