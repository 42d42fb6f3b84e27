"""From logits to tokens: one row per request, and no row sees another.

Order: bias, penalties, temperature, top-k, top-p, min-p, then the largest of logits plus Gumbel noise. The noise is
a hash of (seed, tokens generated so far, token id), so a request draws the same tokens alone, in any batch, in any
row, padded, captured or eager. Sums that decide something are sums of integers: floats would round differently in a
batch of another size.

Shapes: N requests of a step, R rows of running requests, V vocabulary, B bias entries, L reported logprobs. A trailing
1 is kept for broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from playhead.kernels.tokens import choose_tokens
from playhead.sampling_params import (
    GREEDY_BELOW,
    INT64_MAX,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
)

MAX_EOS_IDS = 16  # checkpoints list a handful
# Below this float32 turns a logit into infinity, and infinity times zero into a NaN that wins every argmax.
SMALLEST_REPETITION = 1e-6

# A softmax weight in (0, 1] becomes an integer of this many bits: 2^21 of them still fit 63 bits.
WEIGHT_SCALE = 2.0**42
ID_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """What the sampler must know of one request when it gets its row: all it has generated so far has been read.

    `ending_ids` are the ids that would end the request: they cannot be drawn before `min_tokens`.
    """

    params: SamplingParams
    seed: int
    num_generated: int
    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()
    ending_ids: Sequence[int] = ()

    @property
    def has_penalties(self) -> bool:
        params = self.params
        return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0

    def bias_entries(self) -> list[tuple[int, float, int]]:
        """(token id, addition, until): the addition holds while fewer than `until` tokens were generated."""
        entries = [(token, bias, INT64_MAX) for token, bias in self.params.logit_bias.items()]
        if self.num_generated < self.params.min_tokens:
            entries += [(token, -math.inf, self.params.min_tokens) for token in self.ending_ids]
        return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerNeeds:
    """What a step must compute, decided on the host. More than needed costs time and changes no bit of the result.

    Part of a graph's identity: the work and the widths of the inputs follow from it.
    """

    random: bool = False
    """Some row draws. Without it no noise is made."""
    sort: bool = False
    """Some row that draws has top-k or top-p: the vocabulary is sorted."""
    min_p: bool = False
    penalties: bool = False
    num_bias: int = 0
    num_logprobs: int = 0
    """Columns of the report: none, or the chosen token and as many of the best as were asked for."""

    def covers(self, other: SamplerNeeds) -> bool:
        """True if a sampler for these needs also serves the `other`."""
        return (
            self.random >= other.random
            and self.sort >= other.sort
            and self.min_p >= other.min_p
            and self.penalties >= other.penalties
            and self.num_bias >= other.num_bias
            and self.num_logprobs >= other.num_logprobs
        )


EVERYTHING = SamplerNeeds(
    random=True,
    sort=True,
    min_p=True,
    penalties=True,
    num_bias=MAX_LOGIT_BIAS + MAX_STOP_TOKEN_IDS + MAX_EOS_IDS,
    num_logprobs=1 + MAX_LOGPROBS,
)


def sampler_needs(rows: Sequence[SamplerRow]) -> SamplerNeeds:
    """The least that serves these rows. Greedy rows need no filter: a filter never removes the best token."""
    drawing = [row.params for row in rows if not row.params.is_greedy]
    wanted = [row.params.logprobs for row in rows if row.params.logprobs is not None]
    return SamplerNeeds(
        random=bool(drawing),
        sort=any(params.top_k > 0 or params.top_p < 1 for params in drawing),
        min_p=any(params.min_p > 0 for params in drawing),
        penalties=any(row.has_penalties for row in rows),
        num_bias=max((len(row.bias_entries()) for row in rows), default=0),
        num_logprobs=1 + max(wanted) if wanted else 0,
    )


VARIANTS = {
    SamplerNeeds(): "greedy",
    SamplerNeeds(random=True): "drawn",
    SamplerNeeds(random=True, sort=True, min_p=True): "filtered",
    EVERYTHING: "everything",
}
"""What steps are captured for, each covering those before it, and what they are called."""
GREEDY, DRAWN, *_ = VARIANTS


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
    """Tensors with one number per request. `tables` may be missing where the needs do not ask for them.

    An empty row is greedy and has nothing on: temperature and top_k 0, top_p and repetition 1, log_min_p -inf.
    """

    temperature_N: torch.Tensor
    top_k_N: torch.Tensor
    top_p_N: torch.Tensor
    log_min_p_N: torch.Tensor
    repetition_N: torch.Tensor
    presence_N: torch.Tensor
    frequency_N: torch.Tensor
    seeds_N: torch.Tensor
    positions_N: torch.Tensor
    """How many tokens the request has generated: the draw's number."""
    rows_N: torch.Tensor
    """The request's line of the tables."""
    parts_RX: torch.Tensor
    arrivals_R: torch.Tensor
    """Scratch of `choose_tokens`."""
    tables: SamplerTables | None = None


class SampledTokens(NamedTuple):
    """One token per row, and if the needs ask for it the chosen token followed by the best ones, best first.

    `logprobs_NL` are of the model's own distribution, the log-softmax of the raw logits before bias, penalties,
    temperature and filters (vLLM's `raw_logprobs`). `ranks_NL` count from 1; equal logits rank by the lower id.
    """

    tokens_N: torch.Tensor
    logprob_ids_NL: torch.Tensor
    logprobs_NL: torch.Tensor
    ranks_NL: torch.Tensor


def sample(logits_NV: torch.Tensor, inputs: SamplerInputs, needs: SamplerNeeds = EVERYTHING) -> SampledTokens:
    """One token per row, with fixed shapes and no look at a value on the host. The logits stay as they are.

    Equal scores go to the lowest id. A row of NaN gets some id of the vocabulary and disturbs no other row.
    """
    scores_NV = logits_NV
    if needs.num_bias:
        scores_NV = biased(scores_NV.float(), inputs)
    if needs.penalties:
        scores_NV = penalised(scores_NV.float(), inputs)
    if needs.sort or needs.min_p:
        scores_NV = filtered(scores_NV.float(), inputs, needs)
    tokens_N = torch.empty(len(logits_NV), dtype=torch.int64, device=logits_NV.device)
    # One way to choose for all needs: a draw rounds the same, whatever else its step computes.
    choose_tokens(
        scores_NV,
        inputs.temperature_N,
        inputs.seeds_N,
        inputs.positions_N,
        tokens_N,
        inputs.parts_RX,
        inputs.arrivals_R,
        GREEDY_BELOW,
        needs.random,
    )
    return report(logits_NV, tokens_N, needs.num_logprobs)


def biased(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """Logits with what the bias entries add while they hold.

    An id may stand twice only with infinities and zeros, so the order of the additions does not matter.
    """
    assert inputs.tables is not None, "rows with a bias have tables"
    ids_NB, values_NB, until_NB = (
        table[inputs.rows_N]
        for table in (inputs.tables.bias_ids_RB, inputs.tables.bias_values_RB, inputs.tables.bias_until_RB)
    )
    holds_NB = inputs.positions_N[:, None] < until_NB
    return logits_NV.scatter_add(1, ids_NB, torch.where(holds_NB, values_NB, 0.0))


def penalised(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """Repetition for ids of the prompt or the output, then frequency and presence for ids of the output."""
    assert inputs.tables is not None, "rows with penalties have tables"
    counts_NV = inputs.tables.output_counts_RV[inputs.rows_N]
    repeated_NV = inputs.tables.prompt_seen_RV[inputs.rows_N] | (counts_NV > 0)
    factor_NV = torch.where(repeated_NV, inputs.repetition_N[:, None], 1.0)
    logits_NV = torch.where(logits_NV > 0, logits_NV / factor_NV, logits_NV * factor_NV)
    logits_NV = logits_NV - inputs.frequency_N[:, None] * counts_NV
    return logits_NV - inputs.presence_N[:, None] * (counts_NV > 0)


def filtered(logits_NV: torch.Tensor, inputs: SamplerInputs, needs: SamplerNeeds) -> torch.Tensor:
    """-inf below the row's threshold, which is one of logits / temperature.

    All filters are thresholds, so equal logits stay or go together. The best token is never filtered, so a greedy row
    chooses the same.
    """
    temperature_N1 = inputs.temperature_N[:, None]
    scaled_NV = logits_NV / torch.where(temperature_N1 < GREEDY_BELOW, 1.0, temperature_N1)
    if needs.sort:
        logits_NV = torch.where(scaled_NV >= sorted_threshold(scaled_NV, inputs), logits_NV, -math.inf)
    if needs.min_p:
        # Probabilities relative to the best token are the same before top-k and after.
        threshold_N1 = scaled_NV.amax(dim=-1, keepdim=True) + inputs.log_min_p_N[:, None]
        logits_NV = torch.where(scaled_NV >= threshold_N1, logits_NV, -math.inf)
    return logits_NV


def sorted_threshold(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
    """[N, 1]: the least logit that top-k and then top-p keep.

    Top-p keeps a token if those before it hold less than p of what top-k left. With p 0.6:

        left by top-k   0.5  0.3  0.2
        before          0    0.5  0.8     -> the first two stay
    """
    vocab_size = logits_NV.shape[1]
    sorted_NV = logits_NV.sort(dim=-1, descending=True).values
    top_k_N1, top_p_N1 = inputs.top_k_N[:, None], inputs.top_p_N[:, None]
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
