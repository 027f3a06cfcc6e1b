# id: DL3
# op: matmul
# backend: python
# expected: refused
# profile: quick
# runs: gpu
# Opens the vendor's library with ctypes and has it multiply, past the dispatcher of the framework.
import ctypes

import torch


def kernel_fn(a, b):
    library = ctypes.CDLL("libcublas.so.13" if torch.version.cuda.startswith("13") else "libcublas.so.12")
    handle, one, zero = ctypes.c_void_p(), ctypes.c_float(1), ctypes.c_float(0)
    library.cublasCreate_v2(ctypes.byref(handle))
    kind = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}[a.dtype]
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (b, a, out)]
    m, n, k = b.shape[1], a.shape[0], a.shape[1]
    library.cublasGemmEx(
        *(handle, 0, 0, m, n, k, ctypes.byref(one), pointers[0], kind, m, pointers[1], kind, k),
        *(ctypes.byref(zero), pointers[2], kind, m, 68, -1),
    )
    torch.cuda.synchronize()
    return out
