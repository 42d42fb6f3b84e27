"""What bias, penalties and filters make of logits, and the logprobs that are reported: the rare part of sampling.

A token is drawn from those `penalised(without_words(biased(logits)))` that reach `least_of`. What is wide and rare
is in tables on the device. Sums that decide something are sums of integers: floats would round differently in a batch
of another size.

Shapes: N requests of a step, R rows of running requests, V vocabulary, K bad words of several tokens, H their tokens
but the last, L reported logprobs. A trailing 1 is kept for broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from playhead.graph.capture import Inputs
from playhead.kernels.filters import LOG2_E, WEIGHT_SCALE, integer_weights, least_keys, token_ids, token_keys
from playhead.sampling_params import GREEDY_BELOW, PARAMETERS, SamplingKind
from playhead.sampling_values import MAX_LONG_WORDS, MAX_WORD_TOKENS
from playhead.schedule.request import Request
from playhead.types import Row

NUM_RECENT = MAX_WORD_TOKENS - 1

SEEN = 1
"""The flag of an id that is in the prompt."""
LATE = 2
"""The flag of an id that cannot come out yet."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplerTables:
    """What few requests need and is wide: bias, flags and counts of every token id, with a line per running request.

    These take 9 bytes a token id: 302 MB for 128 rows of 262,144. A line of zeros changes nothing. In the three tables
    of bad words a token is its id plus 1, and 0 is no token: in front of a shorter word it fits any token.
    """

    bias_RV: torch.Tensor
    """What is added to a logit. An id with -inf cannot come out."""
    flags_RV: torch.Tensor
    output_counts_RV: torch.Tensor
    min_tokens_R1: torch.Tensor
    """Ids with the flag LATE cannot come out before so many tokens were generated."""
    word_starts_RKH: torch.Tensor
    """A bad word's tokens but the last, at the end of its line."""
    word_ends_RK: torch.Tensor
    recent_RH: torch.Tensor
    """The newest tokens of the output, at the end of the line."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        of_ids = (self.bias_RV, self.flags_RV, self.output_counts_RV, self.min_tokens_R1)
        return (*of_ids, self.word_starts_RKH, self.word_ends_RK, self.recent_RH)

    @classmethod
    def empty(cls, num_rows: int, vocab_size: int, device: torch.device) -> SamplerTables:
        """Tables in which no row has anything."""

        def zeros(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
            return torch.zeros((num_rows, *sizes), dtype=dtype, device=device)

        return cls(
            bias_RV=zeros(torch.float32, vocab_size),
            flags_RV=zeros(torch.uint8, vocab_size),
            output_counts_RV=zeros(torch.int32, vocab_size),
            min_tokens_R1=zeros(torch.int64, 1),
            word_starts_RKH=zeros(torch.int32, MAX_LONG_WORDS, NUM_RECENT),
            word_ends_RK=zeros(torch.int32, MAX_LONG_WORDS),
            recent_RH=zeros(torch.int32, NUM_RECENT),
        )

    def clear_(self, row: Row) -> None:
        """Whatever was written or counted for a row is gone."""
        for table in self.tensors:
            table[row].zero_()

    def write_(self, row: Row, request: Request) -> None:
        """A request into an empty row, ordered before what is launched next on this stream."""
        params = request.params
        if params.allowed_token_ids is not None:
            self.bias_RV[row].fill_(-math.inf)
            self.bias_RV[row, self._ids(params.allowed_token_ids)] = 0.0
        if params.logit_bias:
            values = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32)
            self.bias_RV[row, self._ids(params.logit_bias)] += values.to(self.bias_RV.device)
        if has_penalties(request):
            self.flags_RV[row, self._ids(request.prompt)] = SEEN
            output = self._ids(request.output)
            self._count_(torch.full_like(output, row), output)
        if has_late_ids(request):
            self.flags_RV[row, self._ids(request.late_ids)] |= LATE
            self.min_tokens_R1[row] = params.min_tokens
        if request.bad_words:
            self._write_words_(row, request)

    def _write_words_(self, row: Row, request: Request) -> None:
        device = self.bias_RV.device
        self.bias_RV[row, self._ids(word[0] for word in request.bad_words if len(word) == 1)] = -math.inf
        starts_KH = np.zeros((MAX_LONG_WORDS, NUM_RECENT), dtype=np.int32)
        ends_K = np.zeros(MAX_LONG_WORDS, dtype=np.int32)
        for i, (*start, end) in enumerate(word for word in request.bad_words if len(word) > 1):
            starts_KH[i, -len(start) :], ends_K[i] = np.array(start) + 1, end + 1
        recent_H = np.zeros(NUM_RECENT, dtype=np.int32)
        output = request.output[-NUM_RECENT:]
        recent_H[NUM_RECENT - len(output) :] = np.array(output, dtype=np.int32) + 1
        self.word_starts_RKH[row] = torch.from_numpy(starts_KH).to(device)
        self.word_ends_RK[row] = torch.from_numpy(ends_K).to(device)
        self.recent_RH[row] = torch.from_numpy(recent_H).to(device)

    def _ids(self, ids: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(ids), dtype=torch.int64).to(self.bias_RV.device)

    def take_(self, rows_N: torch.Tensor, tokens_N: torch.Tensor) -> None:
        """These rows have generated these tokens."""
        rows_N = rows_N.long()
        self._count_(rows_N, tokens_N)
        newest_N1 = (tokens_N + 1).to(torch.int32)[:, None]
        self.recent_RH.index_put_((rows_N,), torch.cat((self.recent_RH[rows_N][:, 1:], newest_N1), dim=-1))

    def _count_(self, rows_N: torch.Tensor, tokens_N: torch.Tensor) -> None:
        """One more of these tokens in these rows. Integers: the order of equal places does not matter."""
        ones_N = torch.ones_like(tokens_N, dtype=torch.int32)
        self.output_counts_RV.index_put_((rows_N, tokens_N), ones_N, accumulate=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplerInputs:
    """What a sampler reads. `numbers` has the numbers of a step's requests by parameter, and `num_generated`.

    Each is a vector with one number per request. `rows_N` is the request's line of the tables, which may be missing
    where the kind of sampling does not look at them. `parts_RX` and `arrivals_R` are scratch of `choose_tokens`,
    `best_R` and `arrivals_R` of `head_tokens`.
    `allowed_NW` are masks of the step's requests, where one of them has a grammar.
    """

    numbers: Inputs
    rows_N: torch.Tensor
    parts_RX: torch.Tensor
    arrivals_R: torch.Tensor
    best_R: torch.Tensor
    tables: SamplerTables | None = None
    allowed_NW: torch.Tensor | None = None

    def column(self, name: str) -> torch.Tensor:
        """[N, 1]: a parameter's numbers, to be broadcast over the vocabulary."""
        return self.numbers[name][:, None]


def biased(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """Logits with their bias, and -inf for ids that would come too early."""
    assert inputs.tables is not None, "rows with a bias have tables"
    logits_NV = logits_NV + inputs.tables.bias_RV[inputs.rows_N]
    waits_N1 = inputs.column("num_generated") < inputs.tables.min_tokens_R1[inputs.rows_N]
    late_NV = (inputs.tables.flags_RV[inputs.rows_N] & LATE) != 0
    return logits_NV.masked_fill(late_NV & waits_N1, -math.inf)


def without_words(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """-inf for the last token of each bad word whose other tokens are the row's newest ones.

    With the word (7, 8, 9): after 5, 7, 8 the token 9 cannot come out; after 7, 8, 5 it can.
    """
    assert inputs.tables is not None, "rows with bad words have tables"
    starts_NKH = inputs.tables.word_starts_RKH[inputs.rows_N]
    ends_NK = inputs.tables.word_ends_RK[inputs.rows_N]
    recent_N1H = inputs.tables.recent_RH[inputs.rows_N][:, None]
    fits_NK = ((starts_NKH == 0) | (starts_NKH == recent_N1H)).all(dim=-1) & (ends_NK > 0)
    # An id may stand twice with zeros and infinities alone, so the order of the additions does not matter.
    added_NK = torch.zeros_like(ends_NK, dtype=torch.float32).masked_fill(fits_NK, -math.inf)
    return logits_NV.scatter_add(1, (ends_NK - 1).clamp(min=0).to(torch.int64), added_NK)


def penalised(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """Repetition for ids of the prompt or the output, then frequency and presence for ids of the output."""
    assert inputs.tables is not None, "rows with penalties have tables"
    counts_NV = inputs.tables.output_counts_RV[inputs.rows_N]
    repeated_NV = ((inputs.tables.flags_RV[inputs.rows_N] & SEEN) != 0) | (counts_NV > 0)
    factor_NV = torch.where(repeated_NV, inputs.column("repetition_penalty"), 1.0)
    logits_NV = torch.where(logits_NV > 0, logits_NV / factor_NV, logits_NV * factor_NV)
    logits_NV = logits_NV - inputs.column("frequency_penalty") * counts_NV
    return logits_NV - inputs.column("presence_penalty") * (counts_NV > 0)


def least_of(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """[N]: the least key that a row's filters keep. The best token stays, so a greedy row chooses the same."""
    temperature_N, top_k_N, top_p_N, log_min_p_N = (
        inputs.numbers[name] for name in ("temperature", "top_k", "top_p", "min_p")
    )
    return least_keys(logits_NV, temperature_N, top_k_N, top_p_N, log_min_p_N, GREEDY_BELOW)


def logprobs_of(
    logits_NV: torch.Tensor, tokens_N: torch.Tensor, num_best: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, logprobs and ranks [N, 1 + num_best]: of the chosen token, then of the best ones, best first."""
    num_rows, vocab_size = logits_NV.shape
    raw_NV = logits_NV.float()
    num_best = min(num_best, vocab_size)
    chosen_N1 = tokens_N[:, None]
    keys_NV = token_keys(raw_NV)  # `topk` leaves ties open
    best_NL = token_ids(keys_NV.topk(num_best, dim=-1).values)
    rank_N1 = (keys_NV > keys_NV.gather(1, chosen_N1)).sum(dim=-1, keepdim=True) + 1
    ranks_L = torch.arange(1, num_best + 1, dtype=torch.int64, device=raw_NV.device)
    ids_NL = torch.cat((chosen_N1, best_NL), dim=-1)
    highest_N1 = raw_NV.amax(dim=-1, keepdim=True)
    total_N1 = integer_weights(raw_NV, highest_N1, LOG2_E).sum(dim=-1, keepdim=True)
    log_total_N1 = (total_N1.double() / WEIGHT_SCALE).log().float()
    logprobs_NL = raw_NV.gather(1, ids_NL) - highest_N1 - log_total_N1
    return ids_NL, logprobs_NL, torch.cat((rank_N1, ranks_L.expand(num_rows, -1)), dim=-1)


def has_penalties(request: Request) -> bool:
    """Whether a number of the request changes with the tokens it has had."""
    values = request.params.values()
    return any(
        one.number is not None and one.kind is SamplingKind.EVERYTHING and one.is_on(values[name])
        for name, one in PARAMETERS.items()
    )


def has_late_ids(request: Request) -> bool:
    """Whether some ids cannot come out yet."""
    return bool(request.late_ids) and len(request.output) < request.params.min_tokens
