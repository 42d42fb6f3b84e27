# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels of `matmul_in_order`: a tile of outputs by a program, the inputs added up in ascending order.

Tensor cores take 16 inputs at a time, and their sums for a row do not depend on the tile around it: on an H200 all
tiles from 16 x 16 to 128 x 128, of either matrix instruction, gave the same bits. So the tile is chosen by the number
of rows, and the order stays. Long rows are cut into chunks (`chunk_of`), whose sums are added in ascending order: in
a step of few rows every chunk has programs of its own, in a step of many rows one program takes all chunks of a tile.

Shapes: M rows of a tile, N outputs of a tile, K inputs added at a time; T tokens, I inputs, O outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from playhead.kernels.ordered import LONG_ROW
from playhead.kernels.sizes import ceil_div
from playhead.kernels.splits import NUM_SMS
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

CHUNK_BLOCK = 128  # inputs: a chunk is a multiple
FEW_ROWS = 64  # a tile's; more are fetched by the copy engine
PARTS_UP_TO = 1024  # rows: above, chunks have no programs of their own, as storing their sums would take as long
WIDE_FROM = 4096  # outputs
SUM_BLOCK = 1024  # outputs: eight for each of 128 threads
TILES_IN_A_GROUP = 8  # rows of tiles that neighbouring programs share, so that their weights are in the cache


@triton.jit
def _place(num_rows, num_outputs, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The tile of a program: GROUP rows of tiles are done before the next."""
    program = tl.program_id(0)
    in_group = GROUP * tl.cdiv(num_outputs, BLOCK_N)
    first = program // in_group * GROUP
    height = tl.minimum(tl.cdiv(num_rows, BLOCK_M) - first, GROUP)
    return first + program % in_group % height, program % in_group // height


@triton.jit
def _chunk_sum(
    x, weight, tile_m, tile_n, x_row, weight_row, num_rows, num_outputs, first, last,
    BY_TMA: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Products of inputs [first, last) of a tile. With EVEN these are whole blocks.

    With BY_TMA `x` and `weight` are descriptors, and the copy engine fetches blocks: right for many rows. It fetches
    rows past the last one too, as zeros, so steps of few rows are faster without.
    """
    sum_MN = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if BY_TMA:
        for k in tl.range(first, last, BLOCK_K):
            x_MK, weight_NK = x.load([tile_m * BLOCK_M, k]), weight.load([tile_n * BLOCK_N, k])
            sum_MN = tl.dot(x_MK, weight_NK.T, sum_MN, input_precision="ieee")
    else:
        row_M, col_N = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        k_K = tl.arange(0, BLOCK_K)
        x_place = x + (row_M.to(tl.int64) * x_row)[:, None] + k_K[None, :]
        weight_place = weight + (col_N.to(tl.int64) * weight_row)[None, :] + k_K[:, None]
        for k in tl.range(first, last, BLOCK_K):
            mask_MK, mask_KN = (row_M < num_rows)[:, None], (col_N < num_outputs)[None, :]
            if not EVEN:
                live_K = k + k_K < last
                mask_MK, mask_KN = mask_MK & live_K[None, :], mask_KN & live_K[:, None]
            x_MK = tl.load(x_place + k, mask=mask_MK, other=0.0)
            weight_KN = tl.load(weight_place + k, mask=mask_KN, other=0.0)
            sum_MN = tl.dot(x_MK, weight_KN, sum_MN, input_precision="ieee")
    return sum_MN


@triton.jit
def _store_tile(out_place, sum_MN, bias, col_N, live_N, mask_MN, scale, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr):
    """The sum with its bias and scale, over what is at `out_place` or added to it."""
    if HAS_BIAS:
        sum_MN += tl.load(bias + col_N, mask=live_N, other=0.0).to(tl.float32)[None, :]
    sum_MN *= scale
    if ADDS:
        sum_MN += tl.load(out_place, mask=mask_MN, other=0.0).to(tl.float32)
    tl.store(out_place, sum_MN.to(out_place.dtype.element_ty), mask=mask_MN)


@triton.jit(do_not_specialize=["num_rows"])  # it differs by step, and one binary must serve all of them
def ordered_matmul_kernel(
    x, weight, bias, out, num_rows, num_inputs, num_outputs, x_row, weight_row, out_row, scale, chunk,
    HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, IS_PART: tl.constexpr, HAS_CHUNKS: tl.constexpr,
    BY_TMA: tl.constexpr, EVEN: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """With IS_PART a program takes one chunk, and `out` are the chunks' sums in float32, a matrix for each chunk."""
    tile_m, tile_n = _place(num_rows, num_outputs, GROUP, BLOCK_M, BLOCK_N)
    first = 0
    last = num_inputs
    if IS_PART:
        first = tl.program_id(1) * chunk
        last = tl.minimum(first + chunk, num_inputs)
        out += tl.program_id(1).to(tl.int64) * num_rows * num_outputs
    after_upstream(DEPENDENT)
    if HAS_CHUNKS and not IS_PART:
        sum_MN = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for first in range(0, num_inputs, chunk):
            sum_MN += _chunk_sum(
                x, weight, tile_m, tile_n, x_row, weight_row, num_rows, num_outputs,
                first, tl.minimum(first + chunk, num_inputs), BY_TMA, EVEN, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
    else:
        sum_MN = _chunk_sum(
            x, weight, tile_m, tile_n, x_row, weight_row, num_rows, num_outputs,
            first, last, BY_TMA, EVEN, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    let_downstream_start(DEPENDENT)
    row_M, col_N = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    live_N, mask_MN = col_N < num_outputs, (row_M < num_rows)[:, None] & (col_N < num_outputs)[None, :]
    out_place = out + (row_M.to(tl.int64) * out_row)[:, None] + col_N[None, :]
    _store_tile(out_place, sum_MN, bias, col_N, live_N, mask_MN, scale, HAS_BIAS, ADDS)


@triton.jit(do_not_specialize=["num_rows"])
def sum_chunks_kernel(
    parts, bias, out, num_rows, num_outputs, out_row, scale, num_chunks,
    HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A block of a row: the chunks' sums in ascending order, as a program that takes all chunks adds them."""
    let_downstream_start(DEPENDENT)
    row, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = col < num_outputs
    sum_ = tl.zeros([BLOCK], tl.float32)
    after_upstream(DEPENDENT)
    for chunk in range(num_chunks):
        sum_ += tl.load(parts + (chunk * num_rows + row) * num_outputs + col, mask=live, other=0.0)
    if HAS_BIAS:
        sum_ += tl.load(bias + col, mask=live, other=0.0).to(tl.float32)
    sum_ *= scale
    place = out + row * out_row + col
    if ADDS:
        sum_ += tl.load(place, mask=live, other=0.0).to(tl.float32)
    tl.store(place, sum_.to(out.dtype.element_ty), mask=live)


def chunk_of(num_outputs: int, num_inputs: int) -> int:
    """Inputs whose products are summed by themselves: by the matrix alone, so that every step cuts a row alike.

    As many chunks as give every multiprocessor a tile of 64 outputs: the 6,912 inputs of Gemma-3-1B are seven of 1,024.
    """
    num_chunks = NUM_SMS // ceil_div(num_outputs, 64) if num_inputs > LONG_ROW else 1
    if num_chunks <= 1:
        return num_inputs
    return ceil_div(ceil_div(num_inputs, num_chunks), CHUNK_BLOCK) * CHUNK_BLOCK


class MatmulTiles(NamedTuple):
    """How a program is cut: rows, outputs, inputs added at a time, warps, and blocks of inputs in flight."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


# Measured on an H200 with the shapes of Gemma-3-1B and Llama-3.2-1B. Two programs of MANY share a multiprocessor: one
# stores its tile while the other multiplies.
NARROW = MatmulTiles(64, 16, 128, 4, 5)
IN_CHUNKS = MatmulTiles(64, 64, 128, 4, 4)
WIDE = MatmulTiles(64, 64, 64, 4, 6)
BY_TMA = (MatmulTiles(128, 128, 64, 4, 3), MatmulTiles(64, 128, 64, 4, 4), MatmulTiles(64, 64, 128, 4, 4))
IN_FLOAT32 = MatmulTiles(64, 64, 32, 4, 2)


def matmul_tiles(num_rows: int, num_outputs: int, num_chunks: int) -> tuple[MatmulTiles, bool]:
    """Tiles for numbers of 16 bits, and whether the copy engine fetches them. Any choice gives the same bits.

    With many rows the largest tiles that give every multiprocessor one: 256 rows of 13,824 outputs are 216 of 128 x
    128.
    """
    if num_rows <= FEW_ROWS:
        return (NARROW if num_chunks == 1 else IN_CHUNKS) if num_outputs < WIDE_FROM else WIDE, False
    for tiles in BY_TMA:
        if num_chunks * ceil_div(num_rows, tiles.block_m) * ceil_div(num_outputs, tiles.block_n) >= NUM_SMS:
            return tiles, True
    return BY_TMA[-1], True


def can_be_described(tensor: Tensor) -> bool:
    """Whether the copy engine can fetch blocks of a matrix: rows begin at multiples of 16 bytes."""
    return tensor.stride(1) == 1 and tensor.stride(0) * tensor.element_size() % 16 == 0 and tensor.data_ptr() % 16 == 0


def launch_matmul_in_order(*call: Any, tiles: MatmulTiles | None = None, chunk: int | None = None) -> None:
    x_TI, weight_OI, bias_O, out_TO, scale, adds = call
    (num_rows, num_inputs), num_outputs = x_TI.shape, weight_OI.shape[0]
    chunk = chunk or chunk_of(num_outputs, num_inputs)
    num_chunks = ceil_div(num_inputs, chunk)
    is_part = num_chunks > 1 and num_rows <= PARTS_UP_TO
    by_tma = False
    if tiles is None and x_TI.element_size() > 2:
        tiles = IN_FLOAT32
    elif tiles is None:
        tiles, by_tma = matmul_tiles(num_rows, num_outputs, num_chunks if is_part else 1)
        by_tma = by_tma and can_be_described(x_TI) and can_be_described(weight_OI)
    x, weight = x_TI, weight_OI
    if by_tma:
        x = TensorDescriptor.from_tensor(x_TI, [tiles.block_m, tiles.block_k])
        weight = TensorDescriptor.from_tensor(weight_OI, [tiles.block_n, tiles.block_k])
    # Kernels of many rows take so long that an early start gains nothing, and waiting programs cost 1%.
    waits = dependent(x_TI) if num_rows <= PARTS_UP_TO else {"DEPENDENT": False}
    target, finish = out_TO, {"HAS_BIAS": bias_O is not None, "ADDS": adds}
    if is_part:
        target = torch.empty((num_chunks, num_rows, num_outputs), dtype=torch.float32, device=x_TI.device)
    num_tiles = ceil_div(num_rows, tiles.block_m) * ceil_div(num_outputs, tiles.block_n)
    ordered_matmul_kernel[(num_tiles, num_chunks if is_part else 1)](
        x, weight, None if is_part else bias_O, target, num_rows, num_inputs, num_outputs,
        x_TI.stride(0), weight_OI.stride(0), target.stride(-2), 1.0 if is_part else scale, chunk,
        **({"HAS_BIAS": False, "ADDS": False} if is_part else finish), IS_PART=is_part, HAS_CHUNKS=num_chunks > 1,
        BY_TMA=by_tma, EVEN=num_inputs % tiles.block_k == 0 and chunk % tiles.block_k == 0, GROUP=TILES_IN_A_GROUP,
        BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, enable_fp_fusion=False, **waits,
    )  # fmt: skip
    if is_part:
        sum_chunks_kernel[(num_rows, ceil_div(num_outputs, SUM_BLOCK))](
            target, bias_O, out_TO, num_rows, num_outputs, out_TO.stride(0), scale, num_chunks, **finish,
            BLOCK=SUM_BLOCK, enable_fp_fusion=False, **waits,
        )  # fmt: skip
