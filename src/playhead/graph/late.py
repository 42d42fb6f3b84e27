"""A slot that is filled when a part of the step already runs.

A step may be captured as two graphs (`split.py`). The values of a slot that only the second graph reads need not be
known when the first is launched. Such a late slot is declared like any other, and lies in an arena of its own, so that
its copy sends no other slot. Its rows can be long, and most of them padding, so a caller may write single rows straight
into the host memory that is sent (`open_late`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import torch

from playhead.errors import SlotError
from playhead.graph.registry import NUM_STAGES, CudaGraphBufferRegistry
from playhead.graph.slot_values import poison_value, source_mismatch
from playhead.graph.slots import Batch, FillContext, GraphSlot
from playhead.graph.staging import CopyPort, Stage, StagingRing, field_view, lay_out, port_for


@dataclass(slots=True, kw_only=True)  # mutable: `written` follows the fills
class LateRows:
    """The late slot on the host, where it is sent from. All rows but the `written` ones are padding."""

    stage: Stage
    values: np.ndarray[Any, Any]
    rows: Sequence[np.ndarray[Any, Any]]
    """The rows of `values`; `address` is the first one's. Both are kept: asking numpy takes longer than most writes."""
    address: int
    row_bytes: int
    written: Sequence[int] = ()

    @classmethod
    def of(cls, stage: Stage) -> LateRows:
        """A stage whose one field is the late slot, with nothing written."""
        (values,) = stage.fields
        return cls(
            stage=stage, values=values, rows=list(values), address=values.ctypes.data, row_bytes=values.strides[0]
        )


class LateRegistry(CudaGraphBufferRegistry):
    """A registry with a `late` slot besides the others. `fill_from` fills it too if the batch has its values.

    `num_fills` does not count late fills: they leave all other slots as they were, so `replay_advanced` stays allowed.
    """

    def __init__(
        self,
        late: GraphSlot,
        *,
        max_bs: int,
        max_num_tokens: int,
        device: torch.device | str,
        port: CopyPort | None = None,
    ) -> None:
        super().__init__(max_bs=max_bs, max_num_tokens=max_num_tokens, device=device, port=port)
        if not late.staged or late.axis != "bs" or late.leaves_tail:
            wanted = "staged=True, axis 'bs', and a padding policy that writes the tail"
            raise SlotError(late.name, "declared as a late slot", wanted, "Register it like other slots.")
        self._late, self._late_stages = late, list[LateRows]()
        self._open: LateRows | None = None

    def register_slot(self, slot: GraphSlot, bind: torch.Tensor | None = None) -> GraphSlot:
        if slot.name == self._late.name:
            raise SlotError(slot.name, "registered twice", "one declaration", "Rename one, or drop it.")
        return super().register_slot(slot, bind)

    def freeze(self) -> None:
        if self.frozen:
            return
        super().freeze()
        late = self._late
        (place,), num_bytes = lay_out([(late.shape_fn(self.max_bs, self.max_num_tokens), late.dtype, late.pad_value)])
        arena = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        self._late = replace(late, buffer=field_view(arena, place).fill_(place.pad_value))
        self._check_rows(self._late)
        self._slots[late.name] = self._late  # read and audited like the others
        stages = StagingRing([place], arena, self._port or port_for(self.device), NUM_STAGES).stages
        self._late_stages = [LateRows.of(one) for one in stages]
        self._late_turns: Iterator[LateRows] = cycle(self._late_stages)

    def fill_from(self, batch: Batch, ctx: FillContext) -> None:
        if self._late.name in batch:
            self.fill_late(batch[self._late.name], ctx)
            batch = {name: values for name, values in batch.items() if name != self._late.name}
        super().fill_from(batch, ctx)

    def fill_late(self, values: np.ndarray[Any, Any], ctx: FillContext) -> None:
        """Write the late slot's live rows and its padding, in one copy."""
        live = self.open_late(range(ctx.raw_bs)).values[: ctx.raw_bs]
        if values.dtype != live.dtype or values.shape != live.shape:
            raise source_mismatch(self._late, values.dtype, values.shape, live.shape)
        live[...] = values
        self.send_late()

    def open_late(self, rows: Sequence[int]) -> LateRows:
        """The late slot on the host. The caller writes these rows whole, then calls `send_late`; others are padding."""
        self._open = opened = next(self._late_turns)
        opened.stage.settle()
        # Marked before the first write: a fill that is cut short must not hide rows from the next one.
        written, opened.written = opened.written, rows
        if written != rows:  # mostly the same batch goes on and writes the same rows again
            for row in written:
                opened.rows[row][...] = self._late.pad_value
        return opened

    def send_late(self) -> None:
        """Copy to the device what `open_late` gave, with what was written there since."""
        opened, self._open = self._open, None
        assert opened is not None, "there is something to send"
        opened.stage.send()

    def poison(self) -> None:
        super().poison()
        for one in self._late_stages:
            one.stage.settle()
            one.written = range(self.max_bs)
            one.values[...] = poison_value(self._late.dtype)
