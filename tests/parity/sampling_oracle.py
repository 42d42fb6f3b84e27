"""What a token may be and how likely it is, by the published definitions, one step at a time.

The order is the one that vLLM documents for its sampler: allowed ids, bad words, min_tokens, logit_bias, penalties,
temperature, min_p, top_k, top_p. Each part is transformers' own processor where there is one. Presence and frequency
are OpenAI's formula. Nothing here is Playhead's but the names of the parameters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers.generation import logits_process as theirs

from playhead.sampling_params import SamplingParams

GREEDY_BELOW = 1e-5
ROUNDING = 2e-3  # two float32 models of the same weights differ by less in any logit
SHARE_ROUNDING = 1e-4


@dataclass(frozen=True)
class Asked:
    """A request as the oracle reads it: `eos_ids` are the model's, `bad_words` token ids."""

    prompt: tuple[int, ...]
    params: SamplingParams
    eos_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def ending_ids(self) -> frozenset[int]:
        eos = frozenset() if self.params.ignore_eos else self.eos_ids
        return eos | frozenset(self.params.stop_token_ids or ())

    @property
    def waiting_ids(self) -> list[int]:
        """What cannot come before `min_tokens`: "before EOS or stop_token_ids can be generated"."""
        return sorted(self.eos_ids | frozenset(self.params.stop_token_ids or ()))


def scores_of(logits_V: torch.Tensor, asked: Asked, output: Sequence[int]) -> torch.Tensor:
    """What is compared or drawn from: the logits after masks, bias and penalties."""
    params, scores = asked.params, logits_V.double()[None]
    outputs, everything = (torch.tensor([list(ids)], dtype=torch.int64) for ids in (output, (*asked.prompt, *output)))
    if params.allowed_token_ids is not None:
        allow = theirs.PrefixConstrainedLogitsProcessor(lambda _, __: list(params.allowed_token_ids), num_beams=1)
        scores = allow(outputs, scores)
    if asked.bad_words:  # only what was generated counts
        scores = theirs.NoBadWordsLogitsProcessor([list(word) for word in asked.bad_words])(outputs, scores)
    if params.min_tokens and asked.waiting_ids:
        waits = theirs.MinNewTokensLengthLogitsProcessor(len(asked.prompt), params.min_tokens, asked.waiting_ids)
        scores = waits(everything, scores)
    if params.logit_bias:
        bias = {(token,): float(value) for token, value in params.logit_bias.items()}
        scores = theirs.SequenceBiasLogitsProcessor(bias)(outputs, scores)
    if params.repetition_penalty != 1:
        scores = theirs.RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty))(everything, scores)
    for token, count in Counter(output).items():
        scores[0, token] -= params.frequency_penalty * count + params.presence_penalty
    return scores[0]


def probabilities(scores_V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """How likely each token is; zero where a filter takes it away."""
    if params.temperature < GREEDY_BELOW:
        return torch.nn.functional.one_hot(scores_V.argmax(), len(scores_V)).double()
    filters = [theirs.TemperatureLogitsWarper(float(params.temperature))]
    if params.min_p > 0:
        filters.append(theirs.MinPLogitsWarper(float(params.min_p)))
    if params.top_k > 0:
        filters.append(theirs.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        filters.append(theirs.TopPLogitsWarper(float(params.top_p)))
    scores = scores_V[None]
    for one in filters:
        scores = one(torch.zeros((1, 0), dtype=torch.int64), scores)
    return scores[0].softmax(dim=-1)


def may_come_out(token: int, scores_V: torch.Tensor, params: SamplingParams) -> bool:
    """Whether a token has a chance, or is within rounding of having one."""
    if math.isinf(scores_V[token]):
        return False
    if probabilities(scores_V, params)[token] > 0:
        return True
    near_V = scores_V.clone()
    near_V[token] += ROUNDING
    share = min(1.0, params.top_p + SHARE_ROUNDING)
    return bool(probabilities(near_V, replace(params, top_p=share))[token] > 0)
