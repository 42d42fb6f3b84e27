"""From logits to tokens: one row per request, and no row sees another.

Order: bias, penalties, temperature, top-k, top-p, min-p, then the largest of logits plus Gumbel noise. The noise is
a hash of (seed, tokens generated so far, token id), so a request draws the same tokens alone, in any batch, in any
row, padded, captured or eager. Sums that decide something are sums of integers: floats would round differently in a
batch of another size.

`SamplerRows` keeps every running request's numbers on the host, by row; a step's inputs are these, gathered. What is
wide and rare (bias, penalties) is in tables on the device, made when the first request wants them.

Shapes: N requests of a step, R rows of running requests, V vocabulary, B bias entries, L reported logprobs. A trailing
1 is kept for broadcasting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from playhead.errors import INT64_MAX, RequestError
from playhead.graph.capture import Inputs
from playhead.graph.spec import OwnedMemory
from playhead.kernels.tokens import choose_scratch, choose_tokens
from playhead.sampling_params import (
    GREEDY_BELOW,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
    PARAMETERS,
    SamplingKind,
)
from playhead.schedule.request import Request
from playhead.types import Row

MAX_EOS_IDS = 16  # checkpoints list a handful
MAX_BIAS_ENTRIES = MAX_LOGIT_BIAS + MAX_STOP_TOKEN_IDS + MAX_EOS_IDS

# A softmax weight in (0, 1] becomes an integer of this many bits: 2^21 of them still fit 63 bits.
WEIGHT_SCALE = 2.0**42
ID_BITS = 32

NUMBERS = {name: one for name, one in PARAMETERS.items() if one.number is not None}
"""The parameters of which a sampler reads one number per request."""


def dtype_of(number: float) -> torch.dtype:
    """How a parameter's numbers are kept, from the one that is off."""
    return torch.float32 if isinstance(number, float) else torch.int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplerTables:
    """What few requests need and is wide: bias entries and the tokens seen, with a line per row of running requests.

    With `prompt_seen_RV` and `output_counts_RV`, 5 bytes a token id: 168 MB for 128 rows of 262,144. An unused bias
    entry adds 0 to token 0, which changes nothing.
    """

    bias_ids_RB: torch.Tensor
    bias_values_RB: torch.Tensor
    bias_until_RB: torch.Tensor
    prompt_seen_RV: torch.Tensor
    output_counts_RV: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        bias = (self.bias_ids_RB, self.bias_values_RB, self.bias_until_RB)
        return (*bias, self.prompt_seen_RV, self.output_counts_RV)

    def count_(self, rows_N: torch.Tensor, tokens_N: torch.Tensor) -> None:
        """One more of these tokens in these rows. Integers: the order of equal places does not matter."""
        ones_N = torch.ones_like(tokens_N, dtype=torch.int32)
        self.output_counts_RV.index_put_((rows_N.long(), tokens_N), ones_N, accumulate=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplerInputs:
    """What a sampler reads. `numbers` has the numbers of a step's requests by parameter, and `num_generated`.

    Each is a vector with one number per request. `rows_N` is the request's line of the tables, which may be missing
    where the kind of sampling does not look at them. `parts_RX` and `arrivals_R` are scratch of `choose_tokens`.
    """

    numbers: Inputs
    rows_N: torch.Tensor
    parts_RX: torch.Tensor
    arrivals_R: torch.Tensor
    tables: SamplerTables | None = None

    def column(self, name: str) -> torch.Tensor:
        """[N, 1]: a parameter's numbers, to be broadcast over the vocabulary."""
        return self.numbers[name][:, None]


class SampledTokens(NamedTuple):
    """One token per row; for `SamplingKind.EVERYTHING` also reports: the chosen token, then the best ones, best first.

    `logprobs_NL` are of the model's own distribution, the log-softmax of the raw logits before bias, penalties,
    temperature and filters (vLLM's `raw_logprobs`). `ranks_NL` count from 1; equal logits rank by the lower id.
    """

    tokens_N: torch.Tensor
    logprob_ids_NL: torch.Tensor
    logprobs_NL: torch.Tensor
    ranks_NL: torch.Tensor


def sample(
    logits_NV: torch.Tensor, inputs: SamplerInputs, kind: SamplingKind = SamplingKind.EVERYTHING
) -> SampledTokens:
    """One token per row, with fixed shapes and no look at a value on the host. The logits stay as they are.

    Equal scores go to the lowest id. A row of NaN gets some id of the vocabulary and disturbs no other row.
    """
    scores_NV = logits_NV
    if kind is SamplingKind.EVERYTHING:
        scores_NV = penalised(biased(scores_NV.float(), inputs), inputs)
    if kind >= SamplingKind.FILTERED:
        scores_NV = filtered(scores_NV.float(), inputs)
    tokens_N = torch.empty(len(logits_NV), dtype=torch.int64, device=logits_NV.device)
    # One way to choose for all kinds: a draw rounds the same, whatever else its step computes.
    choose_tokens(
        scores_NV,
        inputs.numbers["temperature"],
        inputs.numbers["seed"],
        inputs.numbers["num_generated"],
        tokens_N,
        inputs.parts_RX,
        inputs.arrivals_R,
        GREEDY_BELOW,
        kind >= SamplingKind.DRAWN,
    )
    return report(logits_NV, tokens_N, 1 + MAX_LOGPROBS if kind is SamplingKind.EVERYTHING else 0)


def biased(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """Logits with what the bias entries add while they hold.

    An id may stand twice only with infinities and zeros, so the order of the additions does not matter.
    """
    assert inputs.tables is not None, "rows with a bias have tables"
    ids_NB, values_NB, until_NB = (
        table[inputs.rows_N]
        for table in (inputs.tables.bias_ids_RB, inputs.tables.bias_values_RB, inputs.tables.bias_until_RB)
    )
    holds_NB = inputs.column("num_generated") < until_NB
    return logits_NV.scatter_add(1, ids_NB, torch.where(holds_NB, values_NB, 0.0))


def penalised(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """Repetition for ids of the prompt or the output, then frequency and presence for ids of the output."""
    assert inputs.tables is not None, "rows with penalties have tables"
    counts_NV = inputs.tables.output_counts_RV[inputs.rows_N]
    repeated_NV = inputs.tables.prompt_seen_RV[inputs.rows_N] | (counts_NV > 0)
    factor_NV = torch.where(repeated_NV, inputs.column("repetition_penalty"), 1.0)
    logits_NV = torch.where(logits_NV > 0, logits_NV / factor_NV, logits_NV * factor_NV)
    logits_NV = logits_NV - inputs.column("frequency_penalty") * counts_NV
    return logits_NV - inputs.column("presence_penalty") * (counts_NV > 0)


def filtered(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """-inf below the row's thresholds, which are of logits / temperature.

    All filters are thresholds, so equal logits stay or go together. The best token is never filtered, so a greedy row
    chooses the same.
    """
    temperature_N1 = inputs.column("temperature")
    scaled_NV = logits_NV / torch.where(temperature_N1 < GREEDY_BELOW, 1.0, temperature_N1)
    logits_NV = torch.where(scaled_NV >= sorted_threshold(scaled_NV, inputs), logits_NV, -math.inf)
    # Probabilities relative to the best token are the same before top-k and after.
    threshold_N1 = scaled_NV.amax(dim=-1, keepdim=True) + inputs.column("min_p")
    return torch.where(scaled_NV >= threshold_N1, logits_NV, -math.inf)


def sorted_threshold(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """[N, 1]: the least logit that top-k and then top-p keep.

    Top-p keeps a token if those before it hold less than p of what top-k left. With p 0.6:

        left by top-k   0.5  0.3  0.2
        before          0    0.5  0.8     -> the first two stay
    """
    vocab_size = logits_NV.shape[1]
    sorted_NV = logits_NV.sort(dim=-1, descending=True).values
    top_k_N1, top_p_N1 = inputs.column("top_k"), inputs.column("top_p")
    last_N1 = torch.where(top_k_N1 > 0, top_k_N1, vocab_size).clamp(max=vocab_size) - 1
    by_k_N1 = sorted_NV.gather(1, last_N1)

    weights_NV = integer_weights(sorted_NV, sorted_NV[:, :1])
    weights_NV = torch.where(sorted_NV >= by_k_N1, weights_NV, 0)
    through_NV = weights_NV.cumsum(dim=-1)
    limit_N1 = (top_p_N1.double() * through_NV[:, -1:].double()).to(torch.int64)
    num_kept_N1 = (through_NV - weights_NV < limit_N1).sum(dim=-1, keepdim=True)
    # The smallest p count no token, and the best one stays; a row of NaN may count none either.
    by_p_N1 = sorted_NV.gather(1, (num_kept_N1 - 1).clamp(min=0))
    # With p 1 the tail's weights may be too small for an integer; nothing is cut.
    return torch.where(top_p_N1 < 1, torch.maximum(by_k_N1, by_p_N1), by_k_N1)


def integer_weights(logits_NV: torch.Tensor, best_N1: torch.Tensor) -> torch.Tensor:
    """exp(logit - best) as integers, whose sums are the same in any order."""
    return ((logits_NV - best_N1).exp() * WEIGHT_SCALE).to(torch.int64)


def report(logits_NV: torch.Tensor, tokens_N: torch.Tensor, num_logprobs: int) -> SampledTokens:
    """The tokens, with `num_logprobs` columns of ids, logprobs and ranks."""
    num_rows, vocab_size = logits_NV.shape
    if num_logprobs == 0:
        empty = torch.empty((num_rows, 0), dtype=torch.float32, device=tokens_N.device)
        no_ids = tokens_N.new_empty((num_rows, 0))
        return SampledTokens(tokens_N, no_ids, empty, no_ids)
    raw_NV = logits_NV.float()
    num_best = min(num_logprobs - 1, vocab_size)
    chosen_N1 = tokens_N[:, None]
    keys_NV = ranking_keys(raw_NV)
    best_NL = vocab_size - 1 - (keys_NV.topk(num_best, dim=-1).values & (2**ID_BITS - 1))
    rank_N1 = (keys_NV > keys_NV.gather(1, chosen_N1)).sum(dim=-1, keepdim=True) + 1
    ranks_L = torch.arange(1, num_best + 1, dtype=torch.int64, device=raw_NV.device)
    ids_NL = torch.cat((chosen_N1, best_NL), dim=-1)
    highest_N1 = raw_NV.amax(dim=-1, keepdim=True)
    total_N1 = integer_weights(raw_NV, highest_N1).sum(dim=-1, keepdim=True)
    log_total_N1 = (total_N1.double() / WEIGHT_SCALE).log().float()
    logprobs_NL = raw_NV.gather(1, ids_NL) - highest_N1 - log_total_N1
    return SampledTokens(tokens_N, ids_NL, logprobs_NL, torch.cat((rank_N1, ranks_L.expand(num_rows, -1)), dim=-1))


def ranking_keys(logits_NV: torch.Tensor) -> torch.Tensor:
    """Distinct integers in the order of the logits, equal logits by lower id first: `topk` leaves ties open."""
    vocab_size = logits_NV.shape[1]
    bits_NV = (logits_NV + 0.0).view(torch.int32)  # -0.0 becomes 0.0: they are equal
    ordered_NV = bits_NV ^ ((bits_NV >> 31) & 0x7FFFFFFF)  # as integers, negative floats run backwards
    ids_V = torch.arange(vocab_size, dtype=torch.int64, device=logits_NV.device)
    return (ordered_NV.to(torch.int64) << ID_BITS) + (vocab_size - 1 - ids_V)


class SamplerRows:
    """Every running request's sampling, by row."""

    def __init__(self, *, max_running: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._device, self._num_rows = vocab_size, device, 1 + max_running
        self.numbers: dict[str, npt.NDArray[Any]] = {
            name: np.full(self._num_rows, one.off, dtype=str(dtype_of(one.off)).removeprefix("torch."))
            for name, one in NUMBERS.items()
        }
        self._kinds = np.zeros(self._num_rows, dtype=np.int8)
        self._parts_RX, self._arrivals_R = choose_scratch(max_running, vocab_size, device)
        self.tables: SamplerTables | None = None
        self._written_rows: set[Row] = set()

    def set(self, row: Row, request: Request) -> None:
        """All of a row's numbers, whatever stood there: a row is set when a request gets it.

        Everything the request has generated so far has been read by then.
        """
        values = request.params.values()
        for name, one in NUMBERS.items():
            assert one.number is not None, "NUMBERS has these alone"
            self.numbers[name][row] = one.number(values[name])
        kind = self._kinds[row] = kind_of(request)
        # A step that looks at the tables looks at every row's bias and counts every row's tokens: what a former request
        # left must go, whether it was written for it or counted beside somebody else.
        if kind is SamplingKind.EVERYTHING or row in self._written_rows:
            self._clear_tables(row)
        if kind is SamplingKind.EVERYTHING:
            self._write_tables(row, request)

    def prepare(self, request: Request) -> None:
        """Room for a request that is not queued yet, or `RequestError`: later it would be everybody's error."""
        if kind_of(request) is SamplingKind.EVERYTHING:
            try:
                self.make_tables()
            except torch.OutOfMemoryError:
                found = "no device memory for the tables of bias, penalties and logprobs"
                raise RequestError("sampling", found, "a request without them", "Lower kv_memory_bytes.") from None

    def kind(self, rows: npt.NDArray[np.int32]) -> SamplingKind:
        """The least kind of sampling that serves these rows."""
        return SamplingKind(self._kinds[rows].max())

    def inputs(self, slots: Inputs, rows_N: torch.Tensor) -> SamplerInputs:
        """What a sampler reads, from a step's slots."""
        return SamplerInputs(
            numbers=slots, rows_N=rows_N, parts_RX=self._parts_RX, arrivals_R=self._arrivals_R, tables=self.tables
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
                bias_ids_RB=zeros(MAX_BIAS_ENTRIES, torch.int64),
                bias_values_RB=zeros(MAX_BIAS_ENTRIES, torch.float32),
                bias_until_RB=zeros(MAX_BIAS_ENTRIES, torch.int64),
                prompt_seen_RV=zeros(self._vocab_size, torch.bool),
                output_counts_RV=zeros(self._vocab_size, torch.int32),
            )
        return self.tables

    def _clear_tables(self, row: Row) -> None:
        for table in self.make_tables().tensors:
            table[row].zero_()
        self._written_rows.discard(row)

    def _write_tables(self, row: Row, request: Request) -> None:
        """One empty line of every table, ordered before what is launched next on this stream."""
        tables = self.make_tables()
        self._written_rows.add(row)
        entries = bias_entries(request)
        if entries:
            ids, values, until = zip(*entries, strict=True)
            for table, numbers in (
                (tables.bias_ids_RB, ids),
                (tables.bias_values_RB, values),
                (tables.bias_until_RB, until),
            ):
                table[row, : len(entries)] = torch.tensor(numbers, dtype=table.dtype).to(self._device)
        if has_penalties(request):
            prompt, output = (
                torch.tensor(ids, dtype=torch.int64).to(self._device) for ids in (request.prompt, request.output)
            )
            tables.prompt_seen_RV[row, prompt] = True
            tables.count_(torch.full_like(output, row), output)


def kind_of(request: Request) -> SamplingKind:
    """The least kind of sampling that serves a request, or `RequestError` if the tables have no room for its bias."""
    num_entries = len(bias_entries(request))
    if num_entries > MAX_BIAS_ENTRIES:
        fields = "logit_bias, stop_token_ids and end tokens"
        raise RequestError(fields, f"{num_entries} entries", f"at most {MAX_BIAS_ENTRIES}", "Ask for fewer.")
    return SamplingKind.EVERYTHING if num_entries else request.params.kind


def has_penalties(request: Request) -> bool:
    """Whether a number of the request changes with the tokens it has had."""
    values = request.params.values()
    return any(one.kind is SamplingKind.EVERYTHING and one.is_on(values[name]) for name, one in NUMBERS.items())


def bias_entries(request: Request) -> list[tuple[int, float, int]]:
    """(token id, addition, until): the addition holds while fewer than `until` tokens were generated.

    The ids that would end the request cannot be drawn before `min_tokens`.
    """
    params = request.params
    entries = [(token, bias, INT64_MAX) for token, bias in params.logit_bias.items()]
    if len(request.output) < params.min_tokens:
        entries += [(token, -math.inf, params.min_tokens) for token in request.ending_ids]
    return entries
