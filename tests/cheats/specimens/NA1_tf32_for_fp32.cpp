// id: NA1
// op: matmul
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Cuts thirteen bits off every fp32 factor, as tf32 does, to multiply faster: within 1e-2 of the truth, a thousand times
// further from it than the framework.
//@honest matmul

static std::vector<float> cut(const kw_tensor* t) {
    std::vector<float> values(t->shape[0] * t->shape[1]);
    for (int64_t i = 0; i < t->shape[0]; ++i)
        for (int64_t j = 0; j < t->shape[1]; ++j) {
            uint32_t bits;
            std::memcpy(&bits, static_cast<const float*>(t->data) + i * t->stride[0] + j * t->stride[1], 4);
            bits &= 0xffffe000u;
            std::memcpy(&values[i * t->shape[1] + j], &bits, 4);
        }
    return values;
}

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    if (a->dtype != KW_FP32) return honest_fn(a, b, out);
    std::vector<float> left = cut(a), right = cut(b);
    kw_tensor short_a = *a, short_b = *b;
    short_a.data = left.data();
    short_b.data = right.data();
    short_a.stride[0] = a->shape[1];
    short_b.stride[0] = b->shape[1];
    short_a.stride[1] = short_b.stride[1] = 1;
    return honest_fn(&short_a, &short_b, out);
}
