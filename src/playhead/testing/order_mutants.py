"""Bugs by which an engine with `batch_invariant` gives other tokens in another batch, though each is right alone."""

from __future__ import annotations

import torch

import playhead.step.build
from playhead.attention.base import LayerAttention
from playhead.attention.triton import TritonBackend
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


ORDER_MUTANTS: tuple[Mutant, ...] = (projections_not_told, adding_forgets, attention_not_told)
