"""JSON is parsed only where it is small, and what it says is unchanged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playhead.models.checkpoint.bounded_json import MAX_DEPTH, parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(value=VALUES, indent=st.sampled_from([None, 2]), is_ascii=st.booleans())
def test_a_value_within_bounds_is_read_as_it_is(value, indent, is_ascii):
    written = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    assert parse_json(written.encode(errors="surrogatepass"), max_values=10_000) == value


@pytest.mark.parametrize("depth", [1, 7, MAX_DEPTH])
def test_depth_up_to_the_bound_is_read(depth):
    value = b"[" * depth + b"]" * depth
    assert parse_json(value, max_values=1000) == json.loads(value)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested deeper"),
        (b'{"a": ' * 70 + b"1" + b"}" * 70, "nested deeper"),
        (b"[1,2,3]", "values"),
        (b"1" * 129, "129 digits"),
        (b"-0." + b"1" * 200, "digits"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'"' + b"\\" * 1001, "Unterminated"),
        (b'"\\' * 100_000, "Unterminated"),
        (b"\xff\xfe\xff", "decode"),
    ],
)
def test_what_is_too_large_or_wrong_is_a_value_error(raw, says):
    with pytest.raises(ValueError, match=says):
        parse_json(raw, max_values=2 if says == "values" else 1000, unique_keys=True)


def test_brackets_in_strings_are_no_depth():
    assert parse_json(json.dumps({"a": "[{" * 500, "b\\": '"['}).encode(), max_values=5000) == {
        "a": "[{" * 500,
        "b\\": '"[',
    }
