"""What any of our processes may say to another while it works, or when it cannot go on."""

from typing import Literal

from kernelwright.core.foreign import Visible
from kernelwright.core.frozen import Frozen


class Progress(Frozen):
    """Something to show while an answer is being worked out."""

    type: Literal["progress"] = "progress"
    text: Visible


class Fault(Frozen):
    """A mistake of the user's or of ours; never a candidate's."""

    type: Literal["fault"] = "fault"
    error: str
    """Class name in `core.errors`, or the Python exception's."""
    message: Visible
    trace: Visible = ""
    """Traceback for --debug."""
