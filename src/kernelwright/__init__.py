"""Kernelwright: finds where a PyTorch model spends its time and rewrites the kernels that matter."""
