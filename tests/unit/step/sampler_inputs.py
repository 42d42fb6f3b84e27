"""Sampler inputs for tests, made the way a worker makes them: rows are set, then gathered into slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from playhead.schedule.request import Request
from playhead.step.sampling import NUMBERS, SamplerInputs, SamplerRows


def build_inputs(rows: Sequence[Request], *, num_rows: int, vocab_size: int) -> SamplerInputs:
    """These requests in rows 1, 2, ..., followed by empty ones up to `num_rows`."""
    sampler = SamplerRows(max_running=num_rows, vocab_size=vocab_size, device=torch.device("cpu"))
    sampler.make_tables()
    for i, row in enumerate(rows, start=1):
        sampler.set(i, row)
    row_ids = np.array([i + 1 if i < len(rows) else 0 for i in range(num_rows)], dtype=np.int32)
    num_generated = [len(row.output) for row in rows] + [0] * (num_rows - len(rows))
    numbers = {name: torch.from_numpy(sampler.numbers[name][row_ids]) for name in NUMBERS}
    numbers["num_generated"] = torch.tensor(num_generated)
    return sampler.inputs(numbers, torch.from_numpy(row_ids))


def tensors_of(inputs: SamplerInputs) -> list[torch.Tensor]:
    assert inputs.tables is not None
    return [*inputs.numbers.values(), inputs.rows_N, inputs.parts_RX, inputs.arrivals_R, *inputs.tables.tensors]


def refill(target: SamplerInputs, source: SamplerInputs) -> None:
    """Other values at the same addresses."""
    for kept, value in zip(tensors_of(target), tensors_of(source), strict=True):
        kept.copy_(value)
