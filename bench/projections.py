"""Products of few rows on one GPU: `PYTHONPATH=src python3 -m bench.projections [--neighbours]`.

Every projection of four models, for 1 to 128 rows: microseconds by the kernel that `projection_tiles` chooses and by
the BLAS library, beside the time the weights take at the scorecard's bandwidth. Products behind which a norm stands are
made in parts, as `project_normed` makes them; gate-up is gated, by the library without its activation. Each figure is a
node of one CUDA graph over 26 different matrices, gaps included. `--neighbours` also times other tiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from bench.attention import time_us
from bench.measure import emit
from playhead.kernels.projection import project, project_gated
from playhead.kernels.triton.projection import launch_tiles
from playhead.kernels.triton.projection_tiles import (
    FittedTiles,
    HeldTiles,
    RingTiles,
    RowTiles,
    Tiles,
    gated_tiles,
    num_shares,
    split_tiles,
    tiles_for,
)

BYTES_PER_US = 4.3e6
NUM_MATRICES = 26
ROWS = (1, 8, 16, 32, 64, 128)
ERROR_BOUND = 4e-3  # one rounding to bf16
ACTIVATION = "gelu_tanh"
IN_PARTS = ("o", "down")
GATED = "gate-up"


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
            GATED: (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


MODELS = {
    "gemma-3-1b": Model(hidden=1152, qkv=1536, attended=1024, intermediate=6912),
    "llama-3.2-1b": Model(hidden=2048, qkv=3072, attended=2048, intermediate=8192),
    "gemma-3-4b": Model(hidden=2560, qkv=4096, attended=2048, intermediate=10240),
    "qwen3-0.6b": Model(hidden=1024, qkv=4096, attended=2048, intermediate=3072),
}


def rule_for(name: str, x_TI: torch.Tensor, weight_OI: torch.Tensor) -> Tiles | None:
    """How the rules cut one map, without a bias."""
    if name == GATED:
        return gated_tiles(x_TI, weight_OI, None)
    return (split_tiles if name in IN_PARTS else tiles_for)(x_TI, weight_OI)


def neighbours(tiles: Tiles) -> Iterator[Tiles]:
    """Other ways to cut the same product."""
    if isinstance(tiles, RingTiles):
        yield replace(tiles, holds=not tiles.holds)
        for asked in {16, 32, 64} - {tiles.asked}:
            yield replace(tiles, asked=asked)
        for places in (tiles.places - 1, tiles.places + 1):
            yield replace(tiles, places=places, row_places=min(places, tiles.row_places))
        return
    if isinstance(tiles, FittedTiles):
        for num_stages, num_warps in ((4, 8), (6, 8), (5, 4)):
            yield replace(tiles, num_stages=num_stages, num_warps=num_warps)
        return
    yield replace(tiles, starts_early=not tiles.starts_early)
    if isinstance(tiles, RowTiles):
        for block_n, num_warps in ((1, 4), (2, 4), (2, 8), (4, 8), (4, 16), (8, 8), (8, 16)):
            yield replace(tiles, block_n=block_n, num_warps=num_warps)
        return
    if isinstance(tiles, HeldTiles):
        for block_n in (16, 32):
            yield replace(tiles, block_n=block_n)
        return
    for block_n, block_k, num_stages, num_warps in (
        (64, 64, 4, 4), (64, 64, 6, 4), (64, 64, 8, 4), (64, 128, 3, 4), (64, 128, 4, 4), (128, 64, 6, 8),
    ):  # fmt: skip
        yield replace(tiles, block_n=block_n, block_k=block_k, num_stages=num_stages, num_warps=num_warps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One projection for so many rows."""

    name: str
    matrices: torch.Tensor
    x: torch.Tensor

    @property
    def tiles(self) -> Tiles | None:
        return rule_for(self.name, self.x, self.matrices[0])

    def room(self, tiles: Tiles | None) -> torch.Tensor:
        """Memory for the result, full of NaN."""
        num_outputs = self.matrices.shape[1] // (2 if self.name == GATED else 1)
        num_parts = 1 if tiles is None else num_shares(tiles)
        if num_parts == 1:
            return torch.full((len(self.x), num_outputs), float("nan"), dtype=self.x.dtype, device="cuda")
        return torch.full((num_parts, len(self.x), num_outputs), float("nan"), device="cuda")

    def run(self, out: torch.Tensor, matrix: torch.Tensor, tiles: Tiles | None) -> None:
        """The product cut so; without tiles, as the op runs it."""
        is_gated = self.name == GATED
        if tiles is not None:
            launch_tiles(tiles, out, self.x, matrix, None, activation=ACTIVATION if is_gated else None)
        elif is_gated:
            out.copy_(project_gated(self.x, matrix, None, ACTIVATION))
        else:
            project(out, self.x, matrix, None, 1.0, False)

    def check(self, tiles: Tiles | None) -> None:
        """A kernel that is wrong fails here before it is timed."""
        wanted = self.x.double() @ self.matrices[0].double().t()
        if self.name == GATED:
            gate, up = wanted.chunk(2, -1)
            wanted = F.gelu(gate, approximate="tanh") * up
        out = self.room(tiles)
        self.run(out, self.matrices[0], tiles)
        found = out.double().view(-1, *wanted.shape).sum(0)
        error = float((found - wanted).norm() / wanted.norm())
        assert error < ERROR_BOUND, f"error norm {error}"

    def us(self, tiles: Tiles | None) -> float:
        self.check(tiles)
        out = self.room(tiles)
        return time_us(lambda i: self.run(out, self.matrices[i], tiles), len(self.matrices))


def measure(case: Case, *, with_neighbours: bool) -> dict[str, float | str]:
    """The figures of one projection."""
    matrices, x, tiles = case.matrices, case.x, case.tiles
    found: dict[str, float | str] = {
        "floor_us": matrices[0].numel() * 2 / BYTES_PER_US,
        "blas_us": time_us(lambda i: torch.mm(x, matrices[i].t()), len(matrices)),
        "ours_us": case.us(tiles),
    }
    if with_neighbours and tiles is not None:
        times = {str(other): case.us(other) for other in neighbours(tiles)}
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
            matrices = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0.0, 0.03)
            for num_rows in ROWS:
                x = torch.randn(num_rows, num_inputs, device="cuda").to(matrices.dtype)
                case = Case(name=name, matrices=matrices, x=x)
                figures = measure(case, with_neighbours=arguments.neighbours)
                emit("projection", model=model, map=name, rows=num_rows, **figures)


if __name__ == "__main__":
    main()
