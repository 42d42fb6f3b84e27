"""Bodies are decoded strictly: what is not exactly right is refused, and the refusal names the field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playhead.serve.decode import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_STRINGS,
    MAX_VALUES,
    BodyError,
    decode,
    parse,
)
from playhead.serve.protocol.chat import ChatRequest
from playhead.serve.protocol.completions import CompletionRequest

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def refusal(body: bytes, kind=ChatRequest) -> BodyError:
    with pytest.raises(BodyError) as caught:
        decode(body, kind)
    return caught.value


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "body: nothing"),
        (b" ", "cannot be read"),
        (b"[]", "a JSON list"),
        (b'"text"', "a JSON string"),
        (b"1", "a JSON number"),
        (b"true", "a JSON boolean"),
        (b"null", "a JSON null"),
        (b"{", "cannot be read"),
        (b'{"a":1}}', "cannot be read"),
        (b"{'a':1}", "cannot be read"),
        (b'{"a":1,}', "cannot be read"),
        (b'{"a":NaN}', "cannot be read"),
        (b'{"a":Infinity}', "cannot be read"),
        (b'{"a":-Infinity}', "cannot be read"),
        (b'{"a":1e999}', "cannot be read"),
        (b'{"a":01}', "cannot be read"),
        (b'{"a":' + b"9" * 5000 + b"}", "cannot be read"),
        (b'{"a":"\x01"}', "cannot be read"),
        (b'{"a":"\\x41"}', "cannot be read"),
        (b'{"a":"\\ud800"}', "cannot be read"),
        (b'\xef\xbb\xbf{"a":1}', "cannot be read"),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6;"),
        ('{"é":"é'.encode() + b'\xff"}', "not UTF-8 at byte 9;"),
        (b'{"a":"\xc0\x80"}', "not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a":1,"a":2}', "the key 'a' twice"),
        (b'{"b":{"a":1,"a":1}}', "the key 'a' twice"),
        (b'{"b":[{"x":1},{"a":1,"b":[],"a":null}]}', "the key 'a' twice"),
        (b'{"a":1,"\\u0061":2}', "the key 'a' twice"),
        (b"[" * (MAX_DEPTH + 1), f"deeper than {MAX_DEPTH}"),
        (b'{"a":' * (MAX_DEPTH + 1), f"deeper than {MAX_DEPTH}"),
        (b"[{" * MAX_DEPTH, f"deeper than {MAX_DEPTH}"),
        (b"[]," * (MAX_CONTAINERS + 1), "lists and objects"),
        (b'"",' * (MAX_STRINGS + 1), "strings"),
        (b"[" + b"1," * MAX_VALUES + b"1]", "values"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else value,
)
def test_a_body_that_is_not_plain_json_is_refused(body, says):
    assert says in str(refusal(body))


def test_depth_is_allowed_up_to_the_limit():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse(text.encode()) == json.loads(text)


def test_brackets_and_colons_inside_of_strings_do_not_count():
    value = {"a": "[" * 1000 + "{:" * 1000, "b": '\\"[[{"a":1,"a":2}', 'c":': "\\"}
    assert parse(json.dumps(value).encode()) == value


def test_a_key_may_come_again_in_another_object():
    value = {"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}
    assert parse(json.dumps(value).encode()) == value


def test_escaped_characters_are_read():
    assert parse(b'{"a":"\\ud83d\\ude00\\n"}') == {"a": "\U0001f600\n"}


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stream", 0, "stream"),
        ("stream", "true", "stream"),
        ("n", 1.0, "n"),
        ("n", "1", "n"),
        ("n", True, "n"),
        ("temperature", "0.5", "temperature"),
        ("temperature", True, "temperature"),
        ("top_p", [], "top_p"),
        ("stop", 3, "stop"),
        ("stop", ["a", 3], "stop[1]"),
        ("seed", 1.5, "seed"),
        ("logprobs", 1, "logprobs"),
        ("logit_bias", {"5": "1"}, "logit_bias"),
        ("logit_bias", [], "logit_bias"),
        ("messages", "hello", "messages"),
        ("messages", [], "messages"),
        ("messages", ["hello"], "messages[0]"),
        ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ("messages", [{"role": "user", "content": ["hello"]}], "messages[0].content[0]"),
        ("messages", [{"role": "king", "content": "hello"}], "messages[0].role"),
        ("messages", [{"content": "hello"}], "messages[0].role"),
        ("messages", [{"role": "user", "content": "hello", "colour": "red"}], "messages[0].colour"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
        ("stream_options", {"include": True}, "stream_options.include"),
        ("response_format", {"type": "yaml"}, "response_format.type"),
        ("response_format", {}, "response_format.type"),
        ("response_format", "json_object", "response_format"),
        ("tools", [{"type": "function"}], "tools[0].function"),
        ("tools", [{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ("tool_choice", "perhaps", "tool_choice"),
        ("priority", 2**40, "priority"),
        ("cache_salt", "", "cache_salt"),
        ("metadata", {"a": 1}, "metadata"),
        ("model", 5, "model"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_path(field, value, param):
    error = refusal(json.dumps({**HELLO, field: value}).encode())
    assert error.param == param
    assert str(error).startswith(f"{param}: ")


def test_an_unknown_field_is_refused_with_the_nearest_name():
    error = refusal(json.dumps({**HELLO, "temperture": 1}).encode())
    assert (error.param, error.code) == ("temperture", "unknown_parameter")
    assert "Did you mean 'temperature'?" in str(error)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"messages": [{"role": "function"}]},
            "messages[0].role",
            "'assistant', 'developer', 'system', 'tool', 'user'",
        ),
        ({"response_format": {"type": "regex"}}, "response_format.type", "'json_object', 'json_schema', 'text'"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "tools[0].type", "'function'"),
        ({"tool_choice": "any"}, "tool_choice", "'auto', 'none', 'required'"),
        ({"verbosity": "loud"}, "verbosity", "'high', 'low', 'medium'"),
    ],
)
def test_a_word_that_is_not_known_is_refused_with_those_that_are(fields, param, words):
    error = refusal(json.dumps(HELLO | fields).encode())
    assert (error.param, error.code, error.wanted) == (param, "invalid_value", f"one of {words}")


def test_a_missing_field_is_named():
    error = refusal(b"{}", CompletionRequest)
    assert (error.param, error.code) == ("prompt", "missing_required_parameter")


def test_a_picture_is_refused_in_words():
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    error = refusal(json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode())
    assert error.param == "messages[0].content[0].type"
    assert "images, audio and video are not read" in str(error)


@pytest.mark.parametrize("prompt", [[1, True], [1, 2.0], [[1, "2"]], [None], {"a": 1}, 5, True, [[[1]]]])
def test_a_prompt_of_other_things_than_text_and_ids_is_refused(prompt):
    error = refusal(json.dumps({"prompt": prompt}).encode(), CompletionRequest)
    assert error.param is not None
    assert error.param.startswith("prompt")


def test_a_refusal_is_short_whatever_was_sent():
    long = "x" * 100_000
    for body in ({long: 1}, {"messages": [{"role": long}]}, {**HELLO, "tool_choice": long}):
        assert len(str(refusal(json.dumps(body).encode()))) < 1000


class Pairs(list):
    """The pairs of an object, whose keys may come twice."""


KEYS = st.text(st.sampled_from('ab":{}[],\\\n\u00e9'), max_size=2)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(KEYS, inner), max_size=3).map(Pairs),
    max_leaves=12,
)


def written(value) -> str:
    """JSON of a value with `Pairs`."""
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}: {written(inner)}" for key, inner in value) + "}"
    if isinstance(value, list):
        return "[" + " , ".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def repeats(value) -> bool:
    inner = [one for _, one in value] if isinstance(value, Pairs) else value if isinstance(value, list) else []
    own = isinstance(value, Pairs) and len({key for key, _ in value}) < len(value)
    return own or any(map(repeats, inner))


@given(VALUES)
def test_json_is_read_as_the_standard_library_reads_it_unless_a_key_comes_twice(value):
    body = written(value)
    if repeats(value):
        with pytest.raises(BodyError, match="twice"):
            parse(body.encode())
    else:
        assert parse(body.encode()) == json.loads(body)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(body):
    try:
        parse(body)
    except BodyError:
        return
    json.loads(body)
