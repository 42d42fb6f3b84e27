"""What a caller gets back. Names are vLLM's. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from playhead.errors import PlayheadError


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

    `rank` counts from 1, the likeliest.
    """

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One generated sequence. `stop_reason` is the stop string or token id that ended it, if one did."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    cumulative_logprob: float | None = None
    logprobs: tuple[tuple[Logprob, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """When things happened, in seconds of one clock."""

    arrival_s: float
    first_token_s: float | None = None
    finished_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request's output so far; whole when `finished`.

    A request that failed has its `error`, the `finish_reason` error, and in `outputs` what it had until then.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(arrival_s=0.0))
    error: PlayheadError | None = None
