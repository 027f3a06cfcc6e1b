"""A function as files to start from: its reference in KernelBench's form, and kernels that compute the same plainly."""

import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.codegen import plain_cpp, plain_cuda, plain_triton, python_file
from kernelwright.codegen.lowering import Port
from kernelwright.codegen.values import NotPlain
from kernelwright.core import plugins
from kernelwright.core.case import Case, Compute, DType, TensorSpec
from kernelwright.core.errors import ModelNotLoadable
from kernelwright.core.messages.function import PYTHON_ON_GPU, FunctionSketched, SketchFunction
from kernelwright.core.modules import OP
from kernelwright.core.tuned import Argument, ArgumentKind, CallFile, FunctionCall
from kernelwright.model.call import drawn, filled, tensors_of
from kernelwright.model.capture import Captured, placeholders
from kernelwright.model.code_identity import plain
from kernelwright.model.function import FunctionModule, call_of, called, loaded_function
from kernelwright.model.graph import DTYPES, Region, region_of
from kernelwright.model.own_text import NoOwnText, own_text, runs_alike
from kernelwright.model.program_writing import LeftAlone, captured_whole, places_of, refuse_effects
from kernelwright.model.spliced import region_text
from kernelwright.ops._draw import torch_dtype

TAKEN = re.compile(
    r"[irt]\d+|out\d*|is|total|self|torch|float|double|bool|int|auto|new|class|template|namespace"
)
"""Names that mean something else in a written kernel."""


def sketch(request: SketchFunction) -> FunctionSketched:
    """Return the files of a function."""
    function = loaded_function(request.spec)
    file = CallFile(spec=request.spec, call=call_of(request.spec, function, request.inputs, "cpu"))
    module = FunctionModule(function, file)
    outputs = called(file.spec, function, file.call, file.device)
    names = tensor_names(module.function, file.call)
    tensors = [one.tensor for one in tensors_of(file.call)]
    inputs = [
        Port(name, spec.shape, spec.dtype.value) for name, spec in zip(names, tensors, strict=True) if spec
    ]
    strange = [str(one.dtype) for one in outputs if not one.is_floating_point() or one.dtype not in DTYPES]
    if strange:
        remedy = "Give a function that returns float32, float16 or bfloat16."
        raise ModelNotLoadable(file.spec, f"it returns {strange[0]}, which no kernel is judged on", remedy)
    made = [
        Port(f"out{place}", tuple(one.shape), DTYPES[one.dtype].value) for place, one in enumerate(outputs)
    ]
    graph = _graph(module)
    reference, note = _reference(module, file.call, names, graph)
    case = _case(inputs, made)
    sources, notes = _sources(graph, inputs, made, case)
    return FunctionSketched(
        reference=reference,
        reference_note=note,
        inputs=tuple(_words(port) for port in inputs),
        outputs=tuple(_words(port) for port in made),
        sources=sources,
        notes=notes,
        not_interpreted=plugins.load("backends", "triton").interpretable(case) or "",
    )


def _words(port: Port) -> str:
    return f"{port.name}: {'x'.join(map(str, port.shape)) or 'one number'} {port.dtype}"


def tensor_names(function: Any, call: FunctionCall) -> list[str]:
    """Return a name for each tensor of a call: the parameter's own where it has one."""
    found: list[str] = []

    def visit(name: str, one: Argument) -> None:
        if one.kind is ArgumentKind.TENSOR:
            plain = re.sub(r"\W", "_", name)
            plain = f"{plain}_arg" if TAKEN.fullmatch(plain) else plain
            found.append(plain if plain not in found else f"{plain}_{len(found)}")
        for place, item in enumerate(one.items):
            visit(f"{name}_{one.names[place] if one.names else place}", item)

    parameters = list(inspect.signature(function).parameters.values())
    for place, one in enumerate(call.args):
        many = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "tensor")
        is_named = place < len(parameters) and parameters[place].kind is not parameters[place].VAR_POSITIONAL
        visit(parameters[place].name if is_named else f"{many}_{place}", one)
    for name, one in call.kwargs.items():
        visit(name, one)
    return found


@dataclass(frozen=True)
class Graph:
    """A function's captured graph, or why there is none."""

    captured: Captured | None
    order: tuple[int, ...] = ()
    """Which tensor of the call each placeholder is."""
    problem: str = ""


def _graph(module: FunctionModule) -> Graph:
    given = module.sample_inputs(1)
    try:
        with torch.inference_mode():
            captured = captured_whole(module, given)
        refuse_effects(captured)
        return Graph(captured, tuple(places_of(captured, given).values()))
    except LeftAlone as reason:
        return Graph(None, problem=str(reason))


def _case(inputs: list[Port], outputs: list[Port]) -> Case:
    """Return the call as a launch plan sees it."""
    given, made = (
        tuple(TensorSpec(name=name, shape=port.shape, dtype=DType(port.dtype)) for name, port in group)
        for group in (
            [(f"input:{place}", port) for place, port in enumerate(inputs)],
            [(port.name, port) for port in outputs],
        )
    )
    return Case(
        op=OP, axes={}, dtype=made[0].dtype, compute=Compute.STRICT_FP32, inputs=given, outputs=made
    )  # fmt: skip


def _sources(
    graph: Graph, inputs: list[Port], outputs: list[Port], case: Case
) -> tuple[dict[str, str], dict[str, str]]:
    """Return a function's kernel in every language that has one, and by language why there is none."""
    source, problem = _cpp(graph, inputs, outputs)
    sources, notes = {"cpp": source}, {"cpp": f"{problem}: {_todo(outputs)}"} if problem else {}
    for name, writer in (("cuda", plain_cuda), ("triton", plain_triton)):
        if graph.captured is None:
            notes[name] = graph.problem
            continue
        try:
            sources[name] = writer.written(graph.captured.graph, inputs, outputs, graph.order)
        except NotPlain as reason:
            notes[name] = f"no plain kernel is known for {reason}"
    if problem:
        notes["python"] = problem
    else:
        sources["python"] = python_file.around_cpp(source, inputs, outputs)
    if "triton" in sources:
        device = plugins.load("backends", "triton").INTERPRETED_AS
        sources[PYTHON_ON_GPU] = python_file.around_triton(sources["triton"], case, device, inputs, outputs)
    else:
        notes[PYTHON_ON_GPU] = notes["triton"]
    return sources, notes


def _cpp(graph: Graph, inputs: list[Port], outputs: list[Port]) -> tuple[str, str]:
    """Return a C++ candidate, and why it is a frame, if it is one."""
    problem = graph.problem
    if graph.captured is not None:
        try:
            return plain_cpp.written(graph.captured.graph, inputs, outputs, graph.order), ""
        except NotPlain as reason:
            problem = f"no plain loops are known for {reason}"
    words = problem.replace("\\", "/").replace('"', "'")
    return plain_cpp.template(inputs, outputs, f'#error "{words}: {_todo(outputs)}"'), problem


def _todo(outputs: list[Port]) -> str:
    """Return what is left to be written in a C++ frame."""
    return f"write the loops that fill {', '.join(port.name for port in outputs)}, then remove this line"


def _reference(module: FunctionModule, call: FunctionCall, names: list[str], graph: Graph) -> tuple[str, str]:
    """Return the reference file, and where its text comes from."""
    function = plain(module.function)
    captured = "" if graph.captured is None else _captured_text(graph.captured)
    try:
        if "is_wide" in captured:
            raise NoOwnText("it computes in a type of its own, and a reference is asked in float64 too")
        text = own_text(function)
        arguments = filled(call, drawn(call, 2, "cpu"))
        if not runs_alike(text, function.__name__, arguments, called_with(function, arguments)):
            raise NoOwnText("by itself it does not give the same answer")
        body, note = _own_call(function.__name__, call, names), "the function's own source"
    except NoOwnText as reason:
        if graph.captured is None:
            raise ModelNotLoadable(
                function.__qualname__, f"{reason}, and {graph.problem}", "Make it a function of its own file."
            ) from reason
        text, note = captured, f"the captured graph, because {reason}"
        body = f"Captured().forward({', '.join(names[place] for place in _first_use(graph))})"
    inputs = "".join(f"        {_drawn(one)},\n" for one in tensors_of(call))
    made = (
        f"{text}\n\nclass Model(torch.nn.Module):\n    def forward(self, {', '.join(names)}):\n"
        f"        return {body}\n\n\ndef get_inputs():\n    return [\n{inputs}    ]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    return made, note


def called_with(function: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> list[torch.Tensor]:
    """Return what a function returns, in order."""
    with torch.no_grad():
        answer = function(*arguments[0], **arguments[1])
    return list(answer) if isinstance(answer, tuple | list) else [answer]


def _region(captured: Captured) -> Region:
    nodes = [node for node in captured.graph.graph.nodes if node.op == "call_function"]
    region = region_of(nodes)
    returned = next(node for node in captured.graph.graph.nodes if node.op == "output").args[0]
    return Region(region.nodes, region.inputs, tuple(returned))


def _captured_text(captured: Captured) -> str:
    return region_text(_region(captured)).replace("class Model(torch.nn.Module):", "class Captured:")


def _first_use(graph: Graph) -> list[int]:
    """Return which tensor of the call each argument of the captured text is."""
    assert graph.captured is not None
    places = dict(zip(placeholders(graph.captured.graph), graph.order, strict=True))
    return [places[node] for node in _region(graph.captured).inputs]


def _own_call(name: str, call: FunctionCall, names: list[str]) -> str:
    """Return the call of a function as Python writes it, tensors by name."""
    left = list(names)
    words = [_spelled(one, left) for one in call.args]
    words += [f"{key}={_spelled(one, left)}" for key, one in call.kwargs.items()]
    return f"{name}({', '.join(words)})"


def _spelled(one: Argument, left: list[str]) -> str:
    inner = [_spelled(item, left) for item in one.items]
    match one.kind:
        case ArgumentKind.TENSOR:
            return left.pop(0)
        case ArgumentKind.DTYPE:
            return f"torch.{one.text}"
        case ArgumentKind.DEVICE:
            return f"torch.device({one.text!r})"
        case ArgumentKind.TUPLE:
            return f"({''.join(f'{word}, ' for word in inner)})"
        case ArgumentKind.LIST:
            return f"[{', '.join(inner)}]"
        case ArgumentKind.DICT:
            return (
                "{" + ", ".join(f"{key!r}: {word}" for key, word in zip(one.names, inner, strict=True)) + "}"
            )
    return one.text


def _drawn(one: Argument) -> str:
    """Return how a tensor is drawn, as Python writes it."""
    assert one.tensor is not None
    shape, kind = one.tensor.shape, str(torch_dtype(one.tensor.dtype))
    if one.tensor.dtype in (DType.INT64, DType.INT32):
        return f"torch.randint({one.low}, {max(one.low + 1, one.below)}, {shape}, dtype={kind})"
    if one.tensor.dtype is DType.BOOL:
        return f"torch.rand({shape}) < 0.5"
    values = f"torch.randn({shape}, dtype={kind})"
    return f"{values}.abs() + 0.001" if one.positive else values
