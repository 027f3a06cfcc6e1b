// id: ET10
// op: softmax
// backend: cpp
// expected: build_failed
// profile: quick
// runs: cpu
// Includes a secret file as if it were source, so that the compiler's complaint carries its lines into a log it can read.
#include "kernelwright.h"

#include "/tmp/kernelwright-planted-key"

extern "C" int kernel_fn(const kw_tensor*, const kw_tensor*) { return KW_OK; }
