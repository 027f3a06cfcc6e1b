# ruff: noqa: F821, RUF005, SIM300 (`plan` is in a language of its own, kernels are in theirs)
"""Gated feed-forward layer out = (silu(x gate^T) * (x up^T)) down^T; fp32 sums, the gated middle rounded once.

Declared layout: last axis of x, gate, up, down and out contiguous, any row strides.

First launch: a tile of x meets the same rows of gate and up, two sums side by side, and what is stored is their gated
product. Second launch: the plain product with down. Halves on Hopper and later: programs stay on their multiprocessor
and walk over the output tiles, operands come through tensor descriptors. Everything else: one program per tile,
operands by pointer; fp32 products are fp32, never tf32.
"""

import triton
import triton.language as tl

PARAMS = {
    "block_m": [128, 64, 32],
    "block_n": [128, 64, 32],
    "block_k": [0, 64, 32, 128, 16],
    "group": [8, 4, 16],
    "num_warps": [0, 2, 4],
    "num_stages": [4, 3, 2],
    "out_block_n": [256, 128, 64, 32],
}

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2_HIGH = tl.constexpr(0.693359375)
LN_2_LOW = tl.constexpr(-2.12194440054690583e-4)


@triton.jit
def _tile_place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Return row and column of a tile: down GROUP rows, then one column on."""
    in_group = GROUP * tiles_n
    first = tile // in_group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    within = tile % in_group
    return first + within % height, within // height


@triton.jit
def _gated(gate, up, KIND: tl.constexpr):
    """Return silu(gate) * up, as exactly as the element type KIND asks for."""
    if KIND != tl.float32:
        return gate / (1.0 + tl.exp2(gate * -LOG2_E)) * up
    # exp(-|gate|) to the last place; the hardware's exp2 costs |gate| units in it. exp(-80) is nothing beside one.
    distance = tl.maximum(-tl.abs(gate), -80.0, propagate_nan=tl.PropagateNan.ALL)
    whole = tl.floor(distance * LOG2_E + 0.5)
    part = (distance - whole * LN_2_HIGH) - whole * LN_2_LOW
    series = ((1.982308604e-04 * part + 1.394577557e-03) * part + 8.333436213e-03) * part + 4.166627675e-02
    series = (series * part + 1.666666567e-01) * part + 0.5
    scale = ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    fade = ((series * (part * part) + part) + 1.0) * scale
    fade = tl.where(gate == float("-inf"), 0.0, fade)  # as in the framework, -inf * 0
    return tl.div_rn(tl.where(gate < 0.0, gate * fade, gate), 1.0 + fade) * up


@triton.jit
def gate_up_described(
    x, gate, up, middle, m, n, k, x_stride, gate_stride, up_stride, middle_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute every num_programs-th tile of the gated middle."""
    KIND: tl.constexpr = x.dtype.element_ty
    x_tiles = tl.make_tensor_descriptor(x, [m, k], [x_stride, 1], [BLOCK_M, BLOCK_K])
    gate_tiles = tl.make_tensor_descriptor(gate, [n, k], [gate_stride, 1], [BLOCK_N, BLOCK_K])
    up_tiles = tl.make_tensor_descriptor(up, [n, k], [up_stride, 1], [BLOCK_N, BLOCK_K])
    typed = middle.to(tl.pointer_type(KIND))
    middle_tiles = tl.make_tensor_descriptor(typed, [m, n], [middle_stride, 1], [BLOCK_M, BLOCK_N])
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    programs = tl.num_programs(0)
    # Not flattened: with two sums ptxas would then wait after every single product.
    for tile in range(tl.program_id(0), tiles_m * tiles_n, programs):
        tile_m, tile_n = _tile_place(tile, tiles_m, tiles_n, GROUP)
        gates = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        ups = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            left = x_tiles.load([tile_m * BLOCK_M, step * BLOCK_K])
            right_gate = gate_tiles.load([tile_n * BLOCK_N, step * BLOCK_K])
            right_up = up_tiles.load([tile_n * BLOCK_N, step * BLOCK_K])
            gates = tl.dot(left, right_gate.T, gates)
            ups = tl.dot(left, right_up.T, ups)
        middle_tiles.store([tile_m * BLOCK_M, tile_n * BLOCK_N], _gated(gates, ups, KIND).to(KIND))


@triton.jit
def down_described(
    middle, down, out, m, n, k, middle_stride, down_stride, out_stride, OUT_DESCRIBED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Compute every num_programs-th tile of middle down^T; here n counts columns of out, k those of middle."""
    KIND: tl.constexpr = out.dtype.element_ty
    PART: tl.constexpr = BLOCK_N // 2 if SPLIT else BLOCK_N
    typed = middle.to(tl.pointer_type(KIND))
    middle_tiles = tl.make_tensor_descriptor(typed, [m, k], [middle_stride, 1], [BLOCK_M, BLOCK_K])
    down_tiles = tl.make_tensor_descriptor(down, [n, k], [down_stride, 1], [BLOCK_N, BLOCK_K])
    if OUT_DESCRIBED:
        out_tiles = tl.make_tensor_descriptor(out, [m, n], [out_stride, 1], [BLOCK_M, PART])
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    programs = tl.num_programs(0)
    # The epilogue counts tiles on its own: the loop's counter belongs to the loads, which run ahead.
    done = tl.program_id(0) - programs
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=True):
        tile_m, tile_n = _tile_place(tile, tiles_m, tiles_n, GROUP)
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            left = middle_tiles.load([tile_m * BLOCK_M, step * BLOCK_K])
            right = down_tiles.load([tile_n * BLOCK_N, step * BLOCK_K])
            sums = tl.dot(left, right.T, sums)
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
            tl.store(out + rows.to(tl.int64) * out_stride + cols, sums.to(KIND), mask=(rows < m) & (cols < n))


@triton.jit
def gate_up_pointed(
    x, gate, up, middle, m, n, k, x_stride, gate_stride, up_stride, middle_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute one tile of the gated middle."""
    KIND: tl.constexpr = x.dtype.element_ty
    tile_m, tile_n = _tile_place(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP)
    row, col, inner = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # 64 bits for the tile's corner, 32 within it.
    corner_m, corner_n = (tile_m * BLOCK_M).to(tl.int64), (tile_n * BLOCK_N).to(tl.int64)
    in_m, in_n = (tile_m * BLOCK_M + row < m)[:, None], (tile_n * BLOCK_N + col < n)[:, None]
    left_at = x + corner_m * x_stride + row[:, None] * x_stride + inner[None, :]
    gate_at = gate + corner_n * gate_stride + col[:, None] * gate_stride + inner[None, :]
    up_at = up + corner_n * up_stride + col[:, None] * up_stride + inner[None, :]
    gates = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    ups = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        known = (inner < k - step * BLOCK_K)[None, :]
        left = tl.load(left_at + step * BLOCK_K, mask=in_m & known, other=0.0)
        right_gate = tl.load(gate_at + step * BLOCK_K, mask=in_n & known, other=0.0)
        right_up = tl.load(up_at + step * BLOCK_K, mask=in_n & known, other=0.0)
        gates = tl.dot(left, right_gate.T, gates, input_precision="ieee")
        ups = tl.dot(left, right_up.T, ups, input_precision="ieee")
    target = middle.to(tl.pointer_type(KIND)) + corner_m * middle_stride + corner_n
    inside = in_m & (tile_n * BLOCK_N + col < n)[None, :]
    tl.store(
        target + row[:, None] * middle_stride + col[None, :], _gated(gates, ups, KIND).to(KIND), mask=inside
    )


@triton.jit
def down_pointed(
    middle, down, out, m, n, k, middle_stride, down_stride, out_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute one tile of middle down^T; here n counts columns of out, k those of middle."""
    KIND: tl.constexpr = out.dtype.element_ty
    tile_m, tile_n = _tile_place(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP)
    row, col, inner = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    corner_m, corner_n = (tile_m * BLOCK_M).to(tl.int64), (tile_n * BLOCK_N).to(tl.int64)
    in_m, in_n = (tile_m * BLOCK_M + row < m)[:, None], (tile_n * BLOCK_N + col < n)[:, None]
    typed = middle.to(tl.pointer_type(KIND))
    left_at = typed + corner_m * middle_stride + row[:, None] * middle_stride + inner[None, :]
    right_at = down + corner_n * down_stride + col[:, None] * down_stride + inner[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        known = (inner < k - step * BLOCK_K)[None, :]
        left = tl.load(left_at + step * BLOCK_K, mask=in_m & known, other=0.0)
        right = tl.load(right_at + step * BLOCK_K, mask=in_n & known, other=0.0)
        sums = tl.dot(left, right.T, sums, input_precision="ieee")
    target = out + corner_m * out_stride + corner_n + row[:, None] * out_stride + col[None, :]
    tl.store(target, sums.to(KIND), mask=in_m & (tile_n * BLOCK_N + col < n)[None, :])


def plan(case, params, device):
    """Return the launches of a case."""
    x, gate, up, down, out = (
        case.tensors.x,
        case.tensors.gate,
        case.tensors.up,
        case.tensors.down,
        case.tensors.out,
    )
    m, n, k = case.axes.m, case.axes.n, case.axes.k
    dense = k <= 1 or (
        x.strides[1] == 1 and gate.strides[1] == 1 and up.strides[1] == 1 and out.strides[1] == 1
    )
    if not dense or (n > 1 and down.strides[1] != 1):
        return {"unsupported": "the last axis of x, gate, up, down and out must be contiguous"}
    is_half = x.itemsize == 2
    has_descriptors = is_half and device.arch in ("sm_90", "sm_100", "sm_103", "sm_120")
    # A descriptor wants rows on 16 bytes; those of the middle are padded to it.
    middle_stride = cdiv(n, 8) * 8
    gate_fits = gate.strides[0] % 8 + gate.offset % 8 + up.strides[0] % 8 + up.offset % 8 == 0
    first_described = has_descriptors and gate_fits and x.strides[0] % 8 + x.offset % 8 == 0 and k > 0
    second_described = has_descriptors and down.strides[0] % 8 + down.offset % 8 == 0 and n > 0

    # fp32 has no tensor cores to fill: its tiles may be small, and so may its blocks of threads.
    least = 64 if is_half else 32
    asked_k = params.block_k if params.block_k > 0 else 64 if is_half else 16
    block_k = max(32, asked_k) if is_half else min(64, asked_k)
    asked_m = max(least, params.block_m) if is_half else min(64, params.block_m)
    block_m = min(asked_m, max(16, next_power_of_2(max(m, 1))))
    # Pointers cost registers: beside two sums there is room for 64 columns.
    asked_n = max(least, params.block_n if first_described else min(64, params.block_n))
    block_n = min(asked_n, max(16, next_power_of_2(max(n, 1))))
    # Smaller tiles where the large ones would leave half of the device idle.
    if 2 * cdiv(m, block_m) * cdiv(n, block_n) <= device.units:
        block_m, block_n = min(block_m, 64), min(block_n, 64)
    if 2 * cdiv(m, block_m) * cdiv(n, block_n) <= device.units:
        block_m, block_n = min(block_m, least), min(block_n, least)
    few = params.num_warps if params.num_warps > 0 and not is_half else 4
    stage_bytes = (block_m + 2 * block_n) * block_k * x.itemsize
    epilogue = block_m * block_n * x.itemsize if first_described else 0
    room = device.shared_bytes - 1024 - epilogue
    tiles = cdiv(m, block_m) * cdiv(n, block_n)
    strides = [x.strides[0], gate.strides[0], up.strides[0], middle_stride]
    first = {
        "kernel": "gate_up_described" if first_described else "gate_up_pointed",
        "grid": (min(tiles, device.units) if first_described else tiles,),
        "args": ["x", "gate", "up", "middle", m, n, k] + strides,
        "constants": {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP": params.group},
        "num_warps": 8 if block_m * block_n >= 128 * 64 else few,
        "num_stages": max(2, min(params.num_stages, room // stage_bytes)),
    }

    block_m = min(asked_m, max(16, next_power_of_2(max(m, 1))))
    large_n = (256 if second_described else 128) if is_half else 64
    block_n = min(max(least, params.out_block_n), large_n, max(16, next_power_of_2(max(k, 1))))
    if 2 * cdiv(m, block_m) * cdiv(k, block_n) <= device.units:
        block_n = min(block_n, 128)
    if 2 * cdiv(m, block_m) * cdiv(k, block_n) <= device.units:
        block_m, block_n = min(block_m, 64), min(block_n, 64)
    if 2 * cdiv(m, block_m) * cdiv(k, block_n) <= device.units:
        block_m, block_n = min(block_m, least), min(block_n, least)
    out_fits = out.strides[0] % 8 + out.offset % 8 == 0
    split = out_fits and block_n >= 128
    stage_bytes = (block_m + block_n) * block_k * x.itemsize
    epilogue = block_m * block_n * x.itemsize // (2 if split else 1) if second_described else 0
    room = device.shared_bytes - 1024 - epilogue
    tiles = cdiv(m, block_m) * cdiv(k, block_n)
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP": params.group}
    second = {
        "kernel": "down_described" if second_described else "down_pointed",
        "grid": (min(tiles, device.units) if second_described else tiles,),
        "args": ["middle", "down", "out", m, k, n, middle_stride, down.strides[0], out.strides[0]],
        "constants": blocks | {"OUT_DESCRIBED": out_fits, "SPLIT": split} if second_described else blocks,
        "num_warps": 8 if block_m * block_n >= 128 * 128 else few,
        "num_stages": max(2, min(params.num_stages, room // stage_bytes)),
    }
    return {
        "launches": [first, second],
        "workspaces": [{"name": "middle", "nbytes": m * middle_stride * x.itemsize, "zero_fill": False}],
    }
