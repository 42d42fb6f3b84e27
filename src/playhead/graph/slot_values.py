"""What may be written into a slot: exactly its dtype and its shape, or numbers that keep their value in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from playhead.errors import SlotError
from playhead.graph.slots import GraphSlot
from playhead.kernels.quiet import quietly

# A pattern no test and no sentinel uses; floats get NaN, which no arithmetic hides.
POISON_BYTE = 0x5A


def check_bind(slot: GraphSlot, bind: torch.Tensor, shape: Sequence[int], device: torch.device) -> None:
    """Refuse an adopted tensor that is not exactly what would have been allocated: one place for each element."""
    found = (tuple(bind.shape), bind.dtype, bind.device.type, bind.device.index or 0)
    wanted = (tuple(shape), slot.dtype, device.type, device.index or 0)
    if found != wanted:
        raise SlotError(slot.name, f"bind of {found}", f"{wanted}", "Bind what the declaration says, or change it.")
    if not bind.is_contiguous():
        raise SlotError(
            slot.name, f"bind with strides {bind.stride()}", "contiguous memory", "Rows must not share or skip memory."
        )


def source_mismatch(slot: GraphSlot, dtype: object, found: Sequence[int], wanted: Sequence[int]) -> SlotError:
    return SlotError(
        slot.name,
        f"source of {dtype} {tuple(found)}",
        f"{slot.dtype} {tuple(wanted)}",
        "Fills never convert, cut or stretch: produce the slot's dtype and the raw size.",
    )


def as_numpy_dtype(slot: GraphSlot) -> np.dtype[Any]:
    """The host dtype of a staged slot. bfloat16 has none."""
    if slot.dtype is torch.bfloat16:
        raise SlotError(slot.name, "staged bfloat16", "a dtype numpy has", "Source it from the device.")
    return torch.empty(0, dtype=slot.dtype).numpy().dtype


def as_host_array(slot: GraphSlot, dtype: np.dtype[Any], source: object) -> np.ndarray[Any, Any]:
    """A host tensor or a sequence of Python numbers as an array; numbers must fit, tensors must match already."""
    if isinstance(source, torch.Tensor):
        if source.device.type != "cpu":
            raise SlotError(slot.name, f"source on {source.device}", "host memory", "Declare it without staged=True.")
        return source.numpy()
    try:
        array = np.asarray(source)
        converted = quietly(array.astype, dtype)  # what does not fit is found below, and refused
        is_same = np.array_equal(converted, array)
        if slot.dtype.is_floating_point:  # a float may round, but not become infinite
            is_same = np.array_equal(np.isfinite(converted), np.isfinite(array))
    except (TypeError, ValueError, OverflowError) as error:
        raise SlotError(slot.name, f"source {type(source).__name__}", f"numbers of {dtype}", str(error)) from error
    if not is_same:
        raise SlotError(
            slot.name, f"values from {array.min()} to {array.max()}", f"values that fit {dtype}", "They would wrap."
        )
    return converted


def poison_value(dtype: torch.dtype) -> float:
    """A value that is neither padding nor data: NaN, or the poison byte repeated."""
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype is torch.bool else int.from_bytes(bytes([POISON_BYTE]) * dtype.itemsize, "little")
