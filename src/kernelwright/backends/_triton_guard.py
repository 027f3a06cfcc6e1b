"""The static guard of a Triton file: imports, literals, jitted kernels and `plan` may stand there, nothing else.

Importing such a file runs nothing of its author's. The builder's sandbox is the wall; this is the door.
"""

import ast

MODULES = ("triton", "triton.language", "triton.experimental", "triton.experimental.gluon", "math")
PACKAGES = ("triton.language.", "triton.experimental.gluon.")
"""Packages whose submodules may be imported too."""
REACHABLE = ("triton.jit", "triton.cdiv", "triton.next_power_of_2", *MODULES[1:4])
"""What a name that starts with `triton` may lead to, besides the submodules of `PACKAGES`."""
JIT = frozenset({"triton.jit", "triton.experimental.gluon.jit"})
HOST_CALLS = frozenset(
    {
        *("breakpoint", "compile", "delattr", "eval", "exec", "getattr"),
        *("globals", "input", "locals", "open", "setattr", "vars"),
    }
)


def refusal(module: ast.Module) -> str | None:
    """Return the first reason to refuse a module, with its line, or None."""
    guard = TritonGuard()
    for node in module.body:
        if reason := guard.statement(node):
            return f"line {node.lineno}: {reason}"
    if not any(isinstance(node, ast.FunctionDef) and node.name != "plan" for node in module.body):
        return "no function is decorated with triton.jit or gluon.jit"
    for inner in ast.walk(module):
        if reason := guard.reach(inner):
            return f"line {getattr(inner, 'lineno', 1)}: {reason}"
    return None


class TritonGuard:
    """Judges statements one by one and remembers what the imports bound."""

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}

    def statement(self, node: ast.stmt) -> str | None:
        """Return why a statement may not stand at module level."""
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.FunctionDef(name="plan"):
                return None
            case ast.Import() | ast.ImportFrom():
                return self.bind_import(node, MODULES, PACKAGES)
            case ast.Assign(targets=[ast.Name()], value=value) if self.is_literal(value):
                return None
            case ast.Assign():
                return "a module-level value must be a name bound to a literal or to tl.constexpr(literal)"
            case ast.FunctionDef():
                return self.kernel_head(node)
        return f"{type(node).__name__} is not allowed at module level"

    def bind_import(
        self, node: ast.Import | ast.ImportFrom, modules: tuple[str, ...], packages: tuple[str, ...]
    ) -> str | None:
        """Remember what an import binds, or return why it is refused."""
        if isinstance(node, ast.Import):
            names = {alias.name: alias.name for alias in node.names}
            bound = {
                alias.asname or alias.name.split(".")[0]: alias.name
                if alias.asname
                else alias.name.split(".")[0]
                for alias in node.names
            }
        else:
            home = "." * node.level + (node.module or "")
            names = {f"{home}.{alias.name}": home for alias in node.names}
            bound = {alias.asname or alias.name: f"{home}.{alias.name}" for alias in node.names}
        for full, module in names.items():
            if not (module in modules or module.startswith(packages)) or full.endswith("*"):
                return f"import of {full} is not allowed; only {', '.join(modules)} may be imported"
        self.bound |= bound
        return None

    def is_literal(self, node: ast.expr) -> bool:
        """Tell whether a value is a literal or tl.constexpr of one."""
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            name = self.dotted(node.func)
            return name.startswith(PACKAGES) and name.endswith(".constexpr") and self.is_literal(node.args[0])
        try:
            ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            return False
        return True

    def kernel_head(self, node: ast.FunctionDef) -> str | None:
        """Return why a function may not stand here: its decorator, or what Python would run in its head."""
        calls = [item for item in node.decorator_list if isinstance(item, ast.Call)]
        names = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
        if len(names) != 1 or self.dotted(names[0]) not in JIT or any(call.args for call in calls):
            return f"{node.name!r} must be decorated with triton.jit or gluon.jit and nothing else"
        values = [word.value for call in calls for word in call.keywords]
        values += [*node.args.defaults, *(item for item in node.args.kw_defaults if item)]
        if not all(self.is_literal(value) for value in values):
            return f"defaults and jit options of {node.name!r} must be literals"
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        notes = [note for note in (*(item.annotation for item in arguments), node.returns) if note]
        if not all(isinstance(note, ast.Constant) or self.dotted(note) for note in notes):
            return f"annotations of {node.name!r} must be plain names"
        return None

    def reach(self, node: ast.AST) -> str | None:
        """Return why a node reaches out of the kernel language."""
        if isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset:
            return "an import must stand at module level"
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name.startswith("__") or (isinstance(node, ast.Name) and name in HOST_CALLS):
            return f"{name!r} is not allowed"
        full = self.dotted(node) if isinstance(node, ast.Attribute) else ""
        if full.startswith("triton.") and full not in REACHABLE and not full.startswith(PACKAGES):
            return f"{full!r} is not allowed in a kernel"
        return None

    def dotted(self, node: ast.expr) -> str:
        """Return the full name of `a.b.c`, `a` replaced by what it was imported as; empty for anything else."""
        if isinstance(node, ast.Attribute):
            inner = self.dotted(node.value)
            return f"{inner}.{node.attr}" if inner else ""
        return self.bound.get(node.id, node.id) if isinstance(node, ast.Name) else ""
