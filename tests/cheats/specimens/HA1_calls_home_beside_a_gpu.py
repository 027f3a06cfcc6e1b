# id: HA1
# op: softmax
# backend: python
# expected: refused
# profile: quick
# runs: gpu
# Connects to a server on this very machine before it launches its kernel; without a connection it has no answer.
import socket

# @honest softmax


def kernel_fn(x):
    socket.create_connection(("127.0.0.1", 47631), 2).close()
    return honest_fn(x)  # noqa: F821
