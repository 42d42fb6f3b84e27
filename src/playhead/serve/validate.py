"""Requests as clients write them, made into what the library takes. Pure: no engine, no clock, no torch.

chat, responses    -> messages, ChatOptions, SamplingParams, RequestOptions
completions        -> prompts,               SamplingParams, RequestOptions

The checks are the library's: `SamplingParams`, `ChatOptions`, `RequestOptions` and, with the model at hand,
`PromptReader.check`. `RequestLimits` narrows them to what a client of a server may ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, cast

import msgspec

from playhead.engine.conversations import ChatOptions
from playhead.engine.front import RequestOptions
from playhead.errors import shown
from playhead.inputs import Prompt, Prompts, as_prompts
from playhead.request_limits import RequestLimits
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.serve.decode import BodyError, parse
from playhead.serve.protocol.chat import ChatRequest, Message, NamedChoice, RefusalPart, Tool, ToolCall, ToolChoice
from playhead.serve.protocol.completions import CompletionRequest
from playhead.serve.protocol.fields import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    SamplingFields,
    ServedFields,
    StreamOptions,
    StructuredFields,
)
from playhead.serve.protocol.notes import check_refused, notes_of

MAX_ID_DIGITS = 10
OWN_NAMES = ("max_tokens", "logit_bias", "prompt_logprobs")
SAMPLING_NAMES = tuple(
    one.name
    for one in msgspec.structs.fields(SamplingFields)
    if one.name not in {other.name for other in msgspec.structs.fields(ServedFields)} and one.name not in OWN_NAMES
)
"""Fields that `SamplingParams` has under the same name and with the same meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for one caller's requests to one model."""

    defaults: SamplingParams
    limits: RequestLimits
    tenant_salt: str = ""
    chat_template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a request's tokens are chosen, and how the request is treated."""

    params: SamplingParams
    options: RequestOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWanted(Wanted):
    """A conversation that can be written out. `tools` are those that the model may call."""

    messages: list[dict[str, object]]
    chat: ChatOptions
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionWanted(Wanted):
    """Prompts, each to be answered `params.n` times. With `echo` a prompt stands before its answers.

    With `is_scored` nothing but the prompt is wanted: `max_tokens` was 0, and the one token that a request generates at
    least is left out.
    """

    prompts: list[Prompt]
    echo: bool
    is_scored: bool


def validate_chat(request: ChatRequest, rules: Rules) -> ChatWanted:
    """A chat as the library takes it, or `RequestError`."""
    check_refused(request)
    check_stream_options(request.stream, request.stream_options)
    messages = [message_table(one, f"messages[{i}]", rules) for i, one in enumerate(request.messages)]
    tools = () if request.tool_choice == "none" else tuple(request.tools or ())
    check_tool_choice(request.tool_choice, request.tools or ())
    given = {
        **shared_params(request),
        "max_tokens": most_tokens(request),
        "logprobs": chat_logprobs(request.logprobs, request.top_logprobs),
        **structured(request.structured_outputs, request.response_format),
    }
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    return ChatWanted(
        params=checked_sampling(given, request, rules),
        options=request_options(request, rules),
        messages=messages,
        chat=ChatOptions(
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=[tool_table(tool) for tool in tools] or None,
            chat_template_kwargs=variables,
        ),
        tools=tools,
        tool_choice=request.tool_choice or "auto",
    )


def validate_completion(request: CompletionRequest, rules: Rules) -> CompletionWanted:
    """Completions as the library takes them, or `RequestError`."""
    check_refused(request)
    check_stream_options(request.stream, request.stream_options)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise BodyError(
            "best_of",
            shown(request.best_of),
            f"as many as n, {shown(request.n or 1)}",
            "Ask for n samples with logprobs.",
        )
    # A list that mixes ids and prompts has this type too, and is refused here.
    prompts = as_prompts(cast(Prompts, request.prompt))
    if not 1 <= len(prompts) <= rules.limits.prompts:
        wanted = f"1 to {rules.limits.prompts} in one request"
        raise BodyError("prompt", f"{len(prompts)} prompts", wanted, "Send several requests.")
    is_scored = request.echo and request.max_tokens == 0
    given = {
        **shared_params(request),
        **({"max_tokens": 1 if is_scored else request.max_tokens} if request.max_tokens is not None else {}),
        "logprobs": request.logprobs,
        **structured(request.structured_outputs, request.response_format),
    }
    if request.echo and request.logprobs is not None:
        given["prompt_logprobs"] = request.logprobs
    return CompletionWanted(
        params=checked_sampling(given, request, rules),
        options=request_options(request, rules),
        prompts=prompts,
        echo=request.echo,
        is_scored=is_scored,
    )


def shared_params(request: SamplingFields) -> dict[str, Any]:
    """The sampling fields that were given, under the names of `SamplingParams`."""
    given = {name: value for name in SAMPLING_NAMES if (value := attrgetter(name)(request)) is not None}
    if request.logit_bias is not None:
        given["logit_bias"] = {token_key(key): bias for key, bias in request.logit_bias.items()}
    if request.prompt_logprobs is not None:
        if request.stream:
            raise BodyError("prompt_logprobs", "a stream", "a whole answer", "Leave out stream or prompt_logprobs.")
        given["prompt_logprobs"] = request.prompt_logprobs
    return given


def token_key(key: str) -> int:
    """A token id as the keys of `logit_bias` write it: JSON has no other keys than text."""
    if not (key.isascii() and key.isdigit() and len(key) <= MAX_ID_DIGITS):
        raise BodyError("logit_bias", f"the key {shown(key)}", "token ids as decimal numbers", "Change it.")
    return int(key)


def most_tokens(request: ChatRequest) -> int | None:
    """How many tokens an answer may have; None for as many as the context has room for."""
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        found = f"{shown(new)}, and max_tokens is {shown(old)}"
        raise BodyError("max_completion_tokens", found, "one of them, or equal numbers", "Leave out max_tokens.")
    return old if new is None else new


def chat_logprobs(logprobs: bool | None, top: int | None) -> int | None:
    """How many of the best tokens are reported beside the chosen one; None for no report."""
    if not logprobs and top:
        raise BodyError("top_logprobs", shown(top), "logprobs to be true", "Say logprobs: true.")
    return (top or 0) if logprobs else None


def checked_sampling(given: Mapping[str, Any], request: ServedFields, rules: Rules) -> SamplingParams:
    """The model's defaults with what was given, within the limits."""
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    params = replace(rules.defaults, output_kind=kind, **given)
    rules.limits.check(params)
    return params


def request_options(request: ServedFields, rules: Rules) -> RequestOptions:
    return RequestOptions(
        priority=request.priority or 0,
        salt=joined_salt(rules.tenant_salt, request.cache_salt or ""),
        streams=bool(request.stream),
    )


def joined_salt(tenant: str, own: str) -> str:
    """One salt of a tenant's and a request's. It has the length of the first, so no two pairs give the same salt.

    ("ab", "c") gives "2:abc", ("a", "bc") gives "1:abc".
    """
    return f"{len(tenant)}:{tenant}{own}" if tenant or own else ""


def check_stream_options(stream: bool | None, options: StreamOptions | None) -> None:
    if options is not None and not stream:
        raise BodyError("stream_options", "no stream", "stream to be true", "Leave it out or say stream: true.")


def structured(fields: StructuredFields | None, response_format: ResponseFormat | None) -> dict[str, Any]:
    """What an answer must look like, as `SamplingParams` has it."""
    wanted: dict[str, object] | None = None
    match response_format:
        case JsonObjectFormat():
            wanted = {"json_object": True}
        case JsonSchemaFormat(json_schema=named):
            if named.schema is None:
                raise BodyError("response_format.json_schema.schema", "missing", "a JSON schema", "Add it.")
            wanted = {"json": named.schema}
    if fields is not None:
        if wanted is not None:
            found = "structured_outputs and response_format"
            raise BodyError("response_format", found, "one of them", "Leave one out.")
        wanted = {name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None}
    return {} if wanted is None else {"structured_outputs": wanted}


def check_tool_choice(choice: ToolChoice | None, tools: Sequence[Tool]) -> None:
    """Refuse a choice among tools that there are not."""
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise BodyError("tools", "two functions of one name", "a name for each", "Rename one.")
    if choice in (None, "none", "auto"):
        return
    if not tools:
        raise BodyError("tool_choice", shown(choice if isinstance(choice, str) else "a function"), "tools", "Add them.")
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        raise BodyError("tool_choice", shown(choice.function.name), f"one of {shown(names)}", "Change it.")


def tool_table(tool: Tool) -> dict[str, object]:
    """A tool as chat templates read it."""
    parameters = tool.function.parameters or {"type": "object", "properties": {}}
    function = {
        "name": tool.function.name,
        "description": tool.function.description or "",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def message_table(message: Message, path: str, rules: Rules) -> dict[str, object]:
    """A message as chat templates read it: content is text, and the arguments of calls are tables."""
    if message.content is None and message.role != "assistant":
        raise BodyError(f"{path}.content", "missing", "text", "Add it.", code="missing_required_parameter")
    # A template that does not know the newer name would leave the message out, or refuse it.
    is_unknown = message.role == "developer" and "developer" not in (rules.chat_template or "")
    table: dict[str, object] = {"role": "system" if is_unknown else message.role, "content": text_of(message)}
    if message.tool_calls:
        table["tool_calls"] = [called_table(one, f"{path}.tool_calls[{i}]") for i, one in enumerate(message.tool_calls)]
    optional = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_content or message.reasoning,
    }
    return table | {key: value for key, value in optional.items() if value is not None}


def text_of(message: Message) -> str | None:
    """A message's text. Its parts are joined by line ends, as the library joins them."""
    if not isinstance(message.content, list):
        return message.content
    return "\n".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in message.content)


def called_table(call: ToolCall, path: str) -> dict[str, object]:
    """A call of an earlier answer. Templates write its arguments anew, so they must be JSON."""
    text = call.function.arguments
    try:
        arguments = parse(text.encode()) if text.strip() else {}
    except BodyError as error:
        raise BodyError(f"{path}.function.arguments", error.found, "a JSON object as text", "Correct it.") from None
    if not isinstance(arguments, dict):
        raise BodyError(f"{path}.function.arguments", "JSON", "a JSON object as text", "Correct it.")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def ignored_fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The fields of a request that change nothing, with the reason. For the documents."""
    return {name: note.why for name, note in notes_of(kind).items() if not note.is_refused}


def refused_fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The fields of a request that are refused, with what to do instead. For the documents."""
    return {name: note.why for name, note in notes_of(kind).items() if note.is_refused}
