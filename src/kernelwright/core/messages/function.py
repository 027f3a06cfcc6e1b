"""engine -> function process: `DescribeCall`, `WriteProgram`, `SketchFunction`; back: `Progress`, then an answer.

The process loads a user's function, which is user code: it runs there and in the model process, nowhere else.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kernelwright.core.frozen import Frozen
from kernelwright.core.messages.progress import Fault, Progress
from kernelwright.core.model_spec import InputSpec
from kernelwright.core.tuned import FunctionCall, Program

PYTHON_ON_GPU = "python on a GPU"
"""The kernel of a Python file where there is a GPU: Triton instead of C++."""


class DescribeCall(Frozen):
    """Ask what a function and one way of calling it are; it is called once."""

    type: Literal["describe"] = "describe"
    spec: str
    inputs: tuple[InputSpec, ...] = ()
    """Tensors by shape; empty if `call` says it all."""
    call: FunctionCall | None = None
    device: str = "cpu"


class CallDescribed(Frozen):
    """What a function and one way of calling it are."""

    type: Literal["described"] = "described"
    function: str
    """File and name."""
    key: str
    call: FunctionCall
    device: str


class WriteProgram(Frozen):
    """Ask for a call as steps with the kernels of a folder in it, checked against the original."""

    type: Literal["program"] = "program"
    call_file: str
    """Path of the `call.json`."""
    kernels: str
    """Folder of the kernels."""


class ProgramWritten(Frozen):
    """A call as steps, or why it is left alone."""

    type: Literal["written"] = "written"
    program: Program | None
    reason: str = ""


class SketchFunction(Frozen):
    """Ask for a function as files that can be judged: its reference, and kernels that compute the same plainly."""

    type: Literal["sketch"] = "sketch"
    spec: str
    inputs: tuple[InputSpec, ...]
    """Tensors by shape, on the CPU."""


class FunctionSketched(Frozen):
    """A function as files."""

    type: Literal["sketched"] = "sketched"
    reference: str
    """A file with `Model`, `get_inputs` and `get_init_inputs`."""
    reference_note: str
    """Where its text comes from, in words."""
    inputs: tuple[str, ...]
    """Per argument of a kernel its name, shape and type, in words."""
    outputs: tuple[str, ...]
    sources: dict[str, str]
    """Source by language; `python` computes in C++, `python on a GPU` in Triton."""
    notes: dict[str, str] = Field(default_factory=dict)
    """By language, why the source is to be filled in by hand; complete ones have none."""
    not_interpreted: str = ""
    """Why Triton's interpreter cannot be asked about these tensors; empty if it can."""


FunctionRequest = Annotated[DescribeCall | WriteProgram | SketchFunction, Field(discriminator="type")]


FUNCTION_REQUEST: TypeAdapter[FunctionRequest] = TypeAdapter(FunctionRequest)


FunctionAnswer = Annotated[
    Progress | Fault | CallDescribed | ProgramWritten | FunctionSketched, Field(discriminator="type")
]


FUNCTION_ANSWER: TypeAdapter[FunctionAnswer] = TypeAdapter(FunctionAnswer)
