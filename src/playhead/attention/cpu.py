"""Attention on a CPU: the layers of a KV group find their keys once per step, where their memory allows it.

Shapes: T tokens, B requests, H query heads, D head dim, J keys a layer can see.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from playhead.attention.base import (
    LENGTHS_SLOT,
    ROWS_SLOT,
    AttentionBackend,
    AttentionPlan,
    LayerAttention,
    decode_arguments,
    extend_arguments,
)
from playhead.graph.breaks import Tensors
from playhead.graph.capture import Inputs
from playhead.kernels.attention import decode, extend
from playhead.kernels.cpu.attention import (
    CellMemory,
    EqualSpans,
    decode_cells,
    equal_spans,
    extend_cells,
    key_cells_into,
)
from playhead.kv.pool import ForwardLocs


class Lookup(NamedTuple):
    """Where a decode step's keys lie in one group's memory, and where its new ones go: what `key_cells_into` writes."""

    key_cells_BJ: Tensor
    bias_BJ: Tensor
    new_cells_B: Tensor


class CpuBackend(AttentionBackend):
    """Sees a layer's memory as cells. Decode looks its keys up at the start of the forward; extend where it runs live,
    in the first layer of each group.

    Layers whose memory is not made of cells run the reference, and so do captured extends.
    """

    name = "cpu"

    def __init__(self, page_table_RP: Tensor, layers: tuple[LayerAttention, ...]) -> None:
        super().__init__(page_table_RP)
        self._cells = {layer: CellMemory.of(layer.k_cache_NSKD, layer.v_cache_NSKE) for layer in layers}

    def prepare(self, layers: tuple[LayerAttention, ...], locs: ForwardLocs, inputs: Inputs) -> tuple[Tensors, ...]:
        found: dict[int, Tensors] = {}
        for layer in layers:
            if layer.kv_group not in found:
                found[layer.kv_group] = self._look_up(layer, locs, inputs)
        return tuple(found[layer.kv_group] for layer in layers)

    def _look_up(self, layer: LayerAttention, locs: ForwardLocs, inputs: Inputs) -> Tensors:
        memory, group = self._cells[layer], locs.groups[layer.kv_group]
        if memory is None:
            return ()
        rows_B, max_context = inputs[ROWS_SLOT], group.table_RP.shape[1] * layer.page_size
        shape = (rows_B.shape[0], max_context if layer.window is None else min(layer.window, max_context))
        lookup = Lookup(
            key_cells_BJ=torch.empty(shape, dtype=torch.int64),
            bias_BJ=torch.empty(shape, dtype=torch.float32),
            new_cells_B=torch.empty(shape[0], dtype=torch.int64),
        )
        requests = (group.table_RP, rows_B, inputs[LENGTHS_SLOT], group.new_locs_T)
        key_cells_into(*lookup, *requests, memory.page_size, memory.cells_per_page)
        return lookup

    def write_target(self, layer: LayerAttention, locs_T: Tensor, prepared: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        memory = self._cells[layer]
        if memory is None or not prepared:
            return super().write_target(layer, locs_T, prepared)
        return memory.k_A1KD, memory.v_A1KD, Lookup(*prepared).new_cells_B

    def decode(
        self, plan: AttentionPlan, layer: LayerAttention, q_BHD: Tensor, out_BHE: Tensor, prepared: Tensors = ()
    ) -> None:
        memory = self._cells[layer]
        if memory is None or not prepared:
            decode.reference(q_BHD, out_BHE, *decode_arguments(plan, layer))
            return
        lookup, scoring = Lookup(*prepared), (layer.sinks_H, layer.scale, layer.softcap)
        keys = (memory.k_A1KD, memory.v_A1KD, lookup.key_cells_BJ, lookup.bias_BJ)
        decode_cells(q_BHD, out_BHE, *keys, plan.seq_lens_B, *scoring)

    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: Tensor, out_THE: Tensor) -> None:
        memory = self._cells[layer]
        if memory is None or plan.notes is None:
            # A tape keeps the op, which reads lengths anew.
            extend(q_THD, out_THE, *extend_arguments(plan, layer), None, None, None, 1)
            return
        if layer.kv_group not in plan.notes:
            plan.notes[layer.kv_group] = equal_spans(plan.tensors(), memory, layer.window)
        spans: tuple[EqualSpans, ...] = plan.notes[layer.kv_group]
        for equal in spans:
            extend_cells(q_THD, out_THE, memory, equal, (layer.scale, layer.softcap, layer.sinks_H))
