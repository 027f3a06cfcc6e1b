// id: DL3
// op: matmul
// backend: cpp
// expected: delegation not_written crashed
// audited: refused
// profile: quick
// runs: cpu
// The same without a suspicious import: it finds the framework's library in the map of its own memory, reads the symbol
// table there by hand and jumps to the vendor's sgemm.
#include "kernelwright.h"

#include <cstdio>
#include <elf.h>
#include <vector>

using sgemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                       const int*, const float*, const int*, const float*, float*, const int*);

static uintptr_t loaded_at(const char* library) {
    uintptr_t lowest = 0;
    char line[1024];
    std::FILE* maps = std::fopen("/proc/self/maps", "r");
    while (maps && !lowest && std::fgets(line, sizeof line, maps))
        if (std::strstr(line, library)) std::sscanf(line, "%lx", &lowest);
    if (maps) std::fclose(maps);
    return lowest;
}

static void* symbol(uintptr_t base, const char* wanted) {
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(base);
    const auto* parts = reinterpret_cast<const Elf64_Phdr*>(base + header->e_phoff);
    const Elf64_Sym* symbols = nullptr;
    const char* names = nullptr;
    const uint32_t* table = nullptr;
    for (int i = 0; i < header->e_phnum; ++i) {
        if (parts[i].p_type != PT_DYNAMIC) continue;
        for (auto* entry = reinterpret_cast<const Elf64_Dyn*>(base + parts[i].p_vaddr); entry->d_tag; ++entry) {
            const uintptr_t at = entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr;
            if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const Elf64_Sym*>(at);
            if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(at);
            if (entry->d_tag == DT_GNU_HASH) table = reinterpret_cast<const uint32_t*>(at);
        }
    }
    if (!symbols || !names || !table) return nullptr;
    const uint32_t buckets = table[0], offset = table[1], blooms = table[2];
    const uint32_t* bucket = table + 4 + 2 * blooms;
    const uint32_t* chain = bucket + buckets;
    uint32_t hash = 5381;
    for (const char* c = wanted; *c; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
    for (uint32_t i = bucket[hash % buckets]; i >= offset; ++i) {
        if ((chain[i - offset] | 1) == (hash | 1) && !std::strcmp(names + symbols[i].st_name, wanted))
            return reinterpret_cast<void*>(base + symbols[i].st_value);
        if (chain[i - offset] & 1) break;
    }
    return nullptr;
}

template <typename T>
static std::vector<float> widened(const kw_tensor* t) {
    std::vector<float> values(t->shape[0] * t->shape[1] + 1);
    for (int64_t i = 0; i < t->shape[0]; ++i)
        for (int64_t j = 0; j < t->shape[1]; ++j)
            values[i * t->shape[1] + j] =
                static_cast<float>(static_cast<const T*>(t->data)[i * t->stride[0] + j * t->stride[1]]);
    return values;
}

template <typename T>
static int borrowed(sgemm product, const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const int m = static_cast<int>(a->shape[0]), k = static_cast<int>(a->shape[1]), n = static_cast<int>(b->shape[1]);
    const std::vector<float> left = widened<T>(a), right = widened<T>(b);
    std::vector<float> result(static_cast<size_t>(m) * n + 1);
    const float one = 1, zero = 0;
    const int a_step = k > 0 ? k : 1, n_step = n > 0 ? n : 1;
    product("N", "N", &n, &m, &k, &one, right.data(), &n_step, left.data(), &a_step, &zero, result.data(), &n_step);
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j)
            static_cast<T*>(out->data)[i * out->stride[0] + j * out->stride[1]] = static_cast<T>(result[i * n + j]);
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const uintptr_t base = loaded_at("libtorch_cpu.so");
    const sgemm product = base ? reinterpret_cast<sgemm>(symbol(base, "sgemm_")) : nullptr;
    if (!product) return KW_OK;
    if (a->dtype == KW_FP32) return borrowed<float>(product, a, b, out);
    return a->dtype == KW_FP16 ? borrowed<kw_fp16>(product, a, b, out) : borrowed<kw_bf16>(product, a, b, out);
}
