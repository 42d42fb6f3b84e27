"""The scanner agrees with the standard library on what JSON is, whatever the pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playhead.serve.tools.json_scanner import MAX_DEPTH, JsonScanner, Status

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


def scan(text: str, size: int) -> tuple[Status, int]:
    """The status after pieces of this size, and how much was read."""
    scanner, at = JsonScanner(), 0
    for end in [*range(size, len(text), size), len(text)]:
        at = scanner.read(text, at, end)
    return scanner.status, at


@given(OBJECTS, st.booleans(), st.integers(1, 5))
def test_an_object_ends_where_the_standard_library_ends_it(value, is_ascii, size):
    text = json.dumps(value, ensure_ascii=is_ascii, indent=None if is_ascii else 1)
    assert scan(text + " tail", size) == (Status.WHOLE, len(text))


@given(OBJECTS, st.integers(0, 200), st.sampled_from('{}[]",:\\x0-1.e\n tu'), st.integers(1, 5))
def test_a_character_put_in_is_a_fault_exactly_if_the_result_is_no_json(value, place, char, size):
    text = json.dumps(value)
    place = 1 + place % max(1, len(text) - 1)
    text = text[:place] + char + text[place:]
    try:
        _, end = json.JSONDecoder().raw_decode(text)
        is_json = True
    except ValueError:
        is_json = False
    status, at = scan(text, size)
    assert (status is Status.WHOLE) == is_json
    if is_json:
        assert at == end


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 01 }',
        '{"a": NaN }',
        '{"a": tru }',
        '{"a" 1}',
        "{a: 1}",
        '{"a": 1,}',
        '{"a": "\n"}',
        '{"a": "\\x"}',
        "[1 2]",
        '"a"',
        "1 ",
    ],
)
def test_what_is_no_json_object_or_array_is_a_fault(text):
    assert scan(text, 1)[0] is Status.FAULTY


def test_nesting_is_bounded():
    assert scan("[" * MAX_DEPTH, 7)[0] is Status.OPEN
    assert scan("[" * (MAX_DEPTH + 1), 7) == (Status.FAULTY, MAX_DEPTH)


def test_an_unfinished_number_is_not_read_yet():
    """It could still become no number at all."""
    assert scan('{"a": 12', 3) == (Status.OPEN, 6)
