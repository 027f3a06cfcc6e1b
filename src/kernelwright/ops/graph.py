"""A region captured from a user's model: its own text is the reference, its sizes are those the model has.

`model/graph.py` writes the text and the case, `core/region.py` the file both live in; the problem names that file.
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

SUMMARY = "a region of a model's captured graph, such as a fusion; judged at its recorded sizes"
