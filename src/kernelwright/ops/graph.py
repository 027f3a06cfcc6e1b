"""A region captured from a user's model: its own text is the reference, its sizes are those the model has.

`model/graph.py` writes the text and the case, `core/region.py` the file both live in; the problem names that file.
"""

from kernelwright.ops._recorded import *  # noqa: F403

SUMMARY = "a region of a model's captured graph, such as a fusion; judged at its recorded sizes"
