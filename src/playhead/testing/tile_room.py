"""What the tiles of a product take of a multiprocessor's shared memory, at most."""

from __future__ import annotations

from playhead.kernels.triton.projection_tiles import FittedTiles, HeldTiles, StreamedTiles

PROGRAM_BYTES = 227 * 1024  # that one program may have, on an H200


def shared_bytes(tiles: HeldTiles | StreamedTiles | FittedTiles) -> int:
    """Of a program, in half precision, as `tests/unit/kernels/test_compile.py` finds it in compiled kernels."""
    if isinstance(tiles, HeldTiles):
        weights, rows = tiles.block_n * (tiles.block_k + tiles.rest), tiles.block_r * tiles.block_k
        return 2 * tiles.parts * (weights + rows)
    if isinstance(tiles, FittedTiles):
        return 2 * (tiles.block_r + tiles.block_n + tiles.rest) * tiles.num_stages * tiles.block_k
    return 2 * (tiles.block_r + tiles.block_n) * (tiles.num_stages * tiles.block_k + tiles.held)
