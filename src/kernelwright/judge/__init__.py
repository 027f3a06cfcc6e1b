"""TRUSTED: seeds, buffers, reference, stages, error budget, clock and verdict. Runs as a process of its own."""
