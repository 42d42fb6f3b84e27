"""Completions of plain prompts: what comes in, and what goes out whole or in chunks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from playhead.serve.protocol.chat import PromptLogprobs
from playhead.serve.protocol.fields import ResponseFormat, SamplingFields, StreamOptions
from playhead.serve.protocol.notes import refused
from playhead.serve.protocol.usage import Usage


class CompletionRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt or several. A prompt is text or token ids; `prompt` is one, or a list of them."""

    prompt: str | list[str | int | list[int]]
    stream_options: StreamOptions | None = None
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None
    """Only as many as `n`: all samples that are made are given."""
    response_format: ResponseFormat | None = None
    max_completion_tokens: Annotated[int | None, refused("It is called max_tokens here.")] = None
    add_special_tokens: Annotated[bool | None, refused("Send token ids, which are taken as they are.", True)] = None
    prompt_embeds: Annotated[Any, refused("A prompt is text or token ids: Playhead takes no embeddings.")] = None
    suffix: Annotated[str | None, refused("Models here continue a prompt; they do not fill gaps.", "")] = None


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    """One entry for each token in each list. `text_offset` is where a token begins in the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One sample of one prompt: sample i of prompt p has the index p * n + i."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionAnswer(Struct, frozen=True, kw_only=True):
    """A whole completion, or one chunk of a streamed one."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET
