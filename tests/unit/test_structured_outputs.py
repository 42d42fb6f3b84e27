"""The form of an answer is checked when it is said: one kind, its type, its size and its depth."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from playhead import RequestOutput, SamplingParams, StructuredOutputs
from playhead.errors import RequestError
from playhead.structured_outputs import MAX_GRAMMAR_BYTES, MAX_GRAMMAR_DEPTH

ONE_OF_EACH = (
    {"json": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}},
    {"json": '{"type": "integer"}'},
    {"regex": r"\d{3}-\d{4}"},
    {"choice": ["yes", "no"]},
    {"grammar": 'start: "a" | "b"'},
    {"json_object": True},
)


def nested(depth: int) -> dict:
    return {} if depth == 1 else {"a": nested(depth - 1)}


@pytest.mark.parametrize("fields", ONE_OF_EACH, ids=lambda fields: next(iter(fields)))
def test_one_of_each_kind_is_kept_and_made_again_from_its_plain_values(fields):
    outputs = StructuredOutputs(**fields, disable_any_whitespace=True, before="start: /[a-z]*/")
    again = SamplingParams(**dataclasses.asdict(SamplingParams(structured_outputs=outputs))).structured_outputs
    assert outputs.kind == next(iter(fields))
    assert again == outputs == StructuredOutputs(**outputs.values())
    assert hash(again) == hash(outputs)
    json.dumps(outputs.values())  # plain values alone: they cross processes


def test_a_schema_keeps_the_order_of_its_properties_and_its_characters():
    schema = {"properties": {"z": {"const": "ä"}, "a": {}}}
    assert StructuredOutputs(json=schema).json == '{"properties":{"z":{"const":"ä"},"a":{}}}'
    assert StructuredOutputs(json=json.dumps(schema)) == StructuredOutputs(json=schema)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "structured_outputs: no kind; wanted exactly one of json, regex"),
        ({"json_object": False}, "no kind"),
        ({"before": "start: /a/"}, "no kind"),
        ({"regex": "a", "before": ""}, "'before': ''; wanted a text that is not empty"),
        ({"regex": "a", "before": "(" * (MAX_GRAMMAR_DEPTH + 1)}, "'before': brackets 33 deep"),
        ({"regex": "a", "choice": ["a"]}, "regex and choice; wanted exactly one"),
        ({"json": "{"}, "'json': text that is not JSON"),
        ({"json": "[" * 40_000}, "'json': text that is not JSON"),
        ({"json": '{"const": NaN}'}, "'json': text that is not JSON"),
        ({"json": "[]"}, "'json': a list; wanted a JSON schema"),
        ({"json": 7}, "'json': a int; wanted a JSON schema"),
        ({"json": {"const": {1, 2}}}, "values that JSON does not have"),
        ({"json": {"const": float("nan")}}, "values that JSON does not have"),
        ({"json": nested(MAX_GRAMMAR_DEPTH + 1)}, "deeper nesting; wanted a depth of at most 32"),
        ({"json": {"enum": list(range(MAX_GRAMMAR_BYTES))}}, "too many values"),
        ({"json": {"const": "x" * MAX_GRAMMAR_BYTES}}, "65548 bytes; wanted at most 65536"),
        ({"regex": ""}, "'regex': ''; wanted a text that is not empty"),
        ({"regex": b"a"}, "'regex': b'a'; wanted a text"),
        ({"regex": "a\0"}, r"U\+0000"),
        ({"regex": "\ud800"}, "not Unicode"),
        ({"regex": "x" * (MAX_GRAMMAR_BYTES + 1)}, "65537 bytes"),
        ({"regex": "(" * 33 + ")" * 33}, "brackets 33 deep; wanted at most 32"),
        ({"choice": []}, r"'choice': \[\]; wanted a list"),
        ({"choice": "yes"}, "'choice': 'yes'; wanted a list"),
        ({"choice": ["a", ""]}, "'choice': ''; wanted a list"),
        ({"choice": np.array(["a"])}, "'choice': array"),
        ({"grammar": 5}, "'grammar': 5"),
        ({"json_object": 1}, "'json_object': 1; wanted True or False"),
        ({"regex": "a", "disable_any_whitespace": None}, "'disable_any_whitespace': None"),
        ({"structural_tag": "x"}, "'structural_tag': no such field; .*Write the tags into a grammar"),
        ({"jsn": "x"}, "Did you mean json?"),
    ],
)
def test_what_cannot_be_a_form_is_refused_by_name(fields, says):
    with pytest.raises(RequestError, match=says):
        StructuredOutputs(**fields)


def test_brackets_are_counted_without_escaped_ones():
    assert StructuredOutputs(regex=r"\(" * 40).kind == "regex"


def test_a_dict_that_contains_itself_is_refused():
    cycle: dict = {}
    cycle["a"] = cycle
    with pytest.raises(RequestError, match="deeper nesting"):
        StructuredOutputs(json=cycle)


def test_choices_are_kept_once_in_their_order():
    assert StructuredOutputs(choice=["b", "a", "b"]).choice == ("b", "a")


@pytest.mark.parametrize("value", ["json", 5, RequestOutput, {1: 2}])
def test_a_sampling_field_takes_the_object_or_a_dict_of_its_fields(value):
    assert SamplingParams(structured_outputs={"regex": "a"}).structured_outputs == StructuredOutputs(regex="a")
    with pytest.raises(RequestError, match=r"sampling field 'structured_outputs': a .*wanted a StructuredOutputs"):
        SamplingParams(structured_outputs=value)


def test_a_structured_answer_cannot_go_on_after_its_end():
    with pytest.raises(RequestError, match="'ignore_eos': True; wanted False, because the end token is how"):
        SamplingParams(structured_outputs=StructuredOutputs(regex="a"), ignore_eos=True)
