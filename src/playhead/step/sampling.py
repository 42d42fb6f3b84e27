"""From logits to tokens: one row per request, and no row sees another.

Order: grammar, bias, bad words, penalties, temperature, min-p, top-k, top-p, then the largest of logits plus Gumbel
noise. The noise is a hash of (seed, tokens generated so far, token id), so a request draws the same tokens alone, in
any batch, in any row, padded, captured or eager. `scores.py` has what few requests want: bias, penalties, filters,
logprobs.

`SamplerRows` keeps every running request's numbers on the host, by row; a step's inputs are these, gathered.

Shapes: N requests of a step, R rows of running requests, V vocabulary, L reported logprobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from playhead.errors import RequestError
from playhead.graph.capture import Inputs
from playhead.graph.spec import OwnedMemory
from playhead.kernels.head import head_scratch
from playhead.kernels.masks import forbid_
from playhead.kernels.tokens import choose_scratch, choose_tokens
from playhead.sampling_params import GREEDY_BELOW, MAX_LOGPROBS, PARAMETERS, SamplingKind
from playhead.schedule.request import Request
from playhead.step.scores import (
    SamplerInputs,
    SamplerTables,
    biased,
    has_late_ids,
    least_of,
    logprobs_of,
    penalised,
    without_words,
)
from playhead.types import Row, TokenReport

NUMBERS = {name: one for name, one in PARAMETERS.items() if one.number is not None}
"""The parameters of which a sampler reads one number per request."""
KINDS = tuple(SamplingKind)
"""By their numbers, found in less time than by a call of the enum."""
MASKS_SLOT = "allowed_tokens"
"""The slot of masks, which only steps with a grammar have."""


def dtype_of(number: float) -> torch.dtype:
    """How a parameter's numbers are kept, from the one that is off."""
    return torch.float32 if isinstance(number, float) else torch.int64


def names_by_dtype() -> dict[torch.dtype, list[str]]:
    """The parameters of `NUMBERS`, by how they are kept."""
    found: dict[torch.dtype, list[str]] = {}
    for name, one in NUMBERS.items():
        found.setdefault(dtype_of(one.off), []).append(name)
    return found


def number_makers(names: list[str]) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[Callable[[Any], float], ...]]:
    """What gives the values of these parameters, and what makes a number of each."""
    return attrgetter(*names), tuple(make for name in names if (make := NUMBERS[name].number) is not None)


MADE_BY_DTYPE = tuple(map(number_makers, names_by_dtype().values()))


class SampledTokens(NamedTuple):
    """One token per row; for `SamplingKind.EVERYTHING` also reports: the chosen token, then the best ones, best first.

    `logprobs_NL` are of the model's own distribution, the log-softmax of the raw logits before bias, penalties,
    temperature and filters (vLLM's `raw_logprobs`). `ranks_NL` count from 1; equal logits rank by the lower id.
    """

    tokens_N: torch.Tensor
    logprob_ids_NL: torch.Tensor
    logprobs_NL: torch.Tensor
    ranks_NL: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ReadTokens:
    """A step's tokens on the host. `report_parts` are ids, logprobs and ranks, where somebody wants them."""

    tokens: list[int]
    report_parts: tuple[torch.Tensor, ...] = ()

    def reports(self, row: int, num_best: int | None) -> list[TokenReport]:
        """Of the chosen token of a row, then of so many of the best ones. With None there are none."""
        if num_best is None:
            return []
        columns = (part[row, : 1 + num_best].tolist() for part in self.report_parts)
        return [TokenReport(*one) for one in zip(*columns, strict=True)]


def sample(
    logits_NV: torch.Tensor,
    inputs: SamplerInputs,
    kind: SamplingKind = SamplingKind.EVERYTHING,
    room: SampledTokens | None = None,
) -> SampledTokens:
    """One token per row, with fixed shapes and no look at a value on the host.

    The tokens get new memory, or that of `room`, which has no reports.

    The logits stay as they are, except that masks write -inf into them where nobody asks for logprobs. Equal scores go
    to the lowest id. A row of NaN gets some id of the vocabulary and disturbs no other row.
    """
    scores_NV = logits_NV
    if inputs.allowed_NW is not None:
        scores_NV = logits_NV.clone() if kind is SamplingKind.EVERYTHING else logits_NV
        forbid_(scores_NV, inputs.allowed_NW)
    if kind is SamplingKind.EVERYTHING:
        scores_NV = penalised(without_words(biased(scores_NV.float(), inputs), inputs), inputs)
    least_keys_N = least_of(scores_NV, inputs) if kind >= SamplingKind.FILTERED else None
    tokens_N = room_for(logits_NV) if room is None else room.tokens_N
    # One way to choose for all kinds: a draw rounds the same, whatever else its step computes.
    choose_tokens(
        scores_NV,
        least_keys_N,
        inputs.numbers["temperature"],
        inputs.numbers["seed"],
        inputs.numbers["num_generated"],
        tokens_N,
        inputs.parts_RX,
        inputs.arrivals_R,
        GREEDY_BELOW,
        kind >= SamplingKind.DRAWN,
    )
    if kind is SamplingKind.EVERYTHING:
        return SampledTokens(tokens_N, *logprobs_of(logits_NV, tokens_N, MAX_LOGPROBS))
    return without_reports(tokens_N) if room is None else room


def room_for(rows: torch.Tensor) -> torch.Tensor:
    """Memory for a token of each row."""
    return torch.empty(len(rows), dtype=torch.int64, device=rows.device)


def without_reports(tokens_N: torch.Tensor) -> SampledTokens:
    """Tokens of rows that nobody wants logprobs of."""
    no_ids_NL = tokens_N.new_empty((len(tokens_N), 0))
    no_logprobs_NL = torch.empty((len(tokens_N), 0), dtype=torch.float32, device=tokens_N.device)
    return SampledTokens(tokens_N, no_ids_NL, no_logprobs_NL, no_ids_NL)


class SamplerRows:
    """Every running request's sampling, by row."""

    def __init__(self, *, max_running: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._device, self._num_rows = vocab_size, device, 1 + max_running
        # One array for all parameters of a dtype, a row for each request: a step gathers them at once.
        self._tables = [
            (names, np.array([[NUMBERS[name].off for name in names]] * self._num_rows, dtype=str(dtype).split(".")[1]))
            for dtype, names in names_by_dtype().items()
        ]
        self.numbers: dict[str, npt.NDArray[Any]] = {
            name: numbers_R for names, table in self._tables for name, numbers_R in zip(names, table.T, strict=True)
        }
        self._off = {name: np.full_like(numbers_R, NUMBERS[name].off) for name, numbers_R in self.numbers.items()}
        self._off_by_size: dict[int, dict[str, npt.NDArray[Any]]] = {}
        self._kinds = bytearray(self._num_rows)
        self._parts_RX, self._arrivals_R = choose_scratch(max_running, vocab_size, device)
        self._best_R = head_scratch(max_running, device)
        self.tables: SamplerTables | None = None
        self._written_rows: set[Row] = set()

    def set(self, row: Row, request: Request) -> None:
        """All of a row's numbers, whatever stood there: a row is set when a request gets it.

        Everything the request has generated so far has been read by then.
        """
        params = request.params
        for (_, table), (values_of, numbers) in zip(self._tables, MADE_BY_DTYPE, strict=True):
            table[row] = [number(value) for number, value in zip(numbers, values_of(params), strict=True)]
        if params.seed is None:
            self.numbers["seed"][row] = request.seed
        kind = self._kinds[row] = kind_of(request)
        # A step that looks at the tables looks at every row's bias and counts every row's tokens: what a former request
        # left must go, whether it was written for it or counted beside somebody else.
        if kind is SamplingKind.EVERYTHING or row in self._written_rows:
            self._clear_tables(row)
        if kind is SamplingKind.EVERYTHING:
            self._written_rows.add(row)
            self.make_tables().write_(row, request)

    def prepare(self, request: Request) -> None:
        """Room for a request that is not queued yet, or `RequestError`: later it would be everybody's error."""
        check_some_token_is_left(request)
        if kind_of(request) is SamplingKind.EVERYTHING:
            try:
                self.make_tables()
            except torch.OutOfMemoryError:
                found = "no device memory for the tables of bias, penalties and logprobs"
                raise RequestError("sampling", found, "a request without them", "Lower kv_memory_bytes.") from None

    def numbers_of(self, rows: npt.NDArray[np.int32], kind: SamplingKind | None) -> dict[str, npt.NDArray[Any]]:
        """Each parameter's numbers of these rows. A greedy step reads none of them: its parameters are off."""
        if kind is SamplingKind.GREEDY:
            return self._numbers_off(len(rows))
        gathered = [(names, table.take(rows, axis=0)) for names, table in self._tables]
        return {name: numbers_N for names, table in gathered for name, numbers_N in zip(names, table.T, strict=True)}

    def _numbers_off(self, num_rows: int) -> dict[str, npt.NDArray[Any]]:
        numbers = self._off_by_size.get(num_rows)
        if numbers is None:
            numbers = {name: numbers_R[:num_rows] for name, numbers_R in self._off.items()}
            self._off_by_size[num_rows] = numbers
        return numbers

    def kind(self, rows: npt.NDArray[np.int32]) -> SamplingKind:
        """The least kind of sampling that serves these rows."""
        return KINDS[max(map(self._kinds.__getitem__, rows.tolist()))]

    def inputs(self, slots: Inputs, rows_N: torch.Tensor) -> SamplerInputs:
        """What a sampler reads, from a step's slots."""
        return SamplerInputs(
            numbers=slots,
            rows_N=rows_N,
            parts_RX=self._parts_RX,
            arrivals_R=self._arrivals_R,
            best_R=self._best_R,
            tables=self.tables,
            allowed_NW=slots.get(MASKS_SLOT),
        )

    @property
    def owned(self) -> tuple[OwnedMemory, ...]:
        """The scratch; and the tables, where there are any: row 0 is the sink's, as everywhere."""
        memory = (self._parts_RX, self._arrivals_R, self._best_R)
        scratch = OwnedMemory(name="sampler scratch", tensors=memory, writable=True)
        if self.tables is None:
            return (scratch,)
        return scratch, OwnedMemory(name="sampler tables", tensors=self.tables.tensors, writable=True, sink_rows=1)

    def make_tables(self) -> SamplerTables:
        """The tables, made at the first call: their addresses never change."""
        if self.tables is None:
            self.tables = SamplerTables.empty(self._num_rows, self._vocab_size, self._device)
        return self.tables

    def _clear_tables(self, row: Row) -> None:
        self.make_tables().clear_(row)
        self._written_rows.discard(row)


def kind_of(request: Request) -> SamplingKind:
    """The least kind of sampling that serves a request."""
    return SamplingKind.EVERYTHING if has_late_ids(request) or request.bad_words else request.params.kind


def check_some_token_is_left(request: Request) -> None:
    """Refuse a request whose fields forbid every token that they allow."""
    allowed = request.params.allowed_token_ids
    if allowed is None:
        return
    bad = {word[0] for word in request.bad_words if len(word) == 1}
    early = request.late_ids if has_late_ids(request) else frozenset()
    if not set(allowed) - bad - early:
        found = f"{len(allowed)} token ids, and bad_words or min_tokens forbid every one"
        raise RequestError("sampling field 'allowed_token_ids'", found, "at least one that can come out", "Allow more.")
