"""Chat completions: what comes in, and what goes out whole or in chunks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from playhead.serve.protocol.fields import (
    Function,
    ReasoningEffort,
    ResponseFormat,
    SamplingFields,
    Scalar,
    StreamOptions,
)
from playhead.serve.protocol.notes import ignored, refused
from playhead.serve.protocol.usage import Usage

TEXT_ALONE = "Leave it out: answers are text."
OF_TEMPLATE = "Put it into chat_template_kwargs, for templates that know it."
SENT_BACK = "clients send back the whole message that they got"


class TextPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A part of a message's text."""

    text: str


class RefusalPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    """The text by which an assistant refused."""

    refusal: str


class CalledFunction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`arguments` is a JSON object as text."""

    name: str
    arguments: str
    parsed_arguments: Annotated[Any, ignored(SENT_BACK)] = UNSET


class ToolCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """A call that the model made. In a request `index` is left over from a stream and ignored."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | UnsetType = UNSET


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation. An assistant's message may have tool calls and no content."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | RefusalPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Another name of `reasoning_content`."""
    refusal: Annotated[str | None, ignored(SENT_BACK)] = None
    annotations: Annotated[list[Any] | None, ignored(SENT_BACK)] = None
    audio: Annotated[None, ignored(SENT_BACK)] = None
    function_call: Annotated[None, ignored(SENT_BACK)] = None
    parsed: Annotated[Any, ignored(SENT_BACK)] = None


class Tool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool: a function, for there are no others."""

    function: Function
    type: Literal["function"]


class NamedFunction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function that must be called."""

    name: str


class NamedChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tool that must be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


class ChatRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation that the model goes on with. `max_completion_tokens` is the newer name of `max_tokens`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    stream_options: StreamOptions | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: ReasoningEffort | None = None
    """For templates that know it."""
    include_reasoning: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    """False: a forced tool_choice makes one call. What the model does by itself is not changed."""
    verbosity: Annotated[Literal["low", "medium", "high"] | None, ignored("templates here do not know it")] = None
    prediction: Annotated[dict[str, Any] | None, ignored("it would change the speed, never the answer")] = None
    modalities: Annotated[list[str] | None, refused(TEXT_ALONE, ["text"])] = None
    audio: Annotated[Any, refused(TEXT_ALONE)] = None
    functions: Annotated[Any, refused("Use tools.", [])] = None
    function_call: Annotated[Any, refused("Use tool_choice.")] = None
    web_search_options: Annotated[Any, refused("Leave it out: the server opens no connection.")] = None
    moderation: Annotated[Any, refused("Leave it out: there is no moderation.")] = None
    chat_template: Annotated[str | None, refused("Leave it out: the model's own template is used.")] = None
    documents: Annotated[list[Any] | None, refused("Put documents into the messages.", [])] = None
    echo: Annotated[bool | None, refused("Use /v1/completions.", False)] = None
    best_of: Annotated[int | None, refused("Ask for n samples with logprobs.", 1)] = None
    add_special_tokens: Annotated[bool | None, refused("Leave it out: the template writes them.", False)] = None
    enable_thinking: Annotated[bool | None, refused(OF_TEMPLATE)] = None
    thinking: Annotated[Any, refused(OF_TEMPLATE)] = None


class TopLogprob(Struct, frozen=True, kw_only=True):
    """A token and its log-probability. `bytes` are the token's own, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct, frozen=True, kw_only=True):
    """The same of a chosen token, and the likeliest tokens at its place."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Struct, frozen=True, kw_only=True):
    """One entry for each token of an answer."""

    content: list[TokenLogprob] | None
    refusal: None = None


PromptLogprobs = list[dict[str, dict[str, Scalar]] | None]
"""vLLM's: for each token of the prompt a table by token id."""


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """The model's answer."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


FinishedBy = Literal["stop", "length", "tool_calls"]


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One sample. `stop_reason` is vLLM's: the stop string or token that ended it."""

    index: int
    message: AssistantMessage
    finish_reason: FinishedBy
    logprobs: ChoiceLogprobs | None = None
    stop_reason: str | int | None = None


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """A whole chat completion."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CalledDelta(Struct, frozen=True, kw_only=True):
    """A piece of a call: the name first, then pieces of the arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """A piece of the call number `index` of one answer. `id` and `type` come with the first piece."""

    index: int
    function: CalledDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class Delta(Struct, frozen=True, kw_only=True):
    """What is new in one sample. The role comes first."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """What is new in the sample number `index`."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishedBy | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class ChatChunk(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat completion. The last one, on request, has the usage and no choices."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
