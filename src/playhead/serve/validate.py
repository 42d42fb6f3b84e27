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
from playhead.serve.decode import BodyError
from playhead.serve.protocol.chat import ChatRequest, Message, RefusalPart
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
from playhead.serve.protocol.notes import check_refused
from playhead.serve.protocol.responses import InputItem, Part, RefusalText, ResponsesRequest, SchemaFormat
from playhead.serve.tools.definitions import ToolRequest, tool_request

MAX_ID_DIGITS = 10
JSON_FORMS = {"json", "json_object"}
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
    """A conversation that can be written out, and the tools that the model may or must call."""

    messages: list[dict[str, object]]
    chat: ChatOptions
    tools: ToolRequest


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
    given = {
        **shared_params(request),
        "max_tokens": most_tokens(request),
        "logprobs": chat_logprobs(request.logprobs, request.top_logprobs),
        **structured(request.structured_outputs, request.response_format),
    }
    return ChatWanted(
        params=checked_sampling(given, request, rules),
        options=request_options(request, rules),
        messages=message_tables(request.messages, rules),
        chat=ChatOptions(
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            chat_template_kwargs=template_variables(request.chat_template_kwargs, request.reasoning_effort),
        ),
        tools=tools_of(request, rules.limits),
    )


def validate_responses(request: ResponsesRequest, rules: Rules) -> ChatWanted:
    """A response's conversation as the library takes it, or `RequestError`."""
    check_refused(request)
    wants_logprobs = "message.output_text.logprobs" in (request.include or ())
    given = {
        **shared_params(request),
        "max_tokens": request.max_output_tokens,
        "logprobs": chat_logprobs(wants_logprobs, request.top_logprobs, "include to have message.output_text.logprobs"),
        **structured(request.structured_outputs, None if request.text is None else request.text.format),
    }
    effort = None if request.reasoning is None else request.reasoning.effort
    return ChatWanted(
        params=checked_sampling(given, request, rules),
        options=request_options(request, rules),
        messages=item_tables(request, rules),
        chat=ChatOptions(chat_template_kwargs=template_variables(request.chat_template_kwargs, effort)),
        tools=tools_of(request, rules.limits),
    )


def tools_of(request: ChatRequest | ResponsesRequest, limits: RequestLimits) -> ToolRequest:
    """The tools that the model is shown, and those that it must call."""
    return tool_request(
        msgspec.to_builtins(request.tools),
        msgspec.to_builtins(request.tool_choice),
        is_parallel=request.parallel_tool_calls is not False,
        limits=limits,
    )


def template_variables(given: Mapping[str, object] | None, effort: str | None) -> dict[str, object]:
    """The variables of the chat template that a request sets."""
    return ({} if effort is None else {"reasoning_effort": effort}) | dict(given or {})


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


def chat_logprobs(logprobs: bool | None, top: int | None, wanted: str = "logprobs to be true") -> int | None:
    """How many of the best tokens are reported beside the chosen one; None for no report."""
    if not logprobs and top:
        raise BodyError("top_logprobs", shown(top), wanted, "Change one of them.")
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
    if options is not None:
        check_refused(options, "stream_options")


def structured(
    fields: StructuredFields | None, response_format: ResponseFormat | SchemaFormat | None
) -> dict[str, Any]:
    """What an answer must look like, as `SamplingParams` has it."""
    wanted: dict[str, object] | None = None
    match response_format:
        case JsonObjectFormat():
            wanted = {"json_object": True}
        case JsonSchemaFormat(json_schema=named):
            if named.schema is None:
                raise BodyError("response_format.json_schema.schema", "missing", "a JSON schema", "Add it.")
            wanted = {"json": named.schema}
        case SchemaFormat():
            wanted = {"json": response_format.schema}
    if fields is not None:
        if wanted is not None:
            found = "structured_outputs and response_format"
            raise BodyError("response_format", found, "one of them", "Leave one out.")
        wanted = {name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None}
    if wanted is None:
        return {}
    if not JSON_FORMS.isdisjoint(wanted):
        # A small model may write white space between two parts of JSON until its answer is cut off.
        wanted = {"disable_any_whitespace": True, **wanted}
    return {"structured_outputs": wanted}


def message_tables(messages: Sequence[Message], rules: Rules) -> list[dict[str, object]]:
    """Messages as the library takes them. Their content is text."""
    return [message_table(one, f"messages[{i}]", rules) for i, one in enumerate(messages)]


def message_table(message: Message, path: str, rules: Rules) -> dict[str, object]:
    if message.content is None and message.role != "assistant":
        raise BodyError(f"{path}.content", "missing", "text", "Add it.", code="missing_required_parameter")
    table: dict[str, object] = {"role": known_role(message.role, rules), "content": text_of(message)}
    optional = {
        "tool_calls": [called_table(one.id, one.function.name, one.function.arguments) for one in message.tool_calls]
        if message.tool_calls
        else None,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_content or message.reasoning,
    }
    return table | {key: value for key, value in optional.items() if value is not None}


def known_role(role: str, rules: Rules) -> str:
    """A template that does not know the newer name of "system" would leave the message out, or refuse it."""
    return "system" if role == "developer" and "developer" not in (rules.chat_template or "") else role


def text_of(message: Message) -> str | None:
    """A message's text. Its parts are joined by line ends, as the library joins them."""
    if not isinstance(message.content, list):
        return message.content
    return "\n".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in message.content)


def called_table(call_id: str, name: str, arguments: str) -> dict[str, object]:
    """A call of an earlier answer."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def item_tables(request: ResponsesRequest, rules: Rules) -> list[dict[str, object]]:
    """The instructions and the items of a response's input as messages.

    Calls belong to the assistant's message before them, as they did in the answer; templates refuse two messages of the
    assistant in a row. Reasoning belongs to the message after it.
    """
    tables: list[dict[str, object]] = []
    if request.instructions is not None:
        tables.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*tables, {"role": "user", "content": request.input}]
    reasoning: str | None = None
    calls: list[dict[str, object]] | None = None
    for i, item in enumerate(request.input):
        if item.type == "function_call" and calls is not None:
            calls.append(item_call(item, f"input[{i}]"))
            tables[-1]["tool_calls"] = calls
            continue
        calls = None
        if item.type == "reasoning":
            reasoning = parts_text(item.content)
            continue
        table = item_table(item, f"input[{i}]", rules)
        if table["role"] == "assistant":
            calls = []
            table |= {"reasoning_content": reasoning} if reasoning else {}
        if item.type == "function_call":
            calls = [item_call(item, f"input[{i}]")]
            table["tool_calls"] = calls
        reasoning = None
        tables.append(table)
    return tables


def item_table(item: InputItem, path: str, rules: Rules) -> dict[str, object]:
    """A message, a call that still lacks its function, or a result."""
    if item.type == "function_call":
        return {"role": "assistant", "content": None}
    if item.type == "function_call_output":
        wanted = {"call_id": item.call_id, "output": item.output}
        check_given(path, wanted)
        return {"role": "tool", "tool_call_id": item.call_id, "content": parts_text(item.output)}
    check_given(path, {"role": item.role, "content": item.content})
    return {"role": known_role(item.role or "user", rules), "content": parts_text(item.content)}


def item_call(item: InputItem, path: str) -> dict[str, object]:
    check_given(path, {"call_id": item.call_id, "name": item.name, "arguments": item.arguments})
    return called_table(item.call_id or "", item.name or "", item.arguments or "")


def check_given(path: str, fields: Mapping[str, object]) -> None:
    """Refuse an item that lacks a field which its type must have."""
    for name, value in fields.items():
        if value is None:
            raise BodyError(f"{path}.{name}", "missing", "", "Add it.", code="missing_required_parameter")


def parts_text(content: str | Sequence[Part] | None) -> str:
    """The text of an item. Its parts are joined by line ends, as those of messages are."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.refusal if isinstance(part, RefusalText) else part.text for part in content)
