"""Sampler inputs for tests, made the way a worker makes them: rows are set, then the declared inputs are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from playhead.kv.cache import HybridKVCache
from playhead.schedule.request import Chunk, Request
from playhead.step.inputs import SAMPLING, StepRequests
from playhead.step.sampling import SamplerRows
from playhead.step.scores import SamplerInputs
from playhead.testing.kv_rules import small_layer, small_plan


def build_inputs(rows: Sequence[Request], *, num_rows: int, vocab_size: int) -> SamplerInputs:
    """These requests in rows 1, 2, ..., followed by empty ones up to `num_rows`."""
    kv = HybridKVCache(small_plan([small_layer(None)], page_size=4, num_slabs=40 + num_rows, max_running=num_rows))
    sampler = SamplerRows(max_running=num_rows, vocab_size=vocab_size, device=torch.device("cpu"))
    sampler.make_tables()
    chunks = []
    for i, row in enumerate(rows):
        seq = kv.admit(f"request {i}", [0])
        sampler.set(seq.row, row)
        chunks.append(replace(Chunk.newest(seq, [0]), request=row, num_generated=len(row.output)))
    step, num_empty = StepRequests(chunks, kv, sampler), num_rows - len(rows)
    numbers = {
        one.slot.name: torch.from_numpy(np.pad(one.make(step), (0, num_empty), constant_values=one.slot.pad_value))
        for one in SAMPLING
    }
    return sampler.inputs(numbers, torch.from_numpy(np.pad(step.rows, (0, num_empty))))


def tensors_of(inputs: SamplerInputs) -> list[torch.Tensor]:
    assert inputs.tables is not None
    return [*inputs.numbers.values(), inputs.rows_N, inputs.parts_RX, inputs.arrivals_R, *inputs.tables.tensors]


def refill(target: SamplerInputs, source: SamplerInputs) -> None:
    """Other values at the same addresses."""
    for kept, value in zip(tensors_of(target), tensors_of(source), strict=True):
        kept.copy_(value)
