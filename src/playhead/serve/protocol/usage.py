"""How many tokens a request took."""

from __future__ import annotations

from msgspec import Struct


class PromptTokensDetails(Struct, frozen=True, kw_only=True):
    """Tokens whose KV was in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(Struct, frozen=True, kw_only=True):
    """Tokens of the model's reasoning, which stands before its answer."""

    reasoning_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    """The tokens of all prompts and of all samples."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage(num_prompt: int, num_completion: int, *, num_cached: int, num_reasoning: int = 0) -> Usage:
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=num_reasoning),
    )
