# ruff: noqa: F821, RUF005, SIM108 (`plan` is in a language of its own, kernels are in theirs)
"""Matrix product out = a @ b; fp32 sums, one rounding; fp32 inputs are multiplied in fp32, never tf32.

Declared layout: any strides of a, b and out.

Halves on Hopper and later: programs stay on their multiprocessor and walk over the output tiles in groups of rows, so
that neighbours share operands in cache; tiles of a and b come through tensor descriptors (one axis contiguous, either
one, everything else on 16 bytes) and the next tile's first loads run under the epilogue of this one. Everything else:
one program per tile, operands by pointer.
"""

import triton
import triton.language as tl

PARAMS = {
    "block_m": [128, 64, 256, 32],
    "block_n": [256, 128, 64, 32],
    "block_k": [0, 64, 32, 128, 16],
    "group": [8, 4, 16],
    "num_warps": [0, 2, 4, 8],
    "num_stages": [4, 3, 2],
}


@triton.jit
def _tile_place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Return row and column of a tile: down GROUP rows, then one column on."""
    in_group = GROUP * tiles_n
    first = tile // in_group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    within = tile % in_group
    return first + within % height, within // height


@triton.jit
def matmul_described(
    a, b, out, m, n, k, a_stride, b_stride, out_stride,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, OUT_DESCRIBED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Compute every num_programs-th tile."""
    KIND: tl.constexpr = out.dtype.element_ty
    PART: tl.constexpr = BLOCK_N // 2 if SPLIT else BLOCK_N
    if A_TURNED:
        a_tiles = tl.make_tensor_descriptor(a, [k, m], [a_stride, 1], [BLOCK_K, BLOCK_M])
    else:
        a_tiles = tl.make_tensor_descriptor(a, [m, k], [a_stride, 1], [BLOCK_M, BLOCK_K])
    if B_TURNED:
        b_tiles = tl.make_tensor_descriptor(b, [n, k], [b_stride, 1], [BLOCK_N, BLOCK_K])
    else:
        b_tiles = tl.make_tensor_descriptor(b, [k, n], [b_stride, 1], [BLOCK_K, BLOCK_N])
    if OUT_DESCRIBED:
        out_tiles = tl.make_tensor_descriptor(out, [m, n], [out_stride, 1], [BLOCK_M, PART])
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    steps = tl.cdiv(k, BLOCK_K)
    programs = tl.num_programs(0)
    # The epilogue counts tiles on its own: the loop's counter belongs to the loads, which run ahead.
    done = tl.program_id(0) - programs
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=True):
        tile_m, tile_n = _tile_place(tile, tiles_m, tiles_n, GROUP)
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(steps):
            at_k = step * BLOCK_K
            if A_TURNED:
                left = a_tiles.load([at_k, tile_m * BLOCK_M]).T
            else:
                left = a_tiles.load([tile_m * BLOCK_M, at_k])
            if B_TURNED:
                right = b_tiles.load([tile_n * BLOCK_N, at_k]).T
            else:
                right = b_tiles.load([at_k, tile_n * BLOCK_N])
            sums = tl.dot(left, right, sums)
        done += programs
        done_m, done_n = _tile_place(done, tiles_m, tiles_n, GROUP)
        row, col = done_m * BLOCK_M, done_n * BLOCK_N
        if OUT_DESCRIBED:
            if SPLIT:
                # Half the shared memory for the epilogue leaves room for one more stage of operands.
                halves = tl.permute(tl.reshape(sums, (BLOCK_M, 2, PART)), (0, 2, 1))
                first, second = tl.split(halves)
                out_tiles.store([row, col], first.to(KIND))
                out_tiles.store([row, col + PART], second.to(KIND))
            else:
                out_tiles.store([row, col], sums.to(KIND))
        else:
            rows = row + tl.arange(0, BLOCK_M)[:, None]
            cols = col + tl.arange(0, BLOCK_N)[None, :]
            target = out + rows.to(tl.int64) * out_stride + cols
            tl.store(target, sums.to(KIND), mask=(rows < m) & (cols < n))


@triton.jit
def matmul_pointed(
    a, b, out, m, n, k, a_m, a_k, b_k, b_n, out_m, out_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute one tile."""
    tile_m, tile_n = _tile_place(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP)
    row, col, inner = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # 64 bits for the tile's corner, 32 within it.
    corner_m, corner_n = (tile_m * BLOCK_M).to(tl.int64), (tile_n * BLOCK_N).to(tl.int64)
    in_m, in_n = (tile_m * BLOCK_M + row < m)[:, None], (tile_n * BLOCK_N + col < n)[None, :]
    left_at = a + corner_m * a_m + row[:, None] * a_m + inner[None, :] * a_k
    right_at = b + corner_n * b_n + inner[:, None] * b_k + col[None, :] * b_n
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        rest = k - step * BLOCK_K
        left = tl.load(left_at, mask=in_m & (inner < rest)[None, :], other=0.0)
        right = tl.load(right_at, mask=in_n & (inner < rest)[:, None], other=0.0)
        sums = tl.dot(left, right, sums, input_precision="ieee")
        left_at += BLOCK_K * a_k
        right_at += BLOCK_K * b_k
    target = out + corner_m * out_m + corner_n * out_n + row[:, None] * out_m + col[None, :] * out_n
    tl.store(target, sums.to(out.dtype.element_ty), mask=in_m & in_n)


def plan(case, params, device):
    """Return the launches of a case."""
    a, b, out = case.tensors.a, case.tensors.b, case.tensors.out
    m, n, k = case.axes.m, case.axes.n, case.axes.k
    is_half = a.itemsize == 2
    # A descriptor wants one contiguous axis, and everything else on 16 bytes.
    a_turned, b_turned = a.strides[1] != 1 and a.strides[0] == 1, b.strides[1] != 1 and b.strides[0] == 1
    a_stride = a.strides[1] if a_turned else a.strides[0]
    b_stride = b.strides[1] if b_turned else b.strides[0]
    a_fits = (a_turned or a.strides[1] == 1) and a_stride % 8 == 0 and a_stride > 0 and a.offset % 8 == 0
    b_fits = (b_turned or b.strides[1] == 1) and b_stride % 8 == 0 and b_stride > 0 and b.offset % 8 == 0
    has_descriptors = device.arch in ("sm_90", "sm_100", "sm_103", "sm_120")
    described = has_descriptors and is_half and a_fits and b_fits and out.strides[1] == 1 and k > 0

    # fp32 has no tensor cores to fill: its tiles may be small, and so may its blocks of threads.
    least = 64 if is_half else 32
    asked_m = max(least, params.block_m) if is_half else min(128, params.block_m)
    block_m = min(asked_m, max(16, next_power_of_2(max(m, 1))))
    # Pointers cost registers: a tile of 256 columns fits only where all loads are wide, and not into 64 KB.
    wide = is_half and block_m <= 128 and (described or (a_fits and b_fits and device.shared_bytes > 65536))
    asked_n = min(max(least, params.block_n), 256 if wide else 128)
    block_n = min(asked_n, max(16, next_power_of_2(max(n, 1))))
    asked_k = params.block_k if params.block_k > 0 else 64 if is_half else 16
    block_k = max(32, asked_k) if is_half else min(64, asked_k)
    # Smaller tiles where the large ones would leave half of the device idle.
    if 2 * cdiv(m, block_m) * cdiv(n, block_n) <= device.units:
        block_n = min(block_n, 128)
    if 2 * cdiv(m, block_m) * cdiv(n, block_n) <= device.units:
        block_m, block_n = min(block_m, 64), min(block_n, 64)
    if 2 * cdiv(m, block_m) * cdiv(n, block_n) <= device.units:
        block_m, block_n = min(block_m, least), min(block_n, least)
    usual_warps = 8 if block_m * block_n >= 128 * 128 else 4
    chooses_warps = params.num_warps > 0 and not is_half and block_m * block_n <= 64 * 64
    warps = params.num_warps if chooses_warps else usual_warps
    tiles = cdiv(m, block_m) * cdiv(n, block_n)
    stage_bytes = (block_m + block_n) * block_k * a.itemsize
    if described:
        out_fits = out.strides[0] % 8 == 0 and out.offset % 8 == 0
        split = out_fits and block_n >= 128
        epilogue = block_m * block_n * a.itemsize // (2 if split else 1)
        stages = max(2, min(params.num_stages, (device.shared_bytes - 1024 - epilogue) // stage_bytes))
        return {
            "launches": [
                {
                    "kernel": "matmul_described",
                    "grid": (min(tiles, device.units),),
                    "args": ["a", "b", "out", m, n, k, a_stride, b_stride, out.strides[0]],
                    "constants": {
                        "A_TURNED": a_turned,
                        "B_TURNED": b_turned,
                        "OUT_DESCRIBED": out_fits,
                        "BLOCK_M": block_m,
                        "BLOCK_N": block_n,
                        "BLOCK_K": block_k,
                        "GROUP": params.group,
                        "SPLIT": split,
                    },
                    "num_warps": warps,
                    "num_stages": stages,
                }
            ]
        }
    strides = [a.strides[0], a.strides[1], b.strides[0], b.strides[1], out.strides[0], out.strides[1]]
    return {
        "launches": [
            {
                "kernel": "matmul_pointed",
                "grid": (tiles,),
                "args": ["a", "b", "out", m, n, k] + strides,
                "constants": {
                    "BLOCK_M": block_m,
                    "BLOCK_N": block_n,
                    "BLOCK_K": block_k,
                    "GROUP": params.group,
                },
                "num_warps": warps,
                "num_stages": max(2, min(params.num_stages, device.shared_bytes // stage_bytes)),
            }
        ]
    }
