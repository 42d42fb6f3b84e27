"""What a caller gets back. Names are vLLM's. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from playhead.errors import PlayheadError

SHOWN_ITEMS = 8
SHOWN_CHARS = 60


class FinishReason(StrEnum):
    """Why a request ended; the first two are vLLM's words."""

    STOP = "stop"
    """By a stop string, a stop token, or the model's own end token."""
    LENGTH = "length"
    """`max_tokens` were generated, or the context is full."""
    ABORT = "abort"
    """Its caller left or aborted it."""
    ERROR = "error"
    """Its `RequestOutput.error` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """The log-probability of one token under the model's own distribution, before temperature and filters.

    `rank` counts from 1, the likeliest. `decoded_token` is the token's text inside a text; None if no text was asked
    for, or the model came without a tokenizer.

    >>> params = SamplingParams(temperature=0, max_tokens=2, logprobs=1)
    >>> completion = llm.generate("The whale", params)[0].outputs[0]
    >>> completion.logprobs[0][completion.token_ids[0]].rank
    1
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompletionOutput:
    """One generated sequence. `stop_reason` is the stop string or token id that ended it, if one did.

    `logprobs` has a table for every token of `token_ids`, by token id: the chosen token first, then the best ones.

    >>> params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    >>> completion = llm.generate("The whale", params)[0].outputs[0]
    >>> completion.index, len(completion.token_ids), completion.finish_reason == "length"
    (0, 4, True)
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def __repr__(self) -> str:
        reason = None if self.finish_reason is None else str(self.finish_reason)
        parts = [f"index={self.index}", f"text={brief_text(self.text)}", f"token_ids={brief_list(self.token_ids)}"]
        if self.logprobs is not None:
            parts += [f"cumulative_logprob={self.cumulative_logprob}", f"logprobs=<{len(self.logprobs)} tables>"]
        parts += [f"finish_reason={reason!r}", f"stop_reason={self.stop_reason!r}"]
        return f"CompletionOutput({', '.join(parts)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """When things happened, in seconds of one clock."""

    arrival_s: float
    first_token_s: float | None = None
    finished_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RequestOutput:
    """A request's output so far; whole when `finished`.

    A request that failed has its `error`, the `finish_reason` error, and in `outputs` what it had until then.
    `prompt_logprobs` has a table for every prompt token, as `CompletionOutput.logprobs` has; the first token has None,
    because no token stands before it.

    >>> output = llm.generate("The whale", SamplingParams(n=2, max_tokens=2))[0]
    >>> output.prompt, output.finished, len(output.outputs)
    ('The whale', True, 2)
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(arrival_s=0.0))
    error: PlayheadError | None = None

    def __repr__(self) -> str:
        prompt = "None" if self.prompt is None else brief_text(self.prompt)
        parts = [f"request_id={self.request_id!r}", f"prompt={prompt}"]
        parts.append(f"prompt_token_ids={brief_list(self.prompt_token_ids)}")
        if self.prompt_logprobs is not None:
            parts.append(f"prompt_logprobs=<{len(self.prompt_logprobs)} tables>")
        parts += [f"outputs={self.outputs!r}", f"finished={self.finished}"]
        if self.error is not None:
            parts.append(f"error={self.error!r}")
        return f"RequestOutput({', '.join(parts)})"


def brief_text(text: str) -> str:
    """A text as a `repr` shows it: its beginning, and how long it is."""
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}... <{len(text)} characters>"


def brief_list(numbers: Sequence[int]) -> str:
    """Numbers as a `repr` shows them: the first few, and how many there are."""
    if len(numbers) <= SHOWN_ITEMS:
        return repr(list(numbers))
    return f"[{', '.join(map(str, numbers[:SHOWN_ITEMS]))}, ... <{len(numbers)} ids>]"
