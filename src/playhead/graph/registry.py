"""Every input of captured graphs in one list, and the one way to write it.

`fill_from` writes all slots or raises before any device memory changes: first the padding, then the values (one packed
copy for what comes from the host, one grouped copy per dtype for what is on the device), then the hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from playhead.errors import SlotError
from playhead.graph.copies import grouped_foreach_copy_
from playhead.graph.oplog import byte_span
from playhead.graph.sharing import InputBufferPool, SharedBuffer
from playhead.graph.slot_values import (
    as_host_array,
    as_numpy_dtype,
    check_bind,
    poison_value,
    source_mismatch,
)
from playhead.graph.slots import Batch, FillContext, GraphSlot, PaddingPolicy, SlotViews, leading_rows
from playhead.graph.staging import CopyPort, Stage, StagingRing, field_view, lay_out, port_for

NUM_STAGES = 4  # the host may be this many steps ahead of the device's copies before it waits

NO_PROXIES: Mapping[str, torch.Tensor] = {}


@dataclass(slots=True, kw_only=True)  # mutable: `dirty_rows` follows the fills
class DeviceEntry:
    """A slot whose values are on the device already, with the leading rows that may hold something but padding.

    `live` keeps the view of each raw size seen: making one costs as much as copying it.
    """

    slot: GraphSlot
    num_rows: int
    shared: SharedBuffer | None
    dirty_rows: int = 0
    live: dict[int, torch.Tensor] = field(default_factory=dict)

    def live_rows(self, raw: int) -> torch.Tensor:
        view = self.live.get(raw)
        if view is None:
            view = self.live[raw] = self.slot.rows(0, raw)
        return view


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedEntry:
    """A slot whose values come from the host."""

    slot: GraphSlot
    numpy_dtype: np.dtype[Any]

    @property
    def is_vector(self) -> bool:
        """One number per row, straight from the batch: the short way through the fill."""
        slot = self.slot
        unusual = slot.axis == "none" or slot.source_fn is not None or slot.slice_fn is not None
        return not unusual and len(slot.shape_fn(1, 1)) == 1


class CudaGraphBufferRegistry:
    """Declared inputs with fixed addresses.

    Register slots, `freeze()`, then `fill_from` once per step. After `freeze()` nothing can be added: a graph captured
    before could not know of it. Registries given the same `pool` share the memory of equal device-sourced slots.
    """

    def __init__(
        self,
        *,
        max_bs: int,
        max_num_tokens: int,
        device: torch.device | str,
        pool: InputBufferPool | None = None,
        port: CopyPort | None = None,
    ) -> None:
        self.max_bs, self.max_num_tokens = max_bs, max_num_tokens
        self.device = torch.device(device)
        self._pool, self._port = pool, port
        self._slots: dict[str, GraphSlot] = {}
        self._disabled: set[str] = set()
        self._device: list[DeviceEntry] = []
        self._staged: list[StagedEntry] = []
        self._vectors: list[tuple[int, str, np.dtype[Any], bool]] = []
        self._others: list[int] = []
        self._tails: list[tuple[int, GraphSlot]] = []
        self._ring: StagingRing | None = None
        self._sources: frozenset[str] = frozenset()
        self._proxies: frozenset[str] = frozenset()
        self._hooked: tuple[GraphSlot, ...] = ()
        self._frozen = False
        self._num_own_fills = 0
        self._shared: tuple[SharedBuffer, ...] = ()

    @property
    def num_fills(self) -> int:
        """Grows whenever a slot may have been written: by this registry, or by another that shares memory with it.

        A runner that replays without a fill compares it with its value after the last step.
        """
        num_fills = self._num_own_fills
        for shared in self._shared:
            num_fills += shared.num_writes
        return num_fills

    @property
    def slots(self) -> Mapping[str, GraphSlot]:
        return self._slots

    @property
    def frozen(self) -> bool:
        return self._frozen

    def get_slot(self, name: str) -> GraphSlot:
        """The slot with its buffer. Unknown names list what there is."""
        slot = self._slots.get(name)
        if slot is None and name in self._disabled:
            raise SlotError(name, "declared with enabled=False", "an enabled slot", "Enable what needs it.")
        if slot is None:
            raise SlotError(name, "not registered", f"one of {sorted(self._slots)}", "Register it before freeze().")
        return slot

    def max_rows(self, slot: GraphSlot) -> int:
        return self.max_bs if slot.axis == "bs" else self.max_num_tokens

    def register_slot(self, slot: GraphSlot, bind: torch.Tensor | None = None) -> GraphSlot:
        """Add a slot, on memory of its own, on shared memory, or on an adopted tensor: `bind`, or the slot's `buffer`.

        An adopted tensor keeps its contents until the first fill. A staged slot gets its memory at freeze.
        """
        if self._frozen:
            raise SlotError(slot.name, "registered after freeze()", "registration before it", "Captured graphs exist.")
        if slot.name in self._slots or slot.name in self._disabled:
            raise SlotError(slot.name, "registered twice", "one declaration", "Rename one, or drop it.")
        if not slot.enabled:
            self._disabled.add(slot.name)
            return slot
        adopted = self._adopted(slot, bind)
        if slot.staged:
            self._staged.append(StagedEntry(slot=slot, numpy_dtype=as_numpy_dtype(slot)))
            self._slots[slot.name] = slot
            return slot
        shape = slot.shape_fn(self.max_bs, self.max_num_tokens)
        device = slot.device or self.device
        shared = None
        if adopted is not None:
            check_bind(slot, adopted, shape, device)
            buffer = adopted
        elif self._pool is not None:
            buffer, shared = self._pool.share_input_buffer(slot.name, shape, dtype=slot.dtype, device=device)
            buffer.fill_(slot.pad_value)
            shared.mark_written(by=None)
        else:
            buffer = torch.full(shape, slot.pad_value, dtype=slot.dtype, device=device)
        bound = replace(slot, buffer=buffer)
        self._check_rows(bound)
        self._device.append(DeviceEntry(slot=bound, num_rows=self.max_rows(slot), shared=shared))
        self._slots[slot.name] = bound
        return bound

    def _adopted(self, slot: GraphSlot, bind: torch.Tensor | None) -> torch.Tensor | None:
        """The tensor a slot is put on, if it brings one that no other slot has."""
        if bind is not None and slot.buffer is not None and bind is not slot.buffer:
            raise SlotError(slot.name, "a buffer and another tensor to bind", "one of them", "Drop one.")
        adopted = slot.buffer if bind is None else bind
        if adopted is None:
            return None
        if slot.staged:
            raise SlotError(slot.name, "bind with staged=True", "one of them", "The arena gives staged memory.")
        if slot.padding_policy is PaddingPolicy.FILL_ONCE:
            fix = "Its owner may write the padding. Use ZERO or FILL_SENTINEL."
            raise SlotError(slot.name, "bind with FILL_ONCE", "padding that every fill writes", fix)
        start, stop = byte_span(adopted)
        for other in self._slots.values():
            if other.buffer is not None and other.buffer.device == adopted.device:
                other_start, other_stop = byte_span(other.buffer)
                if start < other_stop and other_start < stop:
                    found = f"bind of memory that slot {other.name!r} has"
                    raise SlotError(slot.name, found, "memory of its own", "One slot's fill would overwrite the other.")
        return adopted

    def freeze(self) -> None:
        """End registration, lay out the arena and fix every address."""
        if self._frozen:
            return
        if self._staged:
            slots = [entry.slot for entry in self._staged]
            specs = [(s.shape_fn(self.max_bs, self.max_num_tokens), s.dtype, s.pad_value) for s in slots]
            fields, num_bytes = lay_out(specs)
            arena = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
            for i, (entry, place) in enumerate(zip(self._staged, fields, strict=True)):
                bound = replace(entry.slot, buffer=field_view(arena, place).fill_(place.pad_value))
                self._check_rows(bound)
                self._staged[i] = replace(entry, slot=bound)
                if entry.is_vector:
                    self._vectors.append((i, bound.name, entry.numpy_dtype, bound.axis == "bs"))
                else:
                    self._others.append(i)
                if bound.axis != "none" and not bound.leaves_tail:
                    self._tails.append((i, bound))
                self._slots[bound.name] = bound
            self._ring = StagingRing(fields, arena, self._port or port_for(self.device), NUM_STAGES)
        self._shared = tuple(entry.shared for entry in self._device if entry.shared is not None)
        self._hooked = tuple(slot for slot in self._slots.values() if slot.post_fill is not None)
        self._proxies = frozenset(slot.proxy for slot in self._slots.values() if slot.proxy is not None)
        self._sources = frozenset(name for slot in self._slots.values() for name in slot.takes)
        self._frozen = True

    def fill_from(self, batch: Batch, ctx: FillContext) -> None:
        """Write every slot for this step: padding, values, hooks. Bad sources raise before any device memory changes.

        A hook is the slot's own code and runs last: when it raises, the other slots have been written.
        """
        self._check_fill(batch, ctx)
        self._num_own_fills += 1
        copies = [self._device_source(entry, batch, ctx) for entry in self._device if entry.slot.copy_from_fb]
        if self._ring is not None:
            stage = self._ring.acquire()
            self._write_stage(stage, batch, ctx)
            self._ring.submit(stage)
        for entry in self._device:
            self._reset_tail(entry, ctx)
        if copies:
            grouped_foreach_copy_([live for live, _ in copies], [source for _, source in copies])
        for slot in self._hooked:
            assert slot.buffer is not None
            assert slot.post_fill is not None
            slot.post_fill(slot.buffer, batch, ctx)

    def extract_buffer(self, ctx: FillContext) -> dict[str, torch.Tensor]:
        """The views a graph of this padded size reads, by name."""
        bs, num_tokens = ctx.padded_bs, ctx.padded_num_tokens
        return SlotViews({name: slot.slice_for(bs, num_tokens) for name, slot in self._slots.items()}, self.get_slot)

    def null_batch(self, ctx: FillContext) -> dict[str, Any]:
        """Padding as values: a batch of null requests, for capture. Slots with a `source_fn` are the caller's part."""
        values: dict[str, Any] = {}
        for name, slot in self._slots.items():
            if name in slot.takes:
                rows = slot.rows(0, ctx.raw(slot.axis))
                pad = slot.pad_value
                values[name] = (
                    np.full(rows.shape, pad, as_numpy_dtype(slot)) if slot.staged else rows.clone().fill_(pad)
                )
        return values

    def null_proxies(self, ctx: FillContext) -> dict[str, torch.Tensor] | None:
        """Pipeline tensors of null requests, for capture; None where no slot takes one."""
        slots = [(slot.proxy, slot) for slot in self._slots.values() if slot.proxy is not None]
        values = {name: slot.rows(0, ctx.raw(slot.axis)).clone().fill_(slot.pad_value) for name, slot in slots}
        return values or None

    def poison(self) -> None:
        """Overwrite every slot, on both sides of the copy, so that whatever a fill does not write shows."""
        self._num_own_fills += 1
        for shared in self._shared:
            shared.mark_written(by=self)
        for slot in self._slots.values():
            if slot.buffer is not None:
                slot.buffer.fill_(poison_value(slot.dtype))
        for entry in self._device:
            entry.dirty_rows = entry.num_rows
        for stage in self._ring.stages if self._ring is not None else ():
            stage.settle()
            stage.dirty_bs, stage.dirty_tokens = self.max_bs, self.max_num_tokens
            for staged, values in zip(self._staged, stage.fields, strict=True):
                values[...] = poison_value(staged.slot.dtype)

    def _check_fill(self, batch: Batch, ctx: FillContext) -> None:
        if not self._frozen:
            raise SlotError("(all)", "fill_from before freeze()", "a frozen registry", "Call registry.freeze() first.")
        proxies = ctx.pp_proxy_tensors or NO_PROXIES
        if batch.keys() != self._sources or proxies.keys() != self._proxies:
            given, wanted = batch.keys() | named(proxies), self._sources | named(self._proxies)
            missing, unknown = sorted(wanted - given), sorted(given - wanted)
            raise SlotError(
                ", ".join(missing + unknown),
                f"missing sources {missing}, unknown sources {unknown}",
                f"exactly {sorted(wanted)}",
                "A value nobody wrote would be the last step's.",
            )
        if ctx.padded_bs > self.max_bs or ctx.padded_num_tokens > self.max_num_tokens:
            raise SlotError(
                "(all)",
                f"padded {ctx.padded_bs} rows, {ctx.padded_num_tokens} tokens",
                f"at most {self.max_bs} rows, {self.max_num_tokens} tokens",
                "Split the step, or build the registry larger.",
            )

    def _device_source(self, entry: DeviceEntry, batch: Batch, ctx: FillContext) -> tuple[torch.Tensor, torch.Tensor]:
        """The live view and its source, checked: same dtype, same shape."""
        slot = entry.slot
        if slot.proxy is not None:
            source = (ctx.pp_proxy_tensors or NO_PROXIES)[slot.proxy]
        else:
            source = batch[slot.name] if slot.source_fn is None else slot.source_fn(batch, ctx)
        live = entry.live_rows(ctx.raw(slot.axis))
        if not isinstance(source, torch.Tensor):
            raise SlotError(slot.name, f"source of type {type(source).__name__}", "a tensor", "Or declare it staged.")
        if source.dtype is not slot.dtype or source.shape != live.shape:
            raise source_mismatch(slot, source.dtype, tuple(source.shape), tuple(live.shape))
        return live, source

    def _write_stage(self, stage: Stage, batch: Batch, ctx: FillContext) -> None:
        """Host values and host padding into one stage. Rows an older fill of this stage left behind are reset."""
        raw_bs, raw_tokens, left_bs, left_tokens = ctx.raw_bs, ctx.raw_num_tokens, stage.dirty_bs, stage.dirty_tokens
        # Marked before the first write: an error half-way must not hide rows from the next fill.
        stage.dirty_bs, stage.dirty_tokens = max(left_bs, raw_bs), max(left_tokens, raw_tokens)
        rows = (slice(0, raw_tokens), (raw_tokens,)), (slice(0, raw_bs), (raw_bs,))
        fields = stage.fields
        for at, name, dtype, on_bs in self._vectors:
            source = batch[name]
            live, shape = rows[on_bs]
            if type(source) is np.ndarray and source.dtype is dtype and source.shape == shape:
                fields[at][live] = source
            else:
                self._write_checked(at, fields[at], batch, ctx)
        for at in self._others:
            self._write_checked(at, fields[at], batch, ctx)
        if raw_bs < left_bs or raw_tokens < left_tokens:
            for at, slot in self._tails:
                raw, left = (raw_bs, left_bs) if slot.axis == "bs" else (raw_tokens, left_tokens)
                if raw < left:
                    self._reset_staged_tail(slot, fields[at], raw, left)
        stage.dirty_bs, stage.dirty_tokens = raw_bs, raw_tokens

    def _write_checked(self, at: int, values: np.ndarray[Any, Any], batch: Batch, ctx: FillContext) -> None:
        """One slot's live rows, from whatever its source is; refused if it does not fit."""
        entry = self._staged[at]
        slot = entry.slot
        source = batch[slot.name] if slot.source_fn is None else slot.source_fn(batch, ctx)
        live = values if slot.axis == "none" else (slot.slice_fn or leading_rows)(values, 0, ctx.raw(slot.axis))
        array = source if isinstance(source, np.ndarray) else as_host_array(slot, entry.numpy_dtype, source)
        if array.dtype != entry.numpy_dtype or array.shape != live.shape:
            raise source_mismatch(slot, array.dtype, array.shape, live.shape)
        live[...] = array

    def _reset_staged_tail(self, slot: GraphSlot, values: np.ndarray[Any, Any], raw: int, left: int) -> None:
        if slot.slice_fn is None:
            values[raw:left] = slot.pad_value
        else:
            slot.slice_fn(values, raw, left)[...] = slot.pad_value

    def _reset_tail(self, entry: DeviceEntry, ctx: FillContext) -> None:
        """Padding of one device-sourced slot. FILL_ONCE writes only what a larger fill, or another filler, left."""
        slot = entry.slot
        if entry.shared is not None:
            if entry.shared.filled_by is not self:
                entry.dirty_rows = entry.num_rows
            entry.shared.mark_written(by=self)
        if slot.axis == "none":
            return
        raw, padded = ctx.raw(slot.axis), ctx.padded(slot.axis)
        if slot.padding_policy is PaddingPolicy.FILL_ONCE:
            if raw < entry.dirty_rows:
                slot.rows(raw, entry.dirty_rows).fill_(slot.pad_value)
            entry.dirty_rows = raw
        elif not slot.leaves_tail and raw < padded:
            slot.rows(raw, padded).fill_(slot.pad_value)

    def _check_rows(self, slot: GraphSlot) -> None:
        """The shape must have exactly one row per request or token, or padding would miss some."""
        assert slot.buffer is not None
        found = slot.rows(0, self.max_rows(slot)).shape
        beyond = slot.rows(0, self.max_rows(slot) + 1).shape
        if (
            found != slot.buffer.shape
            or beyond != found
            or (slot.axis != "none" and slot.rows(0, self.max_rows(slot) - 1).shape == found)
        ):
            raise SlotError(
                slot.name,
                f"shape {tuple(slot.buffer.shape)}",
                f"{self.max_rows(slot)} rows along axis {slot.axis!r}",
                "Fix shape_fn, or give a slice_fn for the dimension that grows.",
            )


def named(proxies: Iterable[str]) -> set[str]:
    """Pipeline tensors as an error message lists them beside batch values."""
    return {f"pp_proxy_tensors[{name}]" for name in proxies}
