"""Products of few rows on one GPU: `PYTHONPATH=src python3 -m bench.projections [--neighbours]`.

Every projection of four models, for 1 to 16 rows: microseconds by the kernel that `projection_tiles` chooses and by the
BLAS library, beside the time the weights take at the scorecard's bandwidth. Each figure is a node of one CUDA graph
over 26 different matrices, gaps included. `--neighbours` also times other tiles, for the rules in `projection_tiles`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from bench.attention import time_us
from bench.measure import emit
from playhead.kernels.projection import project
from playhead.kernels.triton.projection import launch_tiles
from playhead.kernels.triton.projection_tiles import RowsTiles, RowTiles, tiles_for

BYTES_PER_US = 4.3e6
NUM_MATRICES = 26
ROWS = (1, 2, 4, 8, 16)
ERROR_BOUND = 4e-3  # one rounding to bf16

Tiles = RowTiles | RowsTiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The widths of one model's layers."""

    hidden: int
    qkv: int
    attended: int
    intermediate: int

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each projection."""
        return {
            "qkv": (self.qkv, self.hidden),
            "o": (self.hidden, self.attended),
            "gate-up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


MODELS = {
    "gemma-3-1b": Model(hidden=1152, qkv=1536, attended=1024, intermediate=6912),
    "llama-3.2-1b": Model(hidden=2048, qkv=3072, attended=2048, intermediate=8192),
    "gemma-3-4b": Model(hidden=2560, qkv=4096, attended=2048, intermediate=10240),
    "qwen3-0.6b": Model(hidden=1024, qkv=4096, attended=2048, intermediate=3072),
}


def neighbours(tiles: Tiles) -> Iterator[Tiles]:
    """Other ways to cut the same product."""
    yield replace(tiles, starts_next=not tiles.starts_next)
    if isinstance(tiles, RowTiles):
        for block_n, num_warps in ((1, 4), (2, 4), (2, 8), (4, 8), (4, 16), (8, 8), (8, 16)):
            yield replace(tiles, block_n=block_n, num_warps=num_warps)
        return
    for block_n, block_k, parts, num_stages in (
        (8, 128, 1, 6), (16, 128, 1, 6), (16, 256, 1, 4), (32, 128, 2, 6), (8, 128, 4, 6), (16, 128, 4, 6),
    ):  # fmt: skip
        yield replace(tiles, block_n=block_n, block_k=block_k, parts=parts, num_stages=num_stages)


def measure(matrices: torch.Tensor, num_rows: int, *, with_neighbours: bool) -> dict[str, float | str]:
    """The figures of one projection. A kernel that is wrong fails here before it is timed."""
    x = torch.randn(num_rows, matrices.shape[2], device="cuda").to(matrices.dtype)
    out = torch.full((num_rows, matrices.shape[1]), float("nan"), dtype=x.dtype, device="cuda")
    project(out, x, matrices[0], None, 1.0, False)
    wanted = x.double() @ matrices[0].double().t()
    error = float((out.double() - wanted).norm() / wanted.norm())
    assert error < ERROR_BOUND, f"error norm {error}"
    found: dict[str, float | str] = {
        "floor_us": matrices[0].numel() * 2 / BYTES_PER_US,
        "blas_us": time_us(lambda i: torch.mm(x, matrices[i].t(), out=out), len(matrices)),
        "ours_us": time_us(lambda i: project(out, x, matrices[i], None, 1.0, False), len(matrices)),
    }
    tiles = tiles_for(x, matrices[0])
    if with_neighbours and tiles is not None:
        times: dict[str, float] = {}
        for other in neighbours(tiles):

            def run(i: int, other: Tiles = other) -> None:
                launch_tiles(other, out, x, matrices[i], None)

            times[str(other)] = time_us(run, len(matrices))
        best = min(times, key=times.__getitem__)
        found |= {"best_neighbour_us": times[best], "best_neighbour": best}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--neighbours", action="store_true", help="time other tiles as well")
    arguments = parser.parse_args()
    for model, widths in MODELS.items():
        for name, (num_outputs, num_inputs) in widths.shapes.items():
            shape = (NUM_MATRICES, num_outputs, num_inputs)
            matrices = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()
            for num_rows in ROWS:
                figures = measure(matrices, num_rows, with_neighbours=arguments.neighbours)
                emit("projection", model=model, map=name, rows=num_rows, **figures)


if __name__ == "__main__":
    main()
