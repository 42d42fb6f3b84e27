"""The sampler's inputs: set once per request, handed to every step as slots.

The host keeps one line of numbers per row of running requests; a step's slots are those lines gathered by row. What is
wide and rare (bias, penalties) is in tables on the device, made when the first request wants them.

Shapes: N requests of a step, R rows of running requests, V vocabulary, B bias entries.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from playhead.errors import RequestError
from playhead.graph.capture import Inputs
from playhead.graph.runner import OwnedMemory
from playhead.graph.slots import GraphSlot, host_vector
from playhead.kernels.tokens import choose_scratch
from playhead.step.sampling import (
    EVERYTHING,
    SMALLEST_REPETITION,
    VARIANTS,
    SamplerInputs,
    SamplerNeeds,
    SamplerRow,
    SamplerTables,
    sampler_needs,
)
from playhead.types import Row

GENERATED_SLOT = "num_generated"
ORDERED_VARIANTS = tuple(VARIANTS)

# dtype and the value of an empty row, which is greedy and has nothing on
COLUMNS: dict[str, tuple[torch.dtype, float]] = {
    "temperature": (torch.float32, 0.0),
    "top_k": (torch.int64, 0),
    "top_p": (torch.float32, 1.0),
    "log_min_p": (torch.float32, -math.inf),
    "repetition": (torch.float32, 1.0),
    "presence": (torch.float32, 0.0),
    "frequency": (torch.float32, 0.0),
    "seeds": (torch.int64, 0),
}


def sampler_slots(*, advances: str | None = None) -> tuple[GraphSlot, ...]:
    """One number per request for each parameter. `advances` says why a graph counts its own tokens, if it does."""
    slots = tuple(host_vector(name, "bs", dtype, pad_value=empty) for name, (dtype, empty) in COLUMNS.items())
    return (*slots, host_vector(GENERATED_SLOT, "bs", torch.int64, graph_writes=advances))


class SamplerRows:
    """Every running request's sampling, by row."""

    def __init__(self, *, max_running: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._device, self._num_rows = vocab_size, device, 1 + max_running
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.full(self._num_rows, empty, dtype=str(dtype).removeprefix("torch."))
            for name, (dtype, empty) in COLUMNS.items()
        }
        self._variants = np.zeros(self._num_rows, dtype=np.int8)
        self._parts_RX, self._arrivals_R = choose_scratch(max_running, vocab_size, device)
        self.tables: SamplerTables | None = None
        self._written_rows: set[Row] = set()

    def set(self, row: Row, request: SamplerRow) -> None:
        """All of a row's numbers, whatever stood there: a row is set when a request gets it."""
        params = request.params
        values = {
            "temperature": params.temperature,
            "top_k": max(params.top_k, 0),
            "top_p": params.top_p,
            # The host's logarithm: on N values the device's rounding may depend on N.
            "log_min_p": math.log(params.min_p) if params.min_p > 0 else -math.inf,
            "repetition": max(params.repetition_penalty, SMALLEST_REPETITION),
            "presence": params.presence_penalty,
            "frequency": params.frequency_penalty,
            "seeds": request.seed,
        }
        for name, column in self._columns.items():
            column[row] = values[name]
        variant = self.variant_of(request)
        self._variants[row] = ORDERED_VARIANTS.index(variant)
        # A step that looks at the tables looks at every row's bias and counts every row's tokens: what a former request
        # left must go, whether it was written for it or counted beside somebody else.
        if variant == EVERYTHING or row in self._written_rows:
            self._clear_tables(row)
        if variant == EVERYTHING:
            self._write_tables(row, request)

    def variant_of(self, request: SamplerRow) -> SamplerNeeds:
        """The least kind of sampling that serves a request, or `RequestError` with what is too much."""
        needs = sampler_needs([request])
        for variant in ORDERED_VARIANTS:
            if variant.covers(needs):
                return variant
        raise RequestError(
            "logit_bias, stop_token_ids and end tokens",
            f"{needs.num_bias} entries",
            f"at most {EVERYTHING.num_bias}",
            "Ask for fewer.",
        )

    def prepare(self, request: SamplerRow) -> None:
        """Room for a request that is not queued yet, or `RequestError`: later it would be everybody's error."""
        if self.variant_of(request) == EVERYTHING:
            try:
                self.make_tables()
            except torch.OutOfMemoryError:
                found = "no device memory for the tables of bias, penalties and logprobs"
                raise RequestError("sampling", found, "a request without them", "Lower kv_memory_bytes.") from None

    def variant(self, rows: npt.NDArray[np.int32]) -> SamplerNeeds:
        """The least of the captured kinds of sampling that serves these rows."""
        return ORDERED_VARIANTS[int(self._variants[rows].max())]

    def batch(self, rows: npt.NDArray[np.int32], num_generated: npt.NDArray[np.int64]) -> dict[str, Any]:
        """The slots of a step over these rows."""
        return {name: column[rows] for name, column in self._columns.items()} | {GENERATED_SLOT: num_generated}

    def inputs(self, views: Inputs, rows_N: torch.Tensor) -> SamplerInputs:
        """The same numbers where a sampler reads them: in the slots."""
        return SamplerInputs(
            temperature_N=views["temperature"],
            top_k_N=views["top_k"],
            top_p_N=views["top_p"],
            log_min_p_N=views["log_min_p"],
            repetition_N=views["repetition"],
            presence_N=views["presence"],
            frequency_N=views["frequency"],
            seeds_N=views["seeds"],
            positions_N=views[GENERATED_SLOT],
            rows_N=rows_N,
            parts_RX=self._parts_RX,
            arrivals_R=self._arrivals_R,
            tables=self.tables,
        )

    @property
    def owned(self) -> tuple[OwnedMemory, ...]:
        """The scratch; and the tables, where there are any: row 0 is the sink's, as everywhere."""
        scratch = OwnedMemory(name="sampler scratch", tensors=(self._parts_RX, self._arrivals_R), writable=True)
        if self.tables is None:
            return (scratch,)
        return scratch, OwnedMemory(name="sampler tables", tensors=self.tables.tensors, writable=True, sink_rows=1)

    def make_tables(self) -> SamplerTables:
        """The tables, made at the first call: their addresses never change."""
        if self.tables is None:

            def zeros(width: int, dtype: torch.dtype) -> torch.Tensor:
                return torch.zeros((self._num_rows, width), dtype=dtype, device=self._device)

            self.tables = SamplerTables(
                bias_ids_RB=zeros(EVERYTHING.num_bias, torch.int64),
                bias_values_RB=zeros(EVERYTHING.num_bias, torch.float32),
                bias_until_RB=zeros(EVERYTHING.num_bias, torch.int64),
                prompt_seen_RV=zeros(self._vocab_size, torch.bool),
                output_counts_RV=zeros(self._vocab_size, torch.int32),
            )
        return self.tables

    def _clear_tables(self, row: Row) -> None:
        for table in self.make_tables().tensors:
            table[row].zero_()
        self._written_rows.discard(row)

    def _write_tables(self, row: Row, request: SamplerRow) -> None:
        """One empty line of every table, ordered before what is launched next on this stream."""
        tables = self.make_tables()
        self._written_rows.add(row)
        entries = request.bias_entries()
        if entries:
            ids, values, until = zip(*entries, strict=True)
            for table, numbers in (
                (tables.bias_ids_RB, ids),
                (tables.bias_values_RB, values),
                (tables.bias_until_RB, until),
            ):
                table[row, : len(entries)] = torch.tensor(numbers, dtype=table.dtype).to(self._device)
        if request.has_penalties:
            prompt, output = (
                torch.tensor(ids, dtype=torch.int64).to(self._device)
                for ids in (request.prompt_ids, request.output_ids)
            )
            tables.prompt_seen_RV[row, prompt] = True
            tables.count_(torch.full_like(output, row), output)
