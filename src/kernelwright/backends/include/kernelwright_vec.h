// Vectors of floats as wide as the machine has them, and their way from and to memory in every dtype.
// For candidates that want them: `#include "kernelwright_vec.h"` and `using namespace kw;`.
#pragma once
#include "kernelwright.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace kw {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t half_bits __attribute__((vector_size(2 * LANES)));

inline vec load(const float* p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline vec load(const kw_bf16* p) {
    half_bits h;
    std::memcpy(&h, p, sizeof h);
    return (vec)(__builtin_convertvector(h, bits) << 16);
}
inline vec load(const kw_fp16* p) {  // by intrinsic: GCC 12 does not vectorise the cast
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    vec v;
    for (int i = 0; i < LANES; ++i) v[i] = static_cast<float>(p[i]);
    return v;
#endif
}

inline void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }
inline void store(kw_bf16* p, vec v) {  // nearest even; NaN stays NaN
    const bits u = (bits)v, rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const half_bits h = __builtin_convertvector((bits)(v != v ? (u >> 16) | 0x40u : rounded), half_bits);
    std::memcpy(p, &h, sizeof h);
}
inline void store(kw_fp16* p, vec v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < LANES; ++i) p[i] = static_cast<kw_fp16>(v[i]);
#endif
}

}  // namespace kw
