"""Bugs by which an engine with `batch_invariant` gives other tokens in another batch, though each is right alone."""

from __future__ import annotations

from typing import Any

import torch

import playhead.layers.linear
import playhead.step.build
from playhead.attention.base import LayerAttention
from playhead.attention.triton import TritonBackend
from playhead.kernels.projection import project_normed
from playhead.kernels.triton import norm, ordered_projection
from playhead.kernels.triton.norm import whole_rows
from playhead.kernels.triton.projection_tiles import StreamedTiles, split_tiles, tiles_for
from playhead.layers.linear import PlainLinear
from playhead.testing.mutant import Mutant, Patch, mutant, swapped

HUNTERS = ("sums in order", "sums in order on a GPU")


@mutant(
    "batch_invariant not told to the projections",
    source="54 of 96 requests of the embedded model differed in bfloat16",
    killed_by=HUNTERS,
)
def projections_not_told() -> Patch:
    return swapped(playhead.step.build, "order_sums", lambda decoder: None)


@mutant(
    "a projection that adds to its output forgets batch_invariant",
    source="only models that run attention and MLP side by side would show it",
    killed_by=HUNTERS,
)
def adding_forgets() -> Patch:
    def add_to(self: PlainLinear, sum_TO: torch.Tensor, x_TI: torch.Tensor) -> torch.Tensor:
        return sum_TO.addmm_(x_TI, self.weight.t(), alpha=self.scale)

    return swapped(PlainLinear, "add_to", add_to)


@mutant(
    "batch_invariant not told to attention",
    source="splits of a decode step follow the batch size, and a chunk's tiles its number of tokens",
    killed_by=("sums in order on a GPU",),
)
def attention_not_told() -> Patch:
    def usual(page_table_RP: torch.Tensor, layers: tuple[LayerAttention, ...], *, max_bs: int) -> TritonBackend:
        return TritonBackend(page_table_RP, layers, max_bs=max_bs)

    return swapped(playhead.step.build, "OrderedBackend", usual)


@mutant(
    "a product with the norm around it forgets batch_invariant",
    source="the ops around a product chose their kernels by the number of rows, and one row is summed by other units",
    killed_by=("sums in order on a GPU",),
)
def fused_forgets() -> Patch:
    def usual(*call: Any, **named: Any) -> torch.Tensor:
        return project_normed.overload(*call, 0, **named)  # type: ignore[no-any-return]

    return swapped(playhead.layers.linear, "project_normed_in_order", usual)


@mutant(
    "a product in order holds some of its weights",
    source="weights that are loaded before the wait are multiplied last",
    killed_by=("tiles in order",),
)
def weights_held() -> Patch:
    def tiles_in_order(x_TI: torch.Tensor, weight_OI: torch.Tensor) -> StreamedTiles | None:
        tiles = tiles_for(x_TI, weight_OI)
        return tiles if isinstance(tiles, StreamedTiles) else None

    return swapped(ordered_projection, "tiles_in_order", tiles_in_order)


@mutant(
    "the chunks of a product in order follow the number of rows",
    source="products of few rows are cut into as many shares as keep all multiprocessors busy",
    killed_by=("tiles in order",),
)
def chunks_by_rows() -> Patch:
    def tiles_of_chunks(x_TI: torch.Tensor, weight_OI: torch.Tensor) -> StreamedTiles | None:
        tiles = split_tiles(x_TI, weight_OI)
        return tiles if isinstance(tiles, StreamedTiles) and tiles.num_splits > 1 else None

    return swapped(ordered_projection, "tiles_of_chunks", tiles_of_chunks)


@mutant(
    "a norm in order follows the number of rows",
    source="a row of few is spread over more threads, and its sum goes through other warps",
    killed_by=("norms in order",),
)
def norms_by_rows() -> Patch:
    def usual(x_TD: torch.Tensor, *, by_rows: bool = False) -> dict[str, int]:
        return whole_rows(x_TD, by_rows=True)

    return swapped(norm, "whole_rows", usual)


ORDER_MUTANTS: tuple[Mutant, ...] = (
    projections_not_told,
    adding_forgets,
    attention_not_told,
    fused_forgets,
    weights_held,
    chunks_by_rows,
    norms_by_rows,
)
