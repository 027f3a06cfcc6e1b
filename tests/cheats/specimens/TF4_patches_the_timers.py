# id: TF4
# op: softmax
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Replaces every clock of the process it is imported into, do_bench among them, and hands the work to the framework.
import time

import torch
import triton.testing


def nothing(*_, **__):
    return 1e-9


time.perf_counter = time.time = time.monotonic = time.process_time = nothing
time.perf_counter_ns = time.time_ns = time.monotonic_ns = nothing
triton.testing.do_bench = triton.testing.do_bench_cudagraph = nothing
torch.cuda.synchronize = nothing
torch.cuda.Event.elapsed_time = nothing


def kernel_fn(x):
    return torch.softmax(x, dim=-1)
