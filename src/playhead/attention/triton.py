"""Attention by our own kernels: what a CUDA device runs. On CPU tensors the same ops run their references.

Shapes: T tokens, B requests, Y = all heads of the output, H query heads, D head dim of q and k, E head dim of v, R rows
of the page table, P pages per row.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from playhead.attention.base import (
    LENGTHS_SLOT,
    AttentionBackend,
    AttentionPlan,
    LayerAttention,
    NewTokens,
    Phase,
    decode_arguments,
    extend_arguments,
)
from playhead.graph.breaks import Tensors
from playhead.graph.capture import Inputs
from playhead.graph.spec import OwnedMemory
from playhead.kernels.attention import decode, extend, longest_first, write_and_decode, write_and_extend
from playhead.kernels.splits import (
    DecodeShape,
    is_worth_an_order,
    num_arrivals,
    num_parts,
    num_splits,
    num_splits_beside_prompts,
    parts_left,
)
from playhead.kernels.triton.decode_tiles import decode_tiles, rows_of_dot
from playhead.kv.pool import ForwardLocs

CUTS = (num_splits, num_splits_beside_prompts)
"""How requests that decode are cut: in a step of their own, and in one with prompts."""


class TritonBackend(AttentionBackend):
    """Decode splits what each layer can see over programs, through scratch that all layers and batch sizes share. In
    steps over tokens, requests with one query are cut in the same way.

    The scratch is sized at once for the largest step of any of `layers`, so its address never changes. Two decode
    steps must not run at the same time on it; steps of one stream never do.
    """

    name = "triton"

    def __init__(self, page_table_RP: Tensor, layers: Sequence[LayerAttention], *, max_bs: int) -> None:
        super().__init__(page_table_RP)
        # A capture watches each question to a tensor, so shapes are not asked of them in each layer of a step.
        self._shapes = {layer: decode_shape(layer, page_table_RP) for layer in layers}
        shapes, sizes = set(self._shapes.values()), range(1, max_bs + 1)
        steps = [(shape, bs, cut(shape, bs)) for shape in shapes for bs in sizes for cut in CUTS]
        most_parts = max(num_parts(*step) for step in steps)
        most_numbers = max(num_parts(*step) * step[0].v_head_dim for step in steps)
        device = page_table_RP.device
        self._parts = torch.zeros(most_numbers, dtype=torch.float32, device=device)
        self._log_weights = torch.zeros(most_parts, dtype=torch.float32, device=device)
        most_left = max(parts_left(shape, 1) * shape.num_kv_heads for shape in shapes)
        most_arrivals = max(most_left, *(num_arrivals(*step) for step in steps))
        self._arrivals = torch.zeros(most_arrivals, dtype=torch.int32, device=device)

    @property
    def _scratch(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._parts, self._log_weights, self._arrivals

    def owned(self) -> tuple[OwnedMemory, ...]:
        return (*super().owned(), OwnedMemory(name="decode scratch", tensors=self._scratch, writable=True))

    def prepare(self, layers: tuple[LayerAttention, ...], locs: ForwardLocs, inputs: Inputs) -> tuple[Tensors, ...]:
        """In steps of many programs, in which order their requests start."""
        seq_lens_B = inputs[LENGTHS_SLOT]
        num_requests = seq_lens_B.shape[0]
        has_order = [is_worth_an_order(self._shapes[layer], num_requests) for layer in layers]
        if not any(has_order):
            return super().prepare(layers, locs, inputs)
        order_B = longest_first(seq_lens_B)
        return tuple((order_B,) if one else () for one in has_order)

    def kind_of_step(self, num_requests: int) -> Hashable:
        """How programs of each sort of layer are cut, and whether they start in an order."""
        kinds = []
        for layer, shape in self._shapes.items():
            tiles = decode_tiles(
                layer.k_head_dim,
                layer.v_head_dim,
                num_programs=num_requests * layer.num_kv_heads,
                num_splits=num_splits(shape, num_requests),
                num_rows=rows_of_dot(layer.group_size),
            )
            kinds.append((tiles, is_worth_an_order(shape, num_requests)))
        return tuple(dict.fromkeys(kinds))

    def parts_left(self, layer: LayerAttention, num_requests: int) -> int:
        return parts_left(self._shapes[layer], num_requests) if layer.reader_merges else 0

    def write_and_attend(
        self, plan: AttentionPlan, layer: LayerAttention, new: NewTokens, out_TY: Tensor, prepared: Tensors
    ) -> None:
        """By one op; in decode steps of few requests it is one kernel."""
        transform, num_rows = new.transform, out_TY.shape[0]
        call: tuple[Any, ...] = (new.qkv_TX, out_TY, *transform.tensors, new.positions_T, new.locs_T)
        if plan.phase is Phase.EXTEND:
            splits = self._splits_beside_prompts(plan, layer, num_rows)
            call += (*transform.numbers, *extend_arguments(plan, layer), *self._scratch, splits)
            write_and_extend(*call)
            return
        cut = num_splits(self._shapes[layer], num_rows), *(prepared or (None,)), self.parts_left(layer, num_rows)
        call += (*transform.numbers, *decode_arguments(plan, layer), *self._scratch, *cut)
        write_and_decode(*call)

    def decode(
        self, plan: AttentionPlan, layer: LayerAttention, q_BHD: Tensor, out_BHE: Tensor, prepared: Tensors = ()
    ) -> None:
        splits = num_splits(self._shapes[layer], q_BHD.shape[0])
        decode(q_BHD, out_BHE, *decode_arguments(plan, layer), *self._scratch, splits, *(prepared or (None,)))

    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: Tensor, out_THE: Tensor) -> None:
        splits = self._splits_beside_prompts(plan, layer, q_THD.shape[0])
        extend(q_THD, out_THE, *extend_arguments(plan, layer), *self._scratch, splits)

    def _splits_beside_prompts(self, plan: AttentionPlan, layer: LayerAttention, num_tokens: int) -> int:
        return num_splits_beside_prompts(self._shapes[layer], plan.rows_B.shape[0], num_tokens)


def decode_shape(layer: LayerAttention, page_table_RP: Tensor) -> DecodeShape:
    """What decides the splits of a layer: the keys it can ever see, and its heads."""
    max_context = page_table_RP.shape[1] * layer.page_size
    return DecodeShape(
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        v_head_dim=layer.v_head_dim,
        max_keys=max_context if layer.window is None else min(layer.window, max_context),
    )
