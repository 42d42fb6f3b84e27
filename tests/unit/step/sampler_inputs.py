"""Sampler inputs for tests, made the way a worker makes them: rows are set, then gathered into slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from playhead.step.sampler_rows import SamplerRows
from playhead.step.sampling import SamplerInputs, SamplerNeeds, SamplerRow, sampler_needs


def build_inputs(rows: Sequence[SamplerRow], needs: SamplerNeeds, *, num_rows: int, vocab_size: int) -> SamplerInputs:
    """These requests in rows 1, 2, ..., followed by empty ones up to `num_rows`."""
    assert needs.covers(sampler_needs(rows)), "the needs are those of other rows"
    sampler = SamplerRows(max_running=num_rows, vocab_size=vocab_size, device=torch.device("cpu"))
    sampler.make_tables()
    for i, row in enumerate(rows, start=1):
        sampler.set(i, row)
    row_ids = np.array([i + 1 if i < len(rows) else 0 for i in range(num_rows)], dtype=np.int32)
    num_generated = np.array([row.num_generated for row in rows] + [0] * (num_rows - len(rows)), dtype=np.int64)
    views = {name: torch.from_numpy(values) for name, values in sampler.batch(row_ids, num_generated).items()}
    return sampler.inputs(views, torch.from_numpy(row_ids))


def tensors_of(inputs: SamplerInputs) -> list[torch.Tensor]:
    assert inputs.tables is not None
    values = [getattr(inputs, field.name) for field in dataclasses.fields(inputs)]
    return [*(value for value in values if isinstance(value, torch.Tensor)), *inputs.tables.tensors]


def refill(target: SamplerInputs, source: SamplerInputs) -> None:
    """Other values at the same addresses."""
    for kept, value in zip(tensors_of(target), tensors_of(source), strict=True):
        kept.copy_(value)
