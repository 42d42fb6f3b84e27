"""Tools of a request and the choice among them: what is taken, and what is refused in which words."""

from __future__ import annotations

import pytest

from playhead.errors import RequestError
from playhead.request_limits import RequestLimits
from playhead.serve.tools.definitions import Choice, tool_request


def function(name: str = "weather", **fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **fields}}


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [function(description="The weather.", parameters=SCHEMA), function("clock")]


def deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_tools_are_shown_and_may_be_called_where_nothing_is_chosen():
    request = tool_request(TOOLS)
    assert (request.choice, request.names, request.is_forced) == (Choice.AUTO, {"weather", "clock"}, False)
    assert request.for_template() == [
        {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}},
        {
            "type": "function",
            "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}},
        },
    ]


def test_none_shows_no_tools():
    request = tool_request(TOOLS, "none")
    assert (request.names, request.for_template(), request.is_forced) == (frozenset(), None, False)


def test_required_forces_any_and_a_name_forces_one():
    assert [tool.name for tool in tool_request(TOOLS, "required").forced] == ["weather", "clock"]
    named = tool_request(TOOLS, {"type": "function", "function": {"name": "clock"}})
    assert (named.choice, named.names) == (Choice.NAMED, {"clock"})
    assert named == tool_request(TOOLS, {"type": "function", "name": "clock"})


def test_a_function_may_be_written_as_responses_write_it():
    assert tool_request([{"type": "function", "name": "clock"}]).names == {"clock"}


def test_no_tools_are_no_tools():
    for request in (tool_request(None), tool_request([]), tool_request(None, "auto"), tool_request(None, "none")):
        assert (request.names, request.for_template()) == (frozenset(), None)


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ("weather", "tools: a str; wanted a list of tools"),
        ([{"type": "web_search"}], "tools[0]: {'type': 'web_search'}; wanted a tool of type \"function\""),
        ([function("")], "tools[0], name: ''; wanted 1 to 64 letters"),
        ([function("a b")], "tools[0], name: 'a b'"),
        ([function("a" * 65)], "tools[0], name"),
        ([function(description=3)], "tools[0], description: a int; wanted a text"),
        ([function(description="x" * 16_385)], "tools[0], description: 16385 characters; wanted at most 16384"),
        ([function(parameters=[1])], "tools[0], parameters: a list; wanted a JSON schema"),
        ([function(parameters={"type": "string"})], "tools[0], parameters: 'string'; wanted a JSON schema"),
        ([function(parameters=deep(40))], "tools[0], parameters: deeper nesting; wanted a depth of at most 32"),
        ([function(parameters={"type": "object", "title": "x" * 70_000})], "bytes; wanted at most 65536"),
        ([function(), function()], "tools[1]: the name 'weather' again; wanted each name once"),
        ([function(f"f{i}") for i in range(129)], "tools: 129 tools; wanted at most 128"),
        ([function(f"f{i}", description="x" * 16_000) for i in range(20)], "tools: over 262144 bytes in all"),
    ],
)
def test_bad_tools_are_refused(tools, says):
    with pytest.raises(RequestError) as caught:
        tool_request(tools)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "choice", "says"),
    [
        (TOOLS, "any", 'tool_choice: \'any\'; wanted "none", "auto", "required"'),
        (TOOLS, {"type": "function", "function": {"name": "rm"}}, "tool_choice: 'rm'; wanted a tool named 'rm'"),
        (TOOLS, {"type": "allowed_tools"}, "tool_choice: {'type': 'allowed_tools'}"),
        (None, "required", "tool_choice: 'required'; wanted tools in 'tools'"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(tools, choice, says):
    with pytest.raises(RequestError) as caught:
        tool_request(tools, choice)
    assert says in str(caught.value)


def test_limits_can_be_set():
    with pytest.raises(RequestError, match="2 tools; wanted at most 1 here"):
        tool_request(TOOLS, limits=RequestLimits(tools=1))
