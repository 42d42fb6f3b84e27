"""Responses through the `openai` package: items in, items out, and the order of a stream's events."""

from __future__ import annotations

import pytest

ITEMS = {
    "text": "Who is there?",
    "message": [{"role": "user", "content": "Who is there?"}],
    "parts": [{"role": "user", "content": [{"type": "input_text", "text": "Who is there?"}]}],
    "typed": [{"type": "message", "role": "user", "content": "Who is there?"}],
}


def test_a_response_has_its_parts(ask):
    made = ask.respond(metadata={"a": "b"}, user="me", **ask.exact)
    assert made.id.startswith("resp_")
    assert (made.object, made.model, made.metadata) == ("response", ask.model, {"a": "b"})
    assert made.output[0].type == "message"
    assert made.output[0].content[0].text == made.output_text
    assert made.usage.output_tokens == 8
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("form", list(ITEMS))
def test_every_form_of_input_is_the_same_conversation(ask, form):
    chat = ask.chat([{"role": "user", "content": "Who is there?"}])
    assert ask.respond(ITEMS[form]).output_text == chat.choices[0].message.content


def test_instructions_are_the_first_message(ask):
    chat = ask.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who is there?"}])
    made = ask.respond(instructions="Be brief.")
    assert made.output_text == chat.choices[0].message.content
    assert made.instructions == "Be brief."


def test_an_answer_can_be_sent_back(ask):
    first = ask.respond()
    items = [{"role": "user", "content": "Who is there?"}, *(one.model_dump() for one in first.output)]
    second = ask.respond([*items, {"role": "user", "content": "Come in."}], **ask.exact)
    assert second.output_text


@pytest.mark.parametrize("most", [1, 3])
def test_an_answer_is_as_long_as_it_may_be(ask, most):
    assert ask.respond(max_output_tokens=most, **ask.exact).usage.output_tokens == most


def test_a_response_that_ends_by_itself_is_completed(ask):
    whole = ask.respond(**ask.exact).output_text
    made = ask.respond(extra_body={"stop": [whole[2:5]], "ignore_eos": True})
    assert (made.status, made.incomplete_details) == ("completed", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1, "extra_body": {"seed": 4}},
        {"top_p": 1e-6, "temperature": 1},
        {"store": False, "parallel_tool_calls": False, "service_tier": "auto", "prompt_cache_key": "x"},
        {"reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
        {"truncation": "disabled", "background": False, "include": []},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_the_same_request_gives_the_same_answer(ask, fields):
    assert ask.respond(**fields).output_text == ask.respond(**fields).output_text


def test_logprobs_come_where_they_are_included(ask):
    made = ask.respond(include=["message.output_text.logprobs"], top_logprobs=2, **ask.exact)
    entries = made.output[0].content[0].logprobs
    assert len(entries) == 8
    assert "".join(one.token for one in entries) == made.output_text
    assert all(len(one.top_logprobs) == 2 for one in entries)


@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 1, "extra_body": {"seed": 3}}, {"max_output_tokens": 1}, {"max_output_tokens": 40}],
    ids=["greedy", "drawn", "one", "long"],
)
def test_a_stream_is_the_whole_response_in_pieces(ask, fields):
    whole, events = ask.respond(**fields), ask.respond(stream=True, **fields)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last = events[-1].response
    assert events[-1].type == f"response.{whole.status}"
    assert (last.output_text, last.status) == (whole.output_text, whole.status)
    assert last.usage.output_tokens == whole.usage.output_tokens


def test_the_events_of_a_stream_come_in_order(ask):
    events = ask.respond(stream=True, **ask.exact)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    ids = {event.item_id for event in events if event.type.startswith("response.output_text")}
    assert ids == {events[-1].response.output[0].id}
    done = next(event for event in events if event.type == "response.output_text.done")
    assert done.text == events[-1].response.output_text


def test_a_streamed_report_belongs_to_its_text(ask):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    events = ask.respond(stream=True, **fields, **ask.exact)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    tokens = [one.token for event in deltas for one in event.logprobs]
    assert "".join(tokens) == events[-1].response.output_text


def test_a_stream_that_is_left_early_ends_its_request(ask, served):
    made = ask.client.responses.create(
        model=ask.model, input="Who is there?", max_output_tokens=150, stream=True, extra_body={"ignore_eos": True}
    )
    assert len(ask.items(made, 5)) == 5
    served.wait_until_idle()
    assert ask.respond().output_text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"max_tokens": 2}}, "max_tokens"),
        ({"extra_body": {"colour": "red"}}, "colour"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_served_is_refused_before_a_stream_begins(ask, fields, param, stream):
    error = ask.refusal(ask.respond, stream=stream, **fields)
    assert (error.status_code, error.param) == (400, param)


@pytest.mark.parametrize(
    "items",
    [
        [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}],
        [{"type": "item_reference", "id": "msg_1"}],
        [{"type": "function_call", "name": "f", "arguments": "{}"}],
        [],
    ],
    ids=["image", "reference", "call without id", "nothing"],
)
def test_items_that_cannot_be_read_are_refused(ask, items):
    error = ask.refusal(ask.respond, items)
    assert error.status_code == 400
    assert error.param.startswith("input")


@pytest.mark.parametrize("most", [2, 12])
def test_the_packages_own_reader_of_streams_adds_up_a_response(ask, most):
    wanted = {"model": ask.model, "input": "Who is there?", "temperature": 0, "max_output_tokens": most, **ask.exact}
    events, stream = ask.managed(ask.client.responses.stream(**wanted))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    whole = ask.run(ask.client.responses.create(**wanted))
    assert "".join(deltas) == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert stream is not None
