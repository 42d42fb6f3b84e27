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

from playhead.outputs import CompletionOutput, FinishReason, Logprob
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


def wrong_tokens(logits_TV: torch.Tensor, asked: Asked, found: CompletionOutput) -> list[str]:
    """Tokens that could not come out, a greedy one that is not the best among them; and an end at the wrong place.

    `logits_TV` are of the prompt and the answer, from any model.
    """
    params, tokens = asked.params, found.token_ids
    wrong = []
    for i, token in enumerate(tokens):
        scores_V = scores_of(logits_TV[len(asked.prompt) - 1 + i], asked, tokens[:i])
        if not may_come_out(token, scores_V, params):
            wrong.append(f"token {i} is {token}, the best is {int(scores_V.argmax())}: {params}")
    is_end = [token in asked.ending_ids for token in tokens]
    reason = FinishReason.STOP if is_end[-1] else FinishReason.LENGTH
    if any(is_end[:-1]) or found.finish_reason is not reason or (not is_end[-1] and len(tokens) != params.max_tokens):
        wrong.append(f"{len(tokens)} tokens, {found.finish_reason}, ends at {is_end}: {params}")
    return wrong


def wrong_logprobs(logits_TV: torch.Tensor, asked: Asked, found: CompletionOutput) -> list[str]:
    """Tables that are not the log-softmax of the model's own logits: their entries, numbers, ranks and sum."""
    num_best, tokens = asked.params.logprobs, found.token_ids
    if num_best is None:
        return [] if found.logprobs is None and found.cumulative_logprob is None else ["nobody asked"]
    rows_TV = logits_TV[len(asked.prompt) - 1 :].double().log_softmax(dim=-1)
    assert found.logprobs is not None
    wrong = wrong_tables(rows_TV[: len(tokens)], tokens, found.logprobs, num_best)
    total = sum(float(row_V[token]) for row_V, token in zip(rows_TV, tokens, strict=False))
    if abs(total - found.cumulative_logprob) > ROUNDING * len(tokens):
        wrong.append(f"the sum is {found.cumulative_logprob}; wanted {total}")
    return wrong


def wrong_tables(
    rows_TV: torch.Tensor, tokens: Sequence[int], tables: Sequence[dict[int, Logprob]], num_best: int
) -> list[str]:
    """The chosen token first, then the best ones; ranks count from 1, over the whole vocabulary."""
    wrong = []
    for row_V, token, table in zip(rows_TV, tokens, tables, strict=True):
        best = row_V.topk(num_best).indices.tolist()
        if next(iter(table)) != token or not num_best <= len(table) <= num_best + 1:
            wrong.append(f"{list(table)}; wanted {token}, then {best}")
        for one, entry in table.items():
            least, most = int((row_V > row_V[one] + ROUNDING).sum()) + 1, int((row_V > row_V[one] - ROUNDING).sum())
            if abs(entry.logprob - float(row_V[one])) > ROUNDING or not least <= entry.rank <= most:
                wrong.append(f"{one}: {entry}; wanted {float(row_V[one])} at {least} to {most}")
            if one != token and least > num_best:
                wrong.append(f"{one} is not among the {num_best} best")
    return wrong


def pooled_chi_square(counts_V: torch.Tensor, wanted_V: torch.Tensor) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom. Tokens of which less than five are expected count as one."""
    expected_V = wanted_V * counts_V.sum()
    is_rare_V = expected_V < 5
    pairs = [(float(n), float(e)) for n, e in zip(counts_V[~is_rare_V], expected_V[~is_rare_V], strict=True)]
    rare = float(counts_V[is_rare_V].sum()), float(expected_V[is_rare_V].sum())
    pairs += [rare] if rare[1] > 0 else []
    return sum((n - e) ** 2 / e for n, e in pairs), len(pairs) - 1
