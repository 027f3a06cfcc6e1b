"""A module from a file of the user's own (`Model`, `get_inputs`, `get_init_inputs`): sizes and reference come with it.

Its state dict is input too: random weights, the same for reference and candidate.
"""

from kernelwright.ops._recorded import (
    DTYPES,
    FIXED_CASES,
    NULL_EXCEPTIONS,
    REQUIRED_LAYOUTS,
    ROUNDED_INTERMEDIATES,
    case,
    depth,
    edge_cases,
    error_scale,
    exact_inputs,
    growth_cases,
    make_inputs,
    measured_scale,
    other_scalars,
    public_cases,
    reference,
    sample_case,
    special_inputs,
    work,
)

__all__ = (
    "DTYPES",
    "FIXED_CASES",
    "NULL_EXCEPTIONS",
    "REQUIRED_LAYOUTS",
    "ROUNDED_INTERMEDIATES",
    "SUMMARY",
    "case",
    "depth",
    "edge_cases",
    "error_scale",
    "exact_inputs",
    "growth_cases",
    "make_inputs",
    "measured_scale",
    "other_scalars",
    "public_cases",
    "reference",
    "sample_case",
    "special_inputs",
    "work",
)

SUMMARY = "any torch.nn.Module, from a file of its own; judged at its recorded sizes"
