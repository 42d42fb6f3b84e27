"""Slots that are filled when a part of the step already runs.

A step may be captured as two graphs (`split.py`). Inputs of the second one need not be known when the first is
launched. Such a slot is declared like any other. It lies in an arena of its own, which `fill_late` copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playhead.errors import SlotError
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.sharing import InputBufferPool
from playhead.graph.slots import Batch, FillContext, GraphSlot


class LateRegistry(CudaGraphBufferRegistry):
    """A registry with `late` slots besides. `fill_from` fills those too where the batch has their values.

    A late fill is no fill for `num_fills`: a graph that goes on in place finds its other slots as it left them.
    """

    def __init__(
        self,
        late: Sequence[GraphSlot],
        *,
        max_bs: int,
        max_num_tokens: int,
        device: torch.device | str,
        pool: InputBufferPool | None = None,
    ) -> None:
        super().__init__(max_bs=max_bs, max_num_tokens=max_num_tokens, device=device, pool=pool)
        self._late = CudaGraphBufferRegistry(max_bs=max_bs, max_num_tokens=max_num_tokens, device=device)
        for slot in late:
            self._late.register_slot(slot)

    def register_slot(self, slot: GraphSlot, bind: torch.Tensor | None = None) -> GraphSlot:
        if slot.name in self._late.slots:
            raise SlotError(slot.name, "registered twice", "one declaration", "Rename one, or drop it.")
        return super().register_slot(slot, bind)

    def freeze(self) -> None:
        if self.frozen:
            return
        super().freeze()
        self._late.freeze()
        self._slots.update(self._late.slots)  # read and audited like the others

    def fill_from(self, batch: Batch, ctx: FillContext) -> None:
        late = self._late.slots.keys()
        if late <= batch.keys():
            self.fill_late({name: batch[name] for name in late}, ctx)
            batch = {name: values for name, values in batch.items() if name not in late}
        super().fill_from(batch, ctx)

    def fill_late(self, batch: Batch, ctx: FillContext) -> None:
        """Write the late slots, their padding included, in one copy."""
        self._late.fill_from(batch, ctx)

    def poison(self) -> None:
        super().poison()
        self._late.poison()
