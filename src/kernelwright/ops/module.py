"""A module from a file of the user's own (`Model`, `get_inputs`, `get_init_inputs`): sizes and reference come with it.

Its state dict is input too: random weights, the same for reference and candidate.
"""

from kernelwright.ops._recorded import *  # noqa: F403

SUMMARY = "any torch.nn.Module, from a file of its own; judged at its recorded sizes"
