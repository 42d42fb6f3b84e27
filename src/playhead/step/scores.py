"""What bias, penalties and filters make of logits, and the logprobs that are reported: the rare part of sampling.

`filtered(penalised(biased(logits)))` is what a token is drawn from. What is wide and rare is in tables on the device.
Sums that decide something are sums of integers: floats would round differently in a batch of another size.

Shapes: N requests of a step, R rows of running requests, V vocabulary, B bias entries, L reported logprobs. A trailing
1 is kept for broadcasting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from playhead.errors import INT64_MAX
from playhead.graph.capture import Inputs
from playhead.sampling_params import GREEDY_BELOW, MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, PARAMETERS, SamplingKind
from playhead.schedule.request import Request
from playhead.types import Row

MAX_EOS_IDS = 16  # checkpoints list a handful
MAX_BIAS_ENTRIES = MAX_LOGIT_BIAS + MAX_STOP_TOKEN_IDS + MAX_EOS_IDS

# A softmax weight in (0, 1] becomes an integer of this many bits: 2^21 of them still fit 63 bits.
WEIGHT_SCALE = 2.0**42
ID_BITS = 32


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

    @classmethod
    def empty(cls, num_rows: int, vocab_size: int, device: torch.device) -> SamplerTables:
        """Tables in which no row has anything."""

        def zeros(width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros((num_rows, width), dtype=dtype, device=device)

        return cls(
            bias_ids_RB=zeros(MAX_BIAS_ENTRIES, torch.int64),
            bias_values_RB=zeros(MAX_BIAS_ENTRIES, torch.float32),
            bias_until_RB=zeros(MAX_BIAS_ENTRIES, torch.int64),
            prompt_seen_RV=zeros(vocab_size, torch.bool),
            output_counts_RV=zeros(vocab_size, torch.int32),
        )

    def clear_(self, row: Row) -> None:
        """Whatever was written or counted for a row is gone."""
        for table in self.tensors:
            table[row].zero_()

    def write_(self, row: Row, request: Request) -> None:
        """A request into an empty row, ordered before what is launched next on this stream."""
        device, entries = self.bias_ids_RB.device, bias_entries(request)
        if entries:
            columns = zip(*entries, strict=True)
            for table, numbers in zip(
                (self.bias_ids_RB, self.bias_values_RB, self.bias_until_RB), columns, strict=True
            ):
                table[row, : len(entries)] = torch.tensor(numbers, dtype=table.dtype).to(device)
        if has_penalties(request):
            prompt, output = (
                torch.tensor(ids, dtype=torch.int64).to(device) for ids in (request.prompt, request.output)
            )
            self.prompt_seen_RV[row, prompt] = True
            self.count_(torch.full_like(output, row), output)

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


def logprobs_of(
    logits_NV: torch.Tensor, tokens_N: torch.Tensor, num_best: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, logprobs and ranks [N, 1 + num_best]: of the chosen token, then of the best ones, best first."""
    num_rows, vocab_size = logits_NV.shape
    raw_NV = logits_NV.float()
    num_best = min(num_best, vocab_size)
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
    return ids_NL, logprobs_NL, torch.cat((rank_N1, ranks_L.expand(num_rows, -1)), dim=-1)


def ranking_keys(logits_NV: torch.Tensor) -> torch.Tensor:
    """Distinct integers in the order of the logits, equal logits by lower id first: `topk` leaves ties open."""
    vocab_size = logits_NV.shape[1]
    bits_NV = (logits_NV + 0.0).view(torch.int32)  # -0.0 becomes 0.0: they are equal
    ordered_NV = bits_NV ^ ((bits_NV >> 31) & 0x7FFFFFFF)  # as integers, negative floats run backwards
    ids_V = torch.arange(vocab_size, dtype=torch.int64, device=logits_NV.device)
    return (ordered_NV.to(torch.int64) << ID_BITS) + (vocab_size - 1 - ids_V)


def has_penalties(request: Request) -> bool:
    """Whether a number of the request changes with the tokens it has had."""
    values = request.params.values()
    return any(
        one.number is not None and one.kind is SamplingKind.EVERYTHING and one.is_on(values[name])
        for name, one in PARAMETERS.items()
    )


def bias_entries(request: Request) -> list[tuple[int, float, int]]:
    """(token id, addition, until): the addition holds while fewer than `until` tokens were generated.

    The ids that would end the request cannot be drawn before `min_tokens`.
    """
    params = request.params
    entries = [(token, bias, INT64_MAX) for token, bias in params.logit_bias.items()]
    if len(request.output) < params.min_tokens:
        entries += [(token, -math.inf, params.min_tokens) for token in request.ending_ids]
    return entries
