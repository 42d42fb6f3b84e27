"""Messages with calls and their results, as chat templates take them.

Templates that know tools read the arguments of a call as a table. For a template that does not know them, calls and
results are written into the text of ordinary messages, and the tools into a system message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from playhead.engine.conversations import plain_messages
from playhead.serve.tools.definitions import ToolRequest

Message = Mapping[str, Any]

INSTRUCTION = """\
You can call functions. To call one, answer with nothing but JSON of this form, one object for each call:
{"name": "the function", "parameters": {"a parameter": "its value"}}
The result comes with the next message. The functions, with JSON schemas of their parameters:
"""


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages of a request as templates that know tools read them.

    Arguments become tables where they are JSON. A result gets the name of its function. No content is empty content:
    templates add texts up.
    """
    names: dict[object, str] = {}
    out = []
    for message in plain_messages(messages):
        new: dict[str, Any] = {**message, "content": message.get("content") or ""}
        if new.get("tool_calls"):
            new["tool_calls"] = [with_table(call) for call in new["tool_calls"]]
            names |= {call.get("id"): call["function"]["name"] for call in new["tool_calls"]}
        else:
            new.pop("tool_calls", None)
        if new["role"] == "tool" and not new.get("name") and new.get("tool_call_id") in names:
            new["name"] = names[new["tool_call_id"]]
        out.append(new)
    return out


def one_call_each(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages of a request as the template of gpt-oss reads them, which sees one call of a message and no more.

    Each call is a message, and its result follows it. The template takes what stands before a call as `thinking`, and
    refuses a message that has content beside it.
    """
    out: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for message in for_template(messages):
        if message["role"] == "tool" and waiting:
            # A result of no known call belongs to the first that has none.
            place = next((i for i, one in enumerate(waiting) if is_result(message, one)), 0)
            out += [waiting.pop(place), message]
            continue
        out += waiting
        waiting = list(split_calls(message))
        out += [] if waiting else [message]
    return out + waiting


def split_calls(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One message for each call of a message."""
    calls = message.get("tool_calls", ())
    thought = "\n".join(text for text in (message.get("reasoning_content"), message["content"]) if text)
    for i, call in enumerate(calls):
        yield {**message, "content": "", "tool_calls": [call]} | ({"thinking": thought} if thought and i == 0 else {})


def is_result(result: Message, called: Message) -> bool:
    """Whether this is the result of the call in that message."""
    return any(call.get("id") == result.get("tool_call_id") for call in called["tool_calls"])


def with_table(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call whose arguments are a table. Arguments that are no JSON object stay as they are."""
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    try:
        table = json.loads(arguments)
    except (ValueError, RecursionError, TypeError):
        table = arguments
    return {**call, "function": {**function, "arguments": table if isinstance(table, dict) else arguments}}


def as_text(messages: Sequence[Message], request: ToolRequest) -> list[dict[str, Any]]:
    """The messages of a request for a template that does not know tools."""
    out: list[dict[str, Any]] = []
    if request.tools:
        listed = json.dumps([tool.for_template()["function"] for tool in request.tools], ensure_ascii=False)
        out.append({"role": "system", "content": INSTRUCTION + listed})
    for message in as_texts(for_template(messages)):
        # Such templates want turns that alternate: neighbours of one role are one message.
        if out and out[-1]["role"] == message["role"]:
            out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n\n{message['content']}"}
        else:
            out.append(message)
    return out


def as_texts(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Each message with its calls or its result as text."""
    for message in messages:
        role, content = message["role"], message["content"]
        calls = [
            json.dumps(
                {"name": one["function"]["name"], "parameters": one["function"]["arguments"]}, ensure_ascii=False
            )
            for one in message.get("tool_calls", ())
        ]
        if role == "tool":
            role, content = "user", f"Result of {message.get('name') or 'the function'}:\n{content}"
        yield {"role": role, "content": "\n".join([*([content] if content else []), *calls])}
