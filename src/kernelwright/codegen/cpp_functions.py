"""Functions a C++ source may call: without branches and calls, so that the compiler computes many elements at once.

The standard library's are a call per element: the compiler may use a vector version under -ffast-math alone. The
polynomials are our own fits; errors are of the last place (2^-24).
"""

FUNCTIONS = {
    # exp(x) = 2^n exp(r), |r| <= ln(2) / 2; 2^n in two factors, so that the ends of the range come out right. 1 ulp.
    # What is zero anyway is not computed: a product that underflows takes a hundred cycles, and masks are full of them.
    "exp_of": """inline float exp_of(float x) {
    const bool is_zero = x < -104.0f;
    x = is_zero ? 0.0f : x;
    x = x > 110.0f ? 110.0f : x;
    constexpr float SHIFT = 0x1.8p23f;  // adding it rounds to an integer, found in the low bits
    const float shifted = x * 0x1.715476p+0f + SHIFT, n = shifted - SHIFT;
    const int32_t whole = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(SHIFT));
    const int32_t first = whole >> 1;
    const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float p = 0x1.6a243ap-10f * r + 0x1.1239ep-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * (r * r) + r + 1.0f;
    const uint32_t low = static_cast<uint32_t>(first + 127) << 23;
    const uint32_t high = static_cast<uint32_t>(whole - first + 127) << 23;
    const float found = p * std::bit_cast<float>(low) * std::bit_cast<float>(high);
    return is_zero ? 0.0f : found;
}""",
    # erfc(a) = exp(-a q(a)) for 0 <= a <= 5; beyond it is less than the last place of one.
    "tail_of": """inline float tail_of(float a) {
    a = a > 5.0f ? 5.0f : a;
    float q = 0x1.110caap-27f * a - 0x1.1fc098p-22f;
    q = q * a + 0x1.100006p-18f;
    q = q * a - 0x1.2fec96p-15f;
    q = q * a + 0x1.ba8fbap-13f;
    q = q * a - 0x1.abdd8ap-11f;
    q = q * a + 0x1.ebd176p-10f;
    q = q * a - 0x1.36838ap-12f;
    q = q * a - 0x1.390b8ap-6f;
    q = q * a + 0x1.a4f31ep-4f;
    q = q * a + 0x1.45f302p-1f;
    q = q * a + 0x1.20dd76p+0f;
    return exp_of(-a * q);
}""",
    "erf_of": """inline float erf_of(float x) {
    const float z = x * x, a = x < 0.0f ? -x : x, far = 1.0f - tail_of(a);
    float p = 0.00470051263f * z - 0.0267494693f;
    p = p * z + 0.112827189f;
    p = p * z - 0.376126051f;
    p = p * z + 0.128379166f;
    return a < 0.5f ? x + x * p : x < 0.0f ? -far : far;
}""",
    "tanh_of": """inline float tanh_of(float x) {
    const float z = x * x, a = x < 0.0f ? -x : x, far = 1.0f - 2.0f / (exp_of(2.0f * a) + 1.0f);
    float p = -0.00605369732f * z + 0.0209681876f;
    p = p * z - 0.0538449883f;
    p = p * z + 0.133327335f;
    p = p * z - 0.333333284f;
    return a < 0.625f ? x + x * (z * p) : x < 0.0f ? -far : far;
}""",
    "sigmoid": "inline float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }",
    "silu": "inline float silu(float x) { return x / (1.0f + exp_of(-x)); }",
    "gelu": """inline float gelu(float x) {
    const float half = 0.5f * tail_of((x < 0.0f ? -x : x) * 0.70710678118654752f);
    return x * (x < 0.0f ? half : 1.0f - half);
}""",
    # 0.5 (1 + tanh(u)) is the sigmoid of 2u.
    "gelu_tanh": """inline float gelu_tanh(float x) {
    return x / (1.0f + exp_of(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
}""",
    "relu": "inline float relu(float x) { return x < 0.0f ? 0.0f : x; }",
    "square": "inline float square(float x) { return x * x; }",
    "cube": "inline float cube(float x) { return x * x * x; }",
    "rsqrt": "inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }",
    "softplus": "inline float softplus(float x) { return x > 20.0f ? x : std::log1p(exp_of(x)); }",
    "leaky": "inline float leaky(float x, float slope) { return x > 0.0f ? x : x * slope; }",
    # A function, so that both are computed: the compiler vectorises a choice, but no branch around a division.
    "chosen": "inline float chosen(bool test, float a, float b) { return test ? a : b; }",
    # A NaN on either side comes through, as in torch.
    "larger": "inline float larger(float a, float b) { return (a != a) | (a > b) ? a : b; }",
    "smaller": "inline float smaller(float a, float b) { return (a != a) | (a < b) ? a : b; }",
    "swept": """// All places of a row, LANES of them side by side: no addition waits for the one before.
template <int LANES, typename F> inline void swept(int64_t from, int64_t to, F step) {
    for (; from + LANES <= to; from += LANES) {
#pragma omp simd
        for (int lane = 0; lane < LANES; ++lane) step(from + lane, lane);
    }
    for (int lane = 0; from < to && lane < LANES; ++from, ++lane) step(from, lane);
}""",
    "folded": """template <typename T, int LANES> inline T folded(T (&parts)[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
    return parts[0];
}""",
    "highest": """template <int LANES> inline float highest(float (&parts)[LANES]) {
    for (int lane = 1; lane < LANES; ++lane) parts[0] = larger(parts[0], parts[lane]);
    return parts[0];
}""",
    "lowest": """template <int LANES> inline float lowest(float (&parts)[LANES]) {
    for (int lane = 1; lane < LANES; ++lane) parts[0] = smaller(parts[0], parts[lane]);
    return parts[0];
}""",
}
"""By name; only those that are called are written into a source."""
SPELLED = {"std::exp(": "exp_of(", "std::tanh(": "tanh_of(", "std::erf(": "erf_of("}
"""What of the standard library is computed by these."""
