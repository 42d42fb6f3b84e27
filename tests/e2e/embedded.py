"""Prompts for the embedded model, and comparing what two runs generated."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache

from playhead.llm import LLM, EngineConfig
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams

TIE = 1e-4  # two best candidates closer than this in logits are decided by rounding


@lru_cache(maxsize=4)  # a real model weighs a gigabyte
def shared_llm(config: EngineConfig, model: str = "embedded") -> LLM:
    """One loaded model per configuration: what ran before must not matter, which is one more thing this tests."""
    return LLM(model, config)


def token_prompts(count: int, *, longest: int, seed: int = 0) -> list[list[int]]:
    """Random texts as ids, from one token to `longest`, the longest included."""
    rng = random.Random(seed)
    lengths = [1, longest, *(rng.randint(1, longest) for _ in range(count - 2))]
    return [[1, *(rng.randrange(3, 4096) for _ in range(n - 1))] for n in lengths]


def sampling(kind: str, i: int, num_tokens: int, *, logprobs: int | None = None) -> SamplingParams:
    """Greedy, or drawn with a seed, every other request with filters."""
    usual = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=logprobs)
    if kind == "greedy":
        return usual
    drawn = replace(usual, temperature=0.9, seed=100 + i)
    return replace(drawn, top_p=0.95, top_k=50) if i % 2 else drawn


def reference(kind: str, i: int, num_tokens: int) -> SamplingParams:
    """The same, with the two best logprobs, to tell a tie."""
    return sampling(kind, i, num_tokens, logprobs=2)


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def is_tie(output: RequestOutput, position: int) -> bool:
    """Whether the model's two best candidates there are within rounding of each other."""
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    by_rank = {entry.rank: entry for entry in logprobs[position].values()}
    return by_rank[1].logprob - by_rank[2].logprob < TIE


def first_difference(a: list[int], b: list[int]) -> int | None:
    """The first position at which two runs of one length chose differently."""
    return next((j for j, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)


def differences(found: list[RequestOutput], wanted: list[RequestOutput]) -> tuple[list[str], int]:
    """Where two runs differ, and how many of their differences began at a tie."""
    real, num_ties = [], 0
    for i, (a, b) in enumerate(zip(tokens_of(found), tokens_of(wanted), strict=True)):
        at = first_difference(a, b)
        if at is not None and is_tie(wanted[i], at):
            num_ties += 1
        elif at is not None:
            real.append(f"request {i} differs at token {at}: {a[at]} instead of {b[at]}")
    return real, num_ties
