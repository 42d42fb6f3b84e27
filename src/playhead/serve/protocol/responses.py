"""Responses: what comes in, what goes out, and the events of a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from playhead.serve.protocol.chat import TokenLogprob
from playhead.serve.protocol.fields import (
    JsonObjectFormat,
    ReasoningEffort,
    SamplingFields,
    TextFormat,
)
from playhead.serve.protocol.notes import ignored, refused

NOT_STORED = "Send the whole conversation as input: nothing is stored."
SENT_BACK = "clients send back the whole item that they got"
Role = Literal["system", "developer", "user", "assistant"]
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="input_text"):
    """A part of what was said to the model."""

    text: str


class OutputText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    """A part of what the model said. `annotations` are always empty: nothing is searched."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] | UnsetType | None = UNSET
    parsed: Annotated[Any, ignored(SENT_BACK)] = UNSET


class RefusalText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    """The text by which a model refused."""

    refusal: str


class ReasoningText(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"
):
    """A part of the model's reasoning."""

    text: str


class SummaryText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="summary_text"):
    """A part of a summary of reasoning."""

    text: str


Part = InputText | OutputText | RefusalText | ReasoningText | SummaryText


class InputItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item of the conversation so far: a message, a call, its result, or reasoning. `type` says which."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Role | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    id: Annotated[str | None, ignored(SENT_BACK)] = None
    status: Annotated[str | None, ignored(SENT_BACK)] = None
    summary: Annotated[list[Part] | None, ignored(SENT_BACK)] = None
    encrypted_content: Annotated[str | None, ignored(SENT_BACK)] = None
    phase: Annotated[str | None, ignored(SENT_BACK)] = None
    parsed_arguments: Annotated[Any, ignored(SENT_BACK)] = None
    caller: Annotated[None, ignored(SENT_BACK)] = None
    namespace: Annotated[None, ignored(SENT_BACK)] = None
    async_: Annotated[None, ignored(SENT_BACK)] = None


class SchemaFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """JSON that fits the schema."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer's text looks like."""

    format: TextFormat | JsonObjectFormat | SchemaFormat | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, ignored("templates here do not know it")] = None


class ReasoningOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much the model reasons, for templates that know it. Reasoning is given whole, and not summarised."""

    effort: ReasoningEffort | None = None
    summary: Annotated[str | None, ignored("reasoning is given whole")] = None
    generate_summary: Annotated[str | None, ignored("reasoning is given whole")] = None


class FunctionTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call. `parameters` is a JSON schema."""

    name: str
    type: Literal["function"]
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class NamedTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function that must be called."""

    name: str
    type: Literal["function"] = "function"


class ResponsesStreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing can be chosen: the last event always has the usage."""

    include_obfuscation: Annotated[bool | None, ignored("events are not padded")] = None


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text or a conversation that the model answers."""

    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    """With "message.output_text.logprobs" tokens have their log-probabilities; other words change nothing."""
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    reasoning: ReasoningOptions | None = None
    metadata: dict[str, str] | None = None
    """Given back with the response."""
    chat_template_kwargs: dict[str, Any] | None = None
    stream_options: ResponsesStreamOptions | None = None
    parallel_tool_calls: bool | None = None
    truncation: Annotated[Literal["auto", "disabled"] | None, refused("Shorten the input.", "disabled")] = None
    max_tool_calls: Annotated[int | None, ignored("it limits tools that the server runs, and there are none")] = None
    context_management: Annotated[list[Any] | None, refused("Shorten the input.", [])] = None
    previous_response_id: Annotated[str | None, refused(NOT_STORED)] = None
    conversation: Annotated[Any, refused(NOT_STORED)] = None
    background: Annotated[bool | None, refused("Wait for the answer, or stream it.", False)] = None
    prompt: Annotated[Any, refused("Write the prompt into input: there are no stored prompts.")] = None
    moderation: Annotated[Any, refused("Leave it out: there is no moderation.")] = None
    n: Annotated[int | None, refused("Send several requests.", 1)] = None
    max_tokens: Annotated[int | None, refused("It is called max_output_tokens here.")] = None
    prompt_logprobs: Annotated[int | None, refused("Use /v1/completions.")] = None


class OutputMessage(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """What the model said."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A function that the model calls. Its result is sent with `call_id`."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class OutputReasoning(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model wrote for itself before it answered."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[SummaryText] = []


OutputItem = OutputMessage | OutputCall | OutputReasoning


class InputTokensDetails(Struct, frozen=True, kw_only=True):
    """Tokens whose KV was in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True, kw_only=True):
    """Tokens of the model's reasoning."""

    reasoning_tokens: int


class ResponsesUsage(Struct, frozen=True, kw_only=True):
    """The tokens of the conversation and of the answer."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    """Why an answer is cut short."""

    reason: Literal["max_output_tokens"]


class ResponseError(Struct, frozen=True, kw_only=True):
    """Why there is no answer."""

    code: str
    message: str


class ResponsesAnswer(Struct, frozen=True, kw_only=True):
    """A response: whole, or as far as a stream has come."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    output: list[OutputItem]
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    top_logprobs: int
    tool_choice: Literal["none", "auto", "required"] | NamedTool
    tools: list[FunctionTool]
    text: TextOptions
    reasoning: ReasoningOptions
    user: str | None
    usage: ResponsesUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    error: ResponseError | None = None
    object: Literal["response"] = "response"
    background: Literal[False] = False
    previous_response_id: None = None
    store: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"


class StreamEvent(Struct, frozen=True, kw_only=True):
    """One event of a stream. `type` says which, and each kind has some of these fields."""

    type: str
    sequence_number: int
    response: ResponsesAnswer | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
