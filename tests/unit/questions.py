"""Questions as engineers ask them, each with the cards that answer it; written before the index was built."""

ASKED = {
    "uncoalesced loads on Hopper": {"coalesced_access"},
    "my softmax reads the row twice": {"one_pass_over_memory", "online_softmax"},
    "ncu reports shared memory bank conflicts when I read the tile column by column": {
        "shared_memory_padding",
        "shared_memory_swizzle",
    },
    "how many warps should a program have so that nothing spills": {"warps_from_elements"},
    "GEMM with M=16 in decode is slow": {"thin_products"},
    "only 40 blocks on 132 SMs for a matmul with a huge K": {"split_k"},
    "the last wave has a few blocks and the rest of the GPU sits idle": {"fill_the_device"},
    "rows of 128 elements, one program per row, the kernel is all overhead": {"multi_row_blocks"},
    "layernorm loses digits when I compute the variance as E[x^2]-E[x]^2": {"welford"},
    "OpenMP makes my small kernel slower": {"parallel_grain"},
    "AVX2 matmul reaches a third of peak, the inner loop reloads C": {"register_tile"},
    "vocabulary of 50257: an odd row length breaks 128-bit loads": {"aligned_body_and_edges"},
    "exp is the bottleneck in flash attention": {"attention_overlap", "exp2_with_folded_scale"},
    "cos and sin tables are loaded again for every head": {"rope_shared_tables"},
    "the loss kernel wastes time on padding tokens with label -100": {"cross_entropy_skips_rows"},
    "my B operand is stored transposed, should I copy it first?": {"transposed_operands"},
    "long scoreboard stalls: each load is consumed right away": {"loads_in_flight"},
    "the output is bigger than the cache, writing it evicts my inputs on the CPU": {"non_temporal_stores"},
    "MI300 matmul: blocks on different chiplets fetch the same data": {"cdna3_xcd_order"},
    "atomicAdd makes my sum differ from run to run": {"reduce_in_fixed_order"},
}
"""What the index was tried with while it was made."""

HELD_OUT = {
    "how do I use the copy engine instead of computing addresses in every thread": {"tma_descriptors"},
    "fp32 matmul is slow though the model allows reduced precision products": {"tf32_where_allowed"},
    "page faults because my C++ kernel allocates a buffer in every call": {"small_scratch"},
    "matmul followed by bias and gelu in separate kernels": {"epilogue_fusion"},
    "the sum over one row of 16 million elements runs in a single block": {"split_rows"},
    "B200 accumulators do not fit in the register file": {"blackwell_tensor_memory"},
    "the causal mask is applied on every tile although most of them are full": {"causal_blocks"},
    "64-bit index arithmetic everywhere in the SASS": {"narrow_offsets"},
    "which BLOCK size should I hard-code for my shapes": {"params_per_case"},
    "division in the inner loop of my normalisation": {"reciprocal_not_division"},
}
"""What it was first tried with when it was done."""
