"""Other tiles than the rules': what `bench.tiles` tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil

from bench.projections import IN_PARTS, neighbours
from playhead.kernels.sizes import next_power_of_2
from playhead.kernels.splits import NUM_SMS
from playhead.kernels.triton.decode_tiles import SM_REGISTERS, DecodeTiles
from playhead.kernels.triton.projection_tiles import RING_INPUTS, HeldTiles, RingTiles, StreamedTiles, Tiles

SM_SHARED_BYTES, RESERVED_BYTES = 228 * 1024, 1024  # of a multiprocessor, and of each of its programs
LEAST_REGISTERS = 64  # of a thread; with fewer, numbers go to memory
MOST_SPLITS = 12
PIPELINES = ((64, 4), (64, 6), (128, 3), (128, 4))  # inputs of a block, blocks in flight
Shape = tuple[int, int]


def variants(tiles: Tiles, num_inputs: int) -> list[Tiles]:
    """Other tiles of the same kind that cover all inputs, each once."""
    found: list[Tiles] = list(neighbours(tiles))
    if isinstance(tiles, StreamedTiles):
        holding = ((0, 3), (128, 2), (256, 3), (512, 3), (512, 2))
        found += [replace(tiles, held=held, num_stages=num_stages) for held, num_stages in holding]
        if tiles.num_splits > 1:
            counts = (tiles.num_splits - 1, tiles.num_splits + 1, 2 * tiles.num_splits)
            found += [replace(tiles, num_splits=count) for count in counts if count > 1]
    return [other for other in dict.fromkeys(found) if other != tiles and covers(other, num_inputs)]


def covers(tiles: Tiles, num_inputs: int) -> bool:
    """Whether all inputs are some program's, and no others. Streamed ones go on to the last."""
    if isinstance(tiles, RingTiles):
        return (tiles.places + tiles.holds) * RING_INPUTS <= num_inputs
    if isinstance(tiles, HeldTiles):
        return tiles.num_splits * tiles.parts * (tiles.block_k + tiles.rest) >= num_inputs
    return True


def wide_cuts(name: str, num_rows: int, shape: Shape) -> Iterator[StreamedTiles]:
    """All streamed tiles that give one or two programs for each multiprocessor, or nearly, and fit it."""
    num_outputs, num_inputs = shape
    most_rows = max(next_power_of_2(num_rows), 16)
    for block_r, block_n, (block_k, num_stages) in product((16, 32, 64, 128, 256), (32, 64, 128), PIPELINES):
        num_tiles = ceil(num_outputs / block_n) * ceil(num_rows / block_r)
        per_sm = SM_SHARED_BYTES // ((block_r + block_n) * block_k * 2 * num_stages + RESERVED_BYTES)
        if block_r > most_rows or not per_sm:
            continue
        counts = [max(waves * NUM_SMS // num_tiles, 1) for waves in (1, 2)] if name in IN_PARTS else [1]
        for num_splits in sorted(set(counts)):
            is_full = 0.6 * NUM_SMS <= num_splits * num_tiles <= min(per_sm, 3) * NUM_SMS
            if is_full and num_splits <= MOST_SPLITS and num_inputs >= 2 * block_k * num_splits:
                yield StreamedTiles(
                    block_r=block_r,
                    block_n=block_n,
                    block_k=block_k,
                    num_stages=num_stages,
                    num_warps=4 if block_r * block_n <= 128 * 64 else 8,
                    num_splits=num_splits,
                    starts_early=name != "gate-up",
                )


def program_variants(tiles: DecodeTiles, key_bytes: int) -> list[DecodeTiles]:
    """Other programs of attention, as many on a multiprocessor as its memory and registers have room for. A key and its
    value have `key_bytes`.
    """
    found = []
    for block_j, num_warps, num_stages in product((16, 32, 64, 128), (1, 2, 4, 8), (2, 3, 4)):
        by_memory = SM_SHARED_BYTES // (block_j * key_bytes * num_stages + RESERVED_BYTES)
        by_registers = SM_REGISTERS // (LEAST_REGISTERS * 32 * num_warps)
        if min(by_memory, by_registers):
            cut = DecodeTiles(block_j=block_j, num_warps=num_warps, num_stages=num_stages)
            found.append(replace(cut, programs_per_sm=min(by_memory, by_registers)))
    return [other for other in found if other != tiles]
