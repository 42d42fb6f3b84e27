"""A forced choice through engine, grammar and parser: answers of a model that knows no tools are calls that fit.

Formats in which a model may reason first are left out: this model would not stop. `gemma` writes calls as `llama3`.
"""

from __future__ import annotations

import json

import jsonschema
import pytest

from playhead.serve.call import Call, Tenant
from playhead.serve.routes import ROUTES
from playhead.serve.service import Service, respond

CHAT = next(route for route in ROUTES if route.path == "/v1/chat/completions")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"type": "string", "enum": ["Rome", "Ulm", "São Paulo"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}},
    },
]


def asked(server, name: str, **fields: object) -> dict:
    """The answer of a server whose model writes calls in this format."""
    body = {"messages": [{"role": "user", "content": "Is it sunny?"}], "tools": TOOLS, "max_tokens": 120, **fields}
    call = Call(request_id="r", tenant=Tenant(), body=json.dumps(body).encode())
    answer = server.on_loop(respond(Service(backend=server.backend, tool_format=name), CHAT, call))
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "mistral-args", "none"])
def test_a_forced_answer_is_a_call_that_fits(server, name):
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    answer = asked(server, name, tool_choice="required", parallel_tool_calls=False, n=2, seed=5)
    for choice in answer["choices"]:
        (call,) = choice["message"]["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]])
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)


@pytest.mark.parametrize("name", ["hermes", "none"])
def test_a_named_function_is_the_one_that_is_called(server, name):
    answer = asked(server, name, tool_choice={"type": "function", "function": {"name": "clock"}})
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("clock", "{}")


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "none"])
def test_what_is_left_of_a_forced_call_that_was_cut_off_is_no_content(server, name):
    """At every length: before the name of the first call, in its arguments, and between two calls."""
    has_calls = set()
    for most in (1, 5, *range(20, 100, 8)):
        message = asked(server, name, tool_choice="required", max_tokens=most, temperature=0)["choices"][0]["message"]
        has_calls.add("tool_calls" in message)
        assert not message["content"], most
    assert has_calls == {False, True}
