"""Tokens of a text or a conversation, and the text of tokens. Bodies are vLLM's."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from playhead.serve.protocol.chat import Message, Tool


class TokenizeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either `prompt`, or `messages` with the options of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds what it puts around a text: by default for a prompt, not for messages."""
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeAnswer(Struct, frozen=True, kw_only=True):
    """`token_strs` only on request."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token ids of this model."""

    tokens: list[Annotated[int, Meta(ge=0)]]
    model: str | None = None


class DetokenizeAnswer(Struct, frozen=True, kw_only=True):
    """The text of the tokens, special ones included."""

    prompt: str
