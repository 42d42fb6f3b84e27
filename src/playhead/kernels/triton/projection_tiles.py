"""Which products take the kernels of `projection_kernels.py` and `ring.py`, and how their programs are cut: rules from
measurements.

`python -m bench.projections` measures every rule's choice against its neighbours and the BLAS library, product by
product; `python -m bench.tiles` measures the neighbours in whole decode steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from playhead.kernels.sizes import ceil_div, next_power_of_2
from playhead.kernels.splits import NUM_SMS

MOST_ROWS = 256  # of a step that reads weights for so little arithmetic that the memory sets its pace
MANY_ROWS = 128  # with more the BLAS library is as fast or faster, unless a map is NARROW:
NARROW = 1536  # at most so many inputs if it has many outputs, else at most so many outputs
MOST_OUTPUTS = 65_536  # the BLAS library is at the memory's pace for a head
MOST_INPUTS = 16_384  # a program of `row_kernel` holds all inputs of two outputs in registers
LARGE_BYTES = 13 << 20
ENOUGH_OUTPUTS = 8192  # of a map whose programs can each take 256 rows, and are still as many as multiprocessors
MANY_OUTPUTS = 6144  # of a map whose programs fill a device although none takes a share of its inputs
FEW_ROWS = 8  # whose products with 16 outputs are one matrix instruction
LONG_ROW = 4096  # inputs: more are streamed, as no program can hold them
LONG_SHARE = 1024  # inputs of a program that streams: eight blocks and more
WIDE_ROW = 2048  # inputs: one such row is streamed through a matrix with many outputs whose programs all run at once
MOST_HELD_TWICE = 2560  # inputs of 32 outputs: 160 KiB of the 227 that a program may have, and rows take 32 more
RING_ROWS = 64  # rows of the matrix of a program of `ring_kernel`, gates and ups: those of one matrix instruction
RING_INPUTS = 128  # of a block of the ring
DTYPES = (torch.bfloat16, torch.float16)

# A program that takes 256 rows multiplies as long for 129 of them. So rows of more than NARROW inputs, up to so many,
# have such programs only if there are more rows than ALMOST_ALL. Measured at 256.
MORE_INPUTS = 2048
ALMOST_ALL = 192


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTiles:
    """A program of `row_kernel`: `block_n` rows of the matrix, all their inputs at once: `block_k` and `rest` more.

    With `starts_early` programs of the next kernel may load their weights while this kernel runs, else at its end.
    """

    block_n: int
    block_k: int
    num_warps: int
    starts_early: bool
    rest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTiles:
    """A program of `held_kernel`: `block_r` rows, `block_n` rows of the matrix; each of `parts` warps has `block_k` of
    their inputs and `rest` more. `num_splits` programs share the inputs of the same outputs.
    """

    block_r: int
    block_n: int
    block_k: int
    rest: int = 0
    parts: int = 4
    num_splits: int = 1
    starts_early: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedTiles:
    """A program of `streamed_kernel`: `block_r` rows, `block_n` rows of the matrix, `block_k` inputs at a time,
    `num_stages` of them in flight. `num_splits` programs share the inputs of the same outputs: `share` inputs each, or
    as many as make equal shares. The weights of `held` inputs of a program are loaded before it waits for the rows.
    """

    block_r: int
    block_n: int
    block_k: int
    num_stages: int
    num_warps: int = 4
    num_splits: int = 1
    held: int = 0
    starts_early: bool = False
    share: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTiles:
    """A program of `ring_kernel`: `block_r` rows, RING_ROWS rows of the matrix, RING_INPUTS inputs at a time. Before
    it waits for the rows it asks for the weights of `places` blocks, `asked` of a block's rows at a time, and with
    `holds` it loads one block more into registers. `row_places` blocks of rows are on their way behind the wait.
    """

    block_r: int
    places: int
    row_places: int
    asked: int
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTiles:
    """A program of `fitted_kernel`: `block_r` rows, `block_n` rows of the matrix and `rest` more, `block_k` inputs at a
    time, `num_stages` of them in flight.
    """

    block_r: int
    block_n: int
    rest: int
    block_k: int
    num_stages: int
    num_warps: int = 8


Tiles = RowTiles | HeldTiles | StreamedTiles | RingTiles | FittedTiles


def most_rows(tiles: Tiles) -> int | None:
    """How many rows a product so cut can have; None where several programs share them."""
    if isinstance(tiles, RowTiles):
        return 1
    return None if isinstance(tiles, StreamedTiles) else tiles.block_r


def num_shares(tiles: Tiles) -> int:
    """How many programs share the inputs of the same outputs: so many matrices of sums are written."""
    return tiles.num_splits if isinstance(tiles, HeldTiles | StreamedTiles) else 1


def gated_tiles(x_TI: torch.Tensor, weight_JI: torch.Tensor, bias_J: torch.Tensor | None) -> Tiles | None:
    """How a gated product is cut: by the ring or fitted where that is faster, else as any product."""
    if bias_J is not None or not is_ours(x_TI, weight_JI):
        return tiles_for(x_TI, weight_JI)
    product = (x_TI.shape[0], *weight_JI.shape)
    # A copy moves 16 bytes, so each row must start at a multiple of 16 bytes. Triton sees that of a stride only if 16
    # divides it.
    starts_aligned = all(one.storage_offset() % 8 == 0 for one in (x_TI, weight_JI)) and x_TI.stride(0) % 16 == 0
    ring = ring_tiles(*product) if starts_aligned and can_ring(x_TI.device) else None
    return ring or fitted_tiles(*product) or tiles_for(x_TI, weight_JI)


def fitted_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> FittedTiles | None:
    """A program for each multiprocessor, of 65 to 128 rows: gate-up of Gemma-3-4B are 128 programs. Three smaller ones
    for each take 2 us longer, as each reads the rows anew.
    """
    tiles = FittedTiles(block_r=128, block_n=128, rest=32, block_k=64, num_stages=5)
    num_programs = ceil_div(num_outputs, tiles.block_n + tiles.rest)
    fills_device = 9 * NUM_SMS <= 10 * num_programs <= 10 * NUM_SMS
    is_fast = fills_device and 64 < num_rows <= tiles.block_r and num_inputs % tiles.block_k == 0
    return tiles if is_fast and num_inputs >= WIDE_ROW else None


def ring_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> RingTiles | None:
    """As many weights as all programs of a launch have room for, of which each multiprocessor has one to three. Three
    ask for less at a time. Measured in decode steps of Gemma-3, Llama-3.2-1B and Qwen3-0.6B.
    """
    per_sm = -(-num_outputs // (RING_ROWS * NUM_SMS))
    fills_blocks = num_outputs % RING_ROWS == num_inputs % RING_INPUTS == 0
    if not fills_blocks or per_sm > 3 or num_outputs < MANY_OUTPUTS:
        return None
    if num_rows == 1 and per_sm != 2:  # Qwen3-0.6B 608 us a step, 578 by `row_kernel`; Gemma-3-4B 2,371 and 2,302
        return None
    tiles = _ring_three_an_sm(num_rows) if per_sm == 3 else _ring_two_an_sm(num_rows)
    return tiles if tiles is not None and num_inputs >= (tiles.places + tiles.holds) * RING_INPUTS else None


def _ring_two_an_sm(num_rows: int) -> RingTiles | None:
    if num_rows <= FEW_ROWS:
        return RingTiles(block_r=FEW_ROWS, places=6, row_places=6, asked=64, holds=num_rows > 1)
    if num_rows <= 16:
        return RingTiles(block_r=16, places=5, row_places=4, asked=32, holds=True)
    if num_rows <= 32:
        return RingTiles(block_r=32, places=4, row_places=4, asked=64, holds=True)
    return RingTiles(block_r=64, places=3, row_places=3, asked=64, holds=True) if num_rows <= 64 else None


def _ring_three_an_sm(num_rows: int) -> RingTiles | None:
    if num_rows <= FEW_ROWS:
        return RingTiles(block_r=FEW_ROWS, places=4, row_places=4, asked=32, holds=True)
    if num_rows <= 16:
        return RingTiles(block_r=16, places=3, row_places=3, asked=32, holds=True)
    return RingTiles(block_r=32, places=3, row_places=3, asked=16, holds=False) if num_rows <= 32 else None


@cache
def can_ring(device: torch.device) -> bool:
    """Whether a device has the matrix instructions of `ring_kernel`, which are Hopper's alone."""
    return device.type == "meta" or (device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9)


def tiles_for(x_TI: torch.Tensor, weight_OI: torch.Tensor) -> RowTiles | HeldTiles | StreamedTiles | None:
    """How the product is cut; None where the BLAS library is as fast, or the only one that can."""
    (num_outputs, num_inputs), num_rows = weight_OI.shape, x_TI.shape[0]
    if not is_ours(x_TI, weight_OI):
        return None
    is_wide = num_outputs >= MANY_OUTPUTS
    if num_rows == 1 and not (is_wide and num_outputs <= 2 * 64 * NUM_SMS and num_inputs >= WIDE_ROW):
        return row_tiles(num_outputs, num_inputs)
    if num_rows > MANY_ROWS:
        return tiles_for_many_rows(num_rows, num_outputs, num_inputs)
    if is_wide:
        return wide_tiles(num_rows, num_outputs)
    return narrow_tiles(num_rows, num_outputs, num_inputs) if num_inputs < LONG_ROW else None


def split_tiles(x_TI: torch.Tensor, weight_OI: torch.Tensor) -> HeldTiles | StreamedTiles | None:
    """The same where the reader adds up the parts of a product, so that programs can share the inputs; None where that
    is no faster.
    """
    (num_outputs, num_inputs), num_rows = weight_OI.shape, x_TI.shape[0]
    if not is_ours(x_TI, weight_OI) or num_rows == 1 or num_outputs >= MANY_OUTPUTS:
        return None
    if num_rows > MANY_ROWS:
        return split_tiles_for_many_rows(num_outputs, num_inputs)
    block_r, is_long = rows_of_tile(num_rows), num_inputs >= LONG_ROW
    num_tiles = -(-num_outputs // 64)
    # A program that holds its weights gains what it loads before it waits: nothing behind a product as long as gate-up.
    if num_rows <= FEW_ROWS and not is_long:
        return HeldTiles(block_r=block_r, block_n=16, block_k=256, num_splits=-(-num_inputs // 1024))
    if num_rows <= 32 and not is_long:
        # A program's weights are there when the rows come, all or some of them; and all programs run at once.
        in_four = 4 * num_tiles <= NUM_SMS
        block_k, num_splits = (256, min(4, -(-num_inputs // 256))) if in_four else (128, min(8, -(-num_inputs // 128)))
        num_stages, held = 2, block_k
        if in_four and num_inputs > 256 * num_splits:  # what is not held comes in shorter blocks
            block_k, num_stages = 128, 3
        return StreamedTiles(
            block_r=block_r, block_n=64, block_k=block_k, num_stages=num_stages, held=held, num_splits=num_splits,
            starts_early=True,
        )  # fmt: skip
    # Two programs take half of the rows each, unless three could share the inputs of all rows and none those of halves.
    if num_rows > 64 and not is_long and not 3 * num_tiles <= NUM_SMS < 4 * num_tiles:
        block_r = 64
    # About one program for each multiprocessor. Short rows of inputs leave less to share: at least one block.
    num_splits = max(NUM_SMS // (num_tiles * -(-num_rows // block_r)), 1)
    if not is_long and num_rows <= 64:
        num_splits = min(num_splits, 4)
    num_splits = min(num_splits, -(-num_inputs // 128))
    # A long share of few rows: 80 KB on their way, where 48 leave the memory waiting.
    num_stages = 6 if num_rows <= FEW_ROWS and num_inputs >= LONG_SHARE * num_splits else 4
    return StreamedTiles(
        block_r=block_r, block_n=64, block_k=128, num_stages=num_stages, num_splits=num_splits, starts_early=True
    )


def is_ours(x_TI: torch.Tensor, weight_OI: torch.Tensor) -> bool:
    """Whether the kernels can do the product, and it is of a size that they are for."""
    (num_outputs, num_inputs), num_rows = weight_OI.shape, x_TI.shape[0]
    fits = num_rows <= MOST_ROWS and num_outputs <= MOST_OUTPUTS and num_inputs <= MOST_INPUTS
    # Loads of 16 bytes need rows that start at multiples of 16 bytes.
    is_aligned = num_inputs % 16 == 0 and weight_OI.is_contiguous() and x_TI.stride(1) == 1
    return fits and is_aligned and x_TI.dtype in DTYPES and x_TI.dtype is weight_OI.dtype


def rows_of_tile(num_rows: int) -> int:
    return max(next_power_of_2(num_rows), FEW_ROWS)


def row_tiles(num_outputs: int, num_inputs: int) -> RowTiles:
    """32 weights for each thread, more where two rows of the matrix have more: enough in flight to hide the latency.
    Programs that do not all run at once are faster with fewer threads, and rows of up to 1,152 inputs then with more
    weights a thread; so are 2,048 inputs of as many outputs. Measured in decode steps of Gemma-3, Llama-3.2-1B and
    Qwen3-0.6B.

    1,152 inputs are 1,024 and 128: 2,048 lanes would leave nearly half of the registers empty.
    """
    block_k = max(next_power_of_2(num_inputs), 1024)
    left, rest = num_inputs - block_k // 2, 0
    if 0 < left <= block_k // 8:
        block_k, rest = block_k // 2, next_power_of_2(left)
    # A large matrix keeps the memory busy by itself, and programs of the next kernel would take room from its own.
    starts_early = num_outputs * num_inputs * 2 <= LARGE_BYTES
    per_thread, num_warps = 32, 8
    if block_k == WIDE_ROW <= num_outputs < MANY_OUTPUTS:
        per_thread, num_warps = 128, 4
    elif block_k <= WIDE_ROW and not starts_early:
        per_thread, num_warps = 32 if block_k == WIDE_ROW else 64, 4
    elif block_k < WIDE_ROW and rest:
        per_thread = 64
    block_n = max(per_thread * 32 * num_warps // block_k, 2)
    return RowTiles(block_n=block_n, block_k=block_k, rest=rest, num_warps=num_warps, starts_early=starts_early)


def wide_tiles(num_rows: int, num_outputs: int) -> StreamedTiles:
    """Of a map with many outputs: each program has all inputs. Where it can be, all programs run at once: one, two or
    three a multiprocessor. Those of a second wave would begin late, with nothing on its way.

    Few rows leave room for weights that are held: they are loaded while attention runs and the memory is idle.
    """
    block_r, per_sm = rows_of_tile(num_rows), -(-num_outputs // (64 * NUM_SMS))
    if num_rows <= 2 * FEW_ROWS:
        room = (512, 512, 256) if num_rows <= FEW_ROWS else (256, 256)  # for one, two, three programs
        held = room[per_sm - 1] if per_sm <= len(room) else 0
        return StreamedTiles(block_r=block_r, block_n=64, block_k=128, num_stages=3, held=held)
    if per_sm == 3 and num_rows > 32:
        return StreamedTiles(block_r=block_r, block_n=64, block_k=64, num_stages=4 if num_rows <= 64 else 3)
    if per_sm > 2 and num_rows <= 64:
        return StreamedTiles(block_r=block_r, block_n=64, block_k=128, num_stages=3)
    if per_sm == 1 and num_rows > 64:  # half of the outputs each: still one program a multiprocessor
        return StreamedTiles(block_r=block_r, block_n=64, block_k=64, num_stages=6)
    return StreamedTiles(block_r=block_r, block_n=128, block_k=64, num_stages=6, num_warps=8)


def tiles_for_many_rows(num_rows: int, num_outputs: int, num_inputs: int) -> StreamedTiles | None:
    """For 129 to 256 rows. A program that takes them all reads its weights once, and needs many outputs to share."""
    is_enough = num_outputs > ENOUGH_OUTPUTS
    most_inputs = MORE_INPUTS if is_enough and num_rows > ALMOST_ALL else NARROW
    if num_outputs >= MANY_OUTPUTS and num_inputs <= most_inputs:
        block_r = 256 if is_enough else 128
        return StreamedTiles(block_r=block_r, block_n=128, block_k=64, num_stages=4, num_warps=8)
    if num_outputs <= NARROW and num_inputs < LONG_ROW:
        return StreamedTiles(block_r=64, block_n=64, block_k=128, num_stages=4, starts_early=True)
    if 2048 < num_outputs < MANY_OUTPUTS and num_inputs <= NARROW:
        return StreamedTiles(block_r=128, block_n=64, block_k=128, num_stages=4, starts_early=True)
    return None


def split_tiles_for_many_rows(num_outputs: int, num_inputs: int) -> StreamedTiles | None:
    """The same where programs share the inputs: for long rows of them one program a multiprocessor."""
    if num_outputs > NARROW:
        return None
    if num_inputs >= LONG_ROW:
        num_splits = min(NUM_SMS // -(-num_outputs // 64), num_inputs // 64)
        return StreamedTiles(
            block_r=256, block_n=64, block_k=64, num_stages=4, num_warps=8, num_splits=num_splits, starts_early=True
        )
    if 8 * -(-num_outputs // 64) <= NUM_SMS:  # a program for each multiprocessor by two shares of the inputs
        num_splits = min(2, -(-num_inputs // 128))
        return StreamedTiles(
            block_r=64, block_n=64, block_k=128, num_stages=4, num_splits=num_splits, starts_early=True
        )
    num_splits = min(4, -(-num_inputs // 64))
    return StreamedTiles(block_r=128, block_n=64, block_k=64, num_stages=5, num_splits=num_splits, starts_early=True)


def narrow_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> HeldTiles | StreamedTiles | None:
    """Of a map with few outputs and inputs, whose sums must be whole."""
    if num_rows <= FEW_ROWS:
        return held_tiles(num_outputs, num_inputs)
    if num_outputs > 2048 and num_rows > 32:
        # Of 2,048 inputs 7.8 us against 7.1 by the BLAS library (Llama-3.2-1B's qkv, 128 rows).
        if num_inputs > NARROW:
            return None
        return StreamedTiles(block_r=64, block_n=64, block_k=128, num_stages=4, starts_early=True)
    if num_outputs > 2048:
        return StreamedTiles(
            block_r=rows_of_tile(num_rows), block_n=64, block_k=128, num_stages=4, held=256, starts_early=True
        )
    if 16 < num_rows <= 32:  # two programs share the rows, and each holds weights
        return StreamedTiles(block_r=16, block_n=64, block_k=128, num_stages=5, held=256, starts_early=True)
    block_r = 64 if num_rows > 64 else min(rows_of_tile(num_rows), 32)
    return StreamedTiles(block_r=block_r, block_n=64, block_k=128, num_stages=5, starts_early=True)


def held_tiles(num_outputs: int, num_inputs: int) -> HeldTiles:
    """All inputs of 16 outputs: 1,152 are four times 256 and four times 32.

    A program of more than 2,048 inputs has a multiprocessor to itself. Where there would be more of these programs than
    multiprocessors, each has 32 outputs if their weights fit.
    """
    parts = 4 if num_inputs < 2048 else 8
    block_k = min(256, max(1 << (num_inputs // parts).bit_length() - 1, 16))
    left = max(num_inputs - parts * block_k, 0)
    rest = max(next_power_of_2(ceil_div(left, parts)), 16) if left else 0
    fits_twice = parts * (block_k + rest) <= MOST_HELD_TWICE
    block_n = 32 if num_inputs > 2048 and num_outputs > 16 * NUM_SMS and fits_twice else 16
    return HeldTiles(block_r=FEW_ROWS, block_n=block_n, block_k=block_k, rest=rest, parts=parts)
