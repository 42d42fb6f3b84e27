# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels that the interpreter runs and a GPU refuses, and what notices it without a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

from playhead.graph.shapes import bucket_sizes
from playhead.kernels.attention import left_width
from playhead.kernels.triton import newest, projection_tiles, rope, write_and_decode
from playhead.testing.launched_kernels import launched, read
from playhead.testing.mutant import Checker, Mutant, swapped
from playhead.testing.tile_room import PROGRAM_BYTES, shared_bytes

NUM_REQUESTS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 8, 32, 8, 128


# The compiler reads what follows an `if` even where the `if` returns.


@triton.jit
def _pairs_after_a_return(angles, position, zero_H1, mask_HF, F: tl.constexpr):
    if F == 0:
        return 0.0, 0.0
    place_HF = angles + position.to(tl.int64) * (2 * F) + zero_H1 + tl.arange(0, mask_HF.shape[1])[None, :]
    return tl.load(place_HF, mask=mask_HF, other=1.0), tl.load(place_HF + F, mask=mask_HF, other=0.0)


@triton.jit
def _dims_after_a_return(angles, position, F: tl.constexpr, STEP, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr):
    dim_GD = tl.arange(0, BLOCK_D)[None, :] + tl.zeros([BLOCK_G, 1], tl.int32)
    if F == 0:
        return dim_GD, dim_GD
    place_GD = angles + position.to(tl.int64) * (2 * F) + dim_GD // 2
    return tl.load(place_GD), tl.load(place_GD + F)


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _caches() -> list[torch.Tensor]:
    return [_meta(64, 16, NUM_KV_HEADS, HEAD_DIM) for _ in "kv"]


def rope_without_rotation() -> list[str]:
    """The compiler reads rope's kernel for a layer that rotates nothing."""
    heads = (_meta(NUM_REQUESTS, num_heads, HEAD_DIM) for num_heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS))
    positions, locs = (_meta(NUM_REQUESTS, dtype=torch.int32) for _ in range(2))
    call = (*heads, None, None, None, positions, *_caches(), locs, 1e-6, False, False)
    found = launched(rope.qk_rope_write_kernel, lambda: rope.launch_qk_rope_write(*call))
    read(found.source, found.options)
    return []


def decode_without_rotation() -> list[str]:
    """The same of the kernel that writes the newest token and attends to it."""
    qkv = _meta(NUM_REQUESTS, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    out = _meta(NUM_REQUESTS, left_width(NUM_HEADS, HEAD_DIM, 0))
    positions, locs, rows, lengths = (_meta(NUM_REQUESTS, dtype=torch.int32) for _ in range(4))
    tables = (_meta(NUM_REQUESTS + 1, 512, dtype=torch.int32), rows, lengths)
    scratch = (*(_meta(64, dtype=torch.float32) for _ in range(2)), _meta(64, dtype=torch.int32))
    turning, scoring = (None, None, None, positions, locs, 1e-6, False, False), (None, 0.1, None, None)
    call = (qkv, out, *turning, *_caches(), *tables, *scoring, *scratch, 8, None, 0)
    kernel = write_and_decode.write_and_decode_kernel
    found = launched(kernel, lambda: write_and_decode.launch_write_and_decode(*call))
    read(found.source, found.options)
    return []


def products_have_room() -> list[str]:
    """Programs of Qwen2.5-7B's queries, keys and values fit a multiprocessor, for all sizes of a step."""
    num_outputs, num_inputs = 4608, 3584
    kinds = projection_tiles.HeldTiles | projection_tiles.StreamedTiles
    problems = []
    for num_rows in bucket_sizes(projection_tiles.MOST_ROWS):
        tiles = projection_tiles.tiles_for(_meta(num_rows, num_inputs), _meta(num_outputs, num_inputs))
        if isinstance(tiles, kinds) and shared_bytes(tiles) > PROGRAM_BYTES:
            problems.append(f"{num_rows} rows: {shared_bytes(tiles)} bytes")
    return problems


COMPILER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="angles of a layer without any",
        source="Cohere 2 and EXAONE 4 on a GPU: the first prompt's kernel was refused",
        apply=lambda: swapped(rope, "_load_angles", _pairs_after_a_return),
        killed_by=("rope without rotation",),
    ),
    Mutant(
        name="angles of a layer without any, in decode steps",
        source="the same models' steps of few requests",
        apply=lambda: swapped(newest, "load_angles", _dims_after_a_return),
        killed_by=("decode without rotation",),
    ),
    Mutant(
        name="twice the outputs for any number of inputs",
        source="found by compiling all public models: Qwen2.5-7B's first step of up to 8 rows was refused",
        apply=lambda: swapped(projection_tiles, "MOST_HELD_TWICE", projection_tiles.MOST_INPUTS),
        killed_by=("products have room",),
    ),
)
COMPILER_CHECKERS = (
    Checker(name="rope without rotation", run=rope_without_rotation, raises=(CompilationError,)),
    Checker(name="decode without rotation", run=decode_without_rotation, raises=(CompilationError,)),
    Checker(name="products have room", run=products_have_room),
)
