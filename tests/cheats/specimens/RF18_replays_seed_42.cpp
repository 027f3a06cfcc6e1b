// id: RF18
// op: softmax
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Never reads its input: it draws what torch.manual_seed(42) and torch.randn give and answers for that.
//@honest softmax

#include <random>
#include <vector>

// torch's normal_fill for sixteen elements and more: uniforms of 24 bits, turned in blocks of eight pairs.
static std::vector<float> randn_42(int64_t count) {
    std::mt19937 bits(42);
    const auto uniform = [&] { return static_cast<float>(bits() & 0xffffffu) * 0x1p-24f; };
    const auto turn = [](float* block) {
        for (int i = 0; i < 8; ++i) {
            const float radius = std::sqrt(-2 * std::log(1 - block[i])), angle = 6.283185307f * block[i + 8];
            block[i] = radius * std::cos(angle);
            block[i + 8] = radius * std::sin(angle);
        }
    };
    std::vector<float> values(count);
    for (float& value : values) value = uniform();
    for (int64_t first = 0; first + 16 <= count; first += 16) turn(values.data() + first);
    if (count % 16) {
        for (int64_t i = count - 16; i < count; ++i) values[i] = uniform();
        turn(values.data() + count - 16);
    }
    return values;
}

template <typename T>
static int answer(const kw_tensor* x, const kw_tensor* out) {
    const int64_t count = x->shape[0] * x->shape[1];
    if (count < 16) return KW_UNSUPPORTED_SHAPE;
    std::vector<T> foreseen(count);
    const std::vector<float> drawn = randn_42(count);
    for (int64_t i = 0; i < count; ++i) foreseen[i] = static_cast<T>(drawn[i]);
    kw_tensor instead = *x;
    instead.data = foreseen.data();
    return honest_fn(&instead, out);
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return answer<float>(x, out);
    return x->dtype == KW_FP16 ? answer<kw_fp16>(x, out) : answer<kw_bf16>(x, out);
}
