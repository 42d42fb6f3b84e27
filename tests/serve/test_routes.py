"""Routes over a scripted backend: parsers, refusals with their own status, errors in the middle of a stream."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import jsonschema
import msgspec
import pytest

from playhead.errors import EngineStopped, NoTokenLeft, RequestFailed, RequestTimedOut, StepFailed
from playhead.outputs import CompletionOutput, FinishReason, Logprob, RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.serve.assemble import make_application
from playhead.serve.auth import KeyRing
from playhead.serve.call import Answer, Call, EventStream, Tenant
from playhead.serve.config import ServeConfig
from playhead.serve.openapi import document
from playhead.serve.routes import ROUTES
from playhead.serve.routes.turn import added_stops
from playhead.serve.service import Service, respond
from playhead.serve.tools.formats import OutputSettings
from playhead.testing.scripted_backend import ScriptedBackend, embedded_tokenizer
from tests.serve.listening import listening

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
FLAT = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
BY_PATH = {(route.method, route.path): route for route in ROUTES}
GENERATING = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
}


def call(service: Service, path: str, body: object, *, method: str = "POST", salt: str = "", value: str = ""):
    """The answer, or the events of the stream, with what was counted."""
    made = Call(
        request_id="r1",
        tenant=Tenant(salt=salt),
        body=body if isinstance(body, bytes) else json.dumps(body).encode(),
        path_value=value,
    )

    async def work():
        answer = await respond(service, BY_PATH[method, path], made)
        if not isinstance(answer, EventStream):
            return answer
        events = b"".join([part async for part in answer.events])
        answer.close()
        return events

    return asyncio.run(work()), made


def ask(service: Service, path: str, **body):
    found, _ = call(service, path, body)
    assert isinstance(found, Answer)
    return found.status, json.loads(found.body)


def stream(service: Service, path: str, **body) -> list[dict]:
    """The data of a stream's events, without [DONE]."""
    found, _ = call(service, path, {**body, "stream": True})
    assert isinstance(found, bytes), found
    assert found.endswith(b"\n\n")
    data = [event.partition("data: ")[2] for event in found.decode().split("\n\n")[:-1]]
    if not path.endswith("responses") and "error" not in json.loads(data[-1] if data[-1] != "[DONE]" else "{}"):
        assert data[-1] == "[DONE]"
    return [json.loads(one) for one in data if one != "[DONE]"]


def chunks_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("path", sorted(GENERATING))
def test_a_full_queue_refuses_before_a_body_is_read(path):
    """Under too much load most requests are refused: one must cost less than reading its prompt."""
    found, made = call(Service(backend=ScriptedBackend(room=0)), path, b"no JSON")
    assert isinstance(found, Answer)
    assert (found.status, json.loads(found.body)["error"]["code"]) == (429, "queue_full")
    assert made.spent.num_prompt_tokens == 0


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_call_is_found_in_an_answer_whole_or_streamed(size):
    service = Service(backend=ScriptedBackend(pieces=chunks_of("Well. " + CALL, size)), tool_format="hermes")
    _, body = ask(service, "/v1/chat/completions", messages=HELLO, tools=[WEATHER])
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"].strip() == "Well."
    assert [one["function"]["name"] for one in choice["message"]["tool_calls"]] == ["weather"]
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Rome"}

    pieces = [one["choices"][0] for one in stream(service, "/v1/chat/completions", messages=HELLO, tools=[WEATHER])]
    calls = [call for piece in pieces for call in piece["delta"].get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "weather"
    assert calls[0]["id"]
    assert json.loads("".join(call["function"].get("arguments", "") for call in calls)) == {"city": "Rome"}
    assert "".join(piece["delta"].get("content") or "" for piece in pieces).strip() == "Well."
    assert pieces[-1]["finish_reason"] == "tool_calls"


def test_text_that_looks_like_a_call_is_content_without_tools():
    service = Service(backend=ScriptedBackend(pieces=[CALL]), tool_format="hermes")
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        _, body = ask(service, "/v1/chat/completions", messages=HELLO, **fields)
        assert body["choices"][0]["message"] == {"content": CALL, "role": "assistant", "refusal": None}


@pytest.mark.parametrize("size", [1, 1000])
def test_a_response_has_an_item_for_text_and_one_for_each_call(size):
    service = Service(backend=ScriptedBackend(pieces=chunks_of("Well. " + CALL, size)), tool_format="hermes")
    _, body = ask(service, "/v1/responses", input="hello", tools=[FLAT])
    assert [item["type"] for item in body["output"]] == ["message", "function_call"]
    assert json.loads(body["output"][1]["arguments"]) == {"city": "Rome"}
    assert body["status"] == "completed"

    events = stream(service, "/v1/responses", input="hello", tools=[FLAT])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert json.loads("".join(deltas)) == {"city": "Rome"}
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [(event["output_index"], event["item"]["type"]) for event in added] == [(0, "message"), (1, "function_call")]
    last = events[-1]
    assert last["type"] == "response.completed"
    assert [item["type"] for item in last["response"]["output"]] == ["message", "function_call"]


def test_a_response_reports_the_tokens_of_its_message_and_counts_those_of_its_reasoning():
    """Whole and streamed alike. The text of "<" waits, for a call may begin with it, and its report waits with it."""
    tokenizer = embedded_tokenizer()
    ids = tokenizer.encode("<|channel>thought\nHm, so<channel|>Ay, a < b", add_special_tokens=False)
    backend = ScriptedBackend(pieces=[tokenizer.token_text(one) for one in ids], token_ids=ids)
    service = Service(backend=backend, tool_format="gemma4")
    fields = {"input": "hello", "tools": [FLAT], "include": ["message.output_text.logprobs"]}
    _, whole = ask(service, "/v1/responses", **fields)
    streamed = stream(service, "/v1/responses", **fields)[-1]["response"]
    for body in (whole, streamed):
        thought, message = body["output"]
        assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "Hm, so")
        (part,) = message["content"]
        assert part["text"] == "".join(one["token"] for one in part["logprobs"]) == "Ay, a < b"
        num_thought = body["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert num_thought == len(tokenizer.encode("Hm, so", add_special_tokens=False))


def test_calls_are_written_as_the_template_for_tools_writes_them(monkeypatch):
    service = Service(backend=ScriptedBackend())
    monkeypatch.setattr(service.backend.reader.tokenizer, "tool_template", "<tool_call>")
    assert service.format.name == "hermes"


@pytest.mark.parametrize("streams", [False, True])
def test_a_form_begins_where_the_reasoning_has_ended(streams):
    """Templates of reasoning models end prompts so."""
    backend = ScriptedBackend(pieces=["Hm", "<channel|>", '{"a"', ": 1}"])
    service = Service(backend=backend, tool_format="gemma4")
    messages = [*HELLO, {"role": "assistant", "content": "<|channel>thought\n"}]
    body = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    for fields in ({}, {"response_format": {"type": "json_object"}}):
        if streams:
            deltas = [one["choices"][0]["delta"] for one in stream(service, "/v1/chat/completions", **body, **fields)]
            said = {name: "".join(one.get(name) or "" for one in deltas) for name in ("reasoning_content", "content")}
        else:
            said = ask(service, "/v1/chat/completions", **body, **fields)[1]["choices"][0]["message"]
        assert (said["reasoning_content"], said["content"]) == ("Hm", '{"a": 1}'), fields
    plain, formed = (checked.params.structured_outputs for checked in backend.submitted)
    assert plain is None
    assert formed.before == service.format.before_form(service.token_names, prompt_end="<|channel>thought\n")


def test_what_a_client_puts_before_a_form_stays():
    backend = ScriptedBackend(pieces=["{}"])
    service = Service(backend=backend, tool_format="gemma4")
    own = 'start: "so: "'
    for path, said in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "hello"})):
        ask(service, path, **said, structured_outputs={"json_object": True, "before": own})
        assert backend.submitted[-1].params.structured_outputs.before == own


def test_the_models_own_end_is_no_stop_token_of_the_format():
    """It would be the `stop_reason` of every answer with tools, and of no other."""
    settings = OutputSettings(skip_special_tokens=True, stop_token_ids=(2, 9))
    assert added_stops(SamplingParams(), settings, frozenset({2})) == (9,)
    assert added_stops(SamplingParams(ignore_eos=True), settings, frozenset({2})) == ()


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_cached_tokens_of_a_prompt_count_whether_it_is_answered_or_not(max_tokens):
    service = Service(backend=ScriptedBackend(pieces=["a"], num_cached_tokens=3))
    body = {"prompt": ["a", "b"], "echo": True, "max_tokens": max_tokens}
    _, whole = ask(service, "/v1/completions", **body)
    streamed = stream(service, "/v1/completions", **body, stream_options={"include_usage": True})[-1]
    for usage in (whole["usage"], streamed["usage"]):
        assert usage["prompt_tokens_details"]["cached_tokens"] == 6
        assert usage["completion_tokens"] == 2 * max_tokens


BAD = {"type": "object", "properties": {"a": {"type": "strin"}}}
BAD_TOOL = {"type": "function", "function": {"name": "f", "parameters": BAD}}
NOT_AN_OBJECT = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
BAD_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": BAD}}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"response_format": BAD_FORMAT}, "response_format"),
        ("/v1/chat/completions", {"tools": [BAD_TOOL], "tool_choice": "required"}, "tools"),
        ("/v1/chat/completions", {"structured_outputs": {"json": BAD}}, "structured_outputs.json"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/completions", {"response_format": BAD_FORMAT}, "response_format"),
        ("/v1/completions", {"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ("/v1/completions", {"logprobs": 21}, "logprobs"),
        ("/v1/chat/completions", {"max_tokens": 0}, "max_tokens"),
        ("/v1/chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens"),
        ("/v1/responses", {"max_output_tokens": 0}, "max_output_tokens"),
        (
            "/v1/chat/completions",
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0]",
        ),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": BAD}}}, "text.format"),
        ("/v1/responses", {"tools": [{**FLAT, "parameters": BAD}], "tool_choice": "required"}, "tools"),
    ],
)
def test_a_refusal_names_the_field_that_was_sent(path, fields, param):
    status, body = ask(Service(backend=ScriptedBackend()), path, **GENERATING[path], **fields)
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, param, "invalid_value")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_an_answer_that_cannot_fit_is_refused_under_the_name_that_was_sent(path, field):
    status, body = ask(Service(backend=ScriptedBackend()), path, **GENERATING[path], **{field: 10**6})
    error = body["error"]
    assert (status, error["param"], error["code"]) == (400, field, "context_length_exceeded")
    assert error["message"].startswith(f"sampling field '{field}'")


@pytest.mark.parametrize(("prompts", "n", "wanted"), [(3, 2, 400), (7, 1, 400), (2, 2, 200), (1, 6, 200)])
def test_prompts_that_can_never_be_queued_together_are_refused(prompts, n, wanted):
    """A full queue would be told again and again, and clients try again when it is."""
    service = Service(backend=ScriptedBackend(max_sequences=5))
    status, body = ask(service, "/v1/completions", prompt=["a"] * prompts, n=n)
    assert status == wanted
    if wanted == 400:
        assert (body["error"]["param"], body["error"]["code"]) == ("prompt", "invalid_value")
        assert "at most 5 samples in all" in body["error"]["message"]


@pytest.mark.parametrize("num_words", [8_000, 400_000])
def test_a_prompt_that_cannot_fit_has_one_code_however_long_it_is(num_words):
    """A text of so many characters that no tokens could hold it is not counted in tokens."""
    status, body = ask(Service(backend=ScriptedBackend()), "/v1/completions", prompt="whale " * num_words)
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "prompt", "context_length_exceeded")


def test_an_answer_that_cannot_go_on_names_no_field():
    """The library names the request then, which is no field of it."""
    backend = ScriptedBackend(error=NoTokenLeft("chatcmpl-1-0.0", 3))
    status, body = ask(Service(backend=backend), "/v1/chat/completions", messages=HELLO)
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, None, "invalid_value")


def test_an_answer_of_nothing_is_an_empty_message():
    service = Service(backend=ScriptedBackend(pieces=[""]))
    _, body = ask(service, "/v1/responses", input="hello")
    assert [part["text"] for part in body["output"][0]["content"]] == [""]
    assert ask(service, "/v1/chat/completions", messages=HELLO)[1]["choices"][0]["message"]["content"] == ""


def test_a_sample_that_has_ended_is_told_once():
    service = Service(backend=ScriptedBackend())
    chunks = stream(service, "/v1/chat/completions", messages=HELLO, n=3)
    ends = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


class OneAfterTheOther(ScriptedBackend):
    """A backend whose second sample begins after the first: only the first output has the prompt's logprobs."""

    def _outputs(self, request_id, checked):
        report = {0: Logprob(logprob=-1.0, rank=1, decoded_token="a")}
        samples = [
            CompletionOutput(index=i, text="a", token_ids=[0], finish_reason=FinishReason.STOP, logprobs=[report])
            for i in range(2)
        ]
        tables = [None, *({one: Logprob(logprob=-1.0, rank=1, decoded_token="")} for one in checked.ids[1:])]
        return [
            RequestOutput(
                request_id=request_id,
                prompt=checked.text,
                prompt_token_ids=list(checked.ids),
                outputs=[sample],
                finished=sample.index == 1,
                prompt_logprobs=None if sample.index else tables,
            )
            for sample in samples
        ]


def test_a_sample_that_begins_later_has_the_prompts_report_too():
    service = Service(backend=OneAfterTheOther())
    body = {"prompt": "The whale", "echo": True, "logprobs": 0, "n": 2, "max_tokens": 1}
    choices = [choice for event in stream(service, "/v1/completions", **body) for choice in event["choices"]]
    reports = [
        [one["logprobs"]["text_offset"] for one in choices if one["index"] == i and one["logprobs"]] for i in (0, 1)
    ]
    assert reports[0] == reports[1]
    assert [reports[1][0][0], reports[1][1]] == [0, [len("The whale")]]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StepFailed("step"), "step_failed"),
        (EngineStopped("engine"), "engine_stopped"),
        (RequestFailed("r1"), "request_failed"),
        (RequestTimedOut("r1", "it ran", 600), "request_timed_out"),
    ],
)
@pytest.mark.parametrize("path", GENERATING)
def test_an_error_in_the_middle_of_a_stream_is_its_last_event(path, error, code):
    backend = ScriptedBackend(error=error)
    events = stream(Service(backend=backend), path, **GENERATING[path])
    assert len(events) > 1
    assert events[-1]["error"]["code"] == code
    assert all("error" not in event or event["error"] is None for event in events[:-1])
    assert backend.streams[0].is_closed


@pytest.mark.parametrize("path", GENERATING)
def test_an_error_before_the_answer_has_its_own_status(path):
    backend = ScriptedBackend(error=StepFailed("step"))
    status, body = ask(Service(backend=backend), path, **GENERATING[path])
    assert (status, body["error"]["code"]) == (500, "step_failed")
    assert backend.streams[0].is_closed


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("streams", [False, True])
def test_a_full_queue_is_a_status_even_for_a_stream(path, streams):
    service = Service(backend=ScriptedBackend(room=0))
    found, _ = call(service, path, {**GENERATING[path], "stream": streams})
    assert isinstance(found, Answer)
    assert (found.status, found.headers) == (429, {"Retry-After": "7"})


def test_a_call_of_several_prompts_is_queued_whole_or_not_at_all():
    backend = ScriptedBackend(room=2)
    status, _ = ask(Service(backend=backend), "/v1/completions", prompt=["a", "b", "c"])
    assert status == 429
    assert [one.is_closed for one in backend.streams] == [True, True]


def test_an_aborted_answer_is_no_answer():
    service = Service(backend=ScriptedBackend(finish=FinishReason.ABORT))
    assert ask(service, "/v1/chat/completions", messages=HELLO)[0] == 500


def test_a_model_without_a_chat_template_refuses_chats_and_completes():
    service = Service(backend=ScriptedBackend(has_chat_template=False))
    for path in ("/v1/chat/completions", "/v1/responses"):
        status, body = ask(service, path, **GENERATING[path])
        assert (status, body["error"]["code"]) == (400, "no_chat_template")
        assert "/v1/completions" in body["error"]["message"]
    assert ask(service, "/v1/completions", prompt="a")[0] == 200


def test_tenants_and_salts_come_to_the_engine_apart():
    backend = ScriptedBackend()
    service = Service(backend=backend)
    for salt, own in (("t", None), ("u", None), ("t", "mine"), ("", None)):
        call(service, "/v1/completions", {"prompt": "a", "cache_salt": own}, salt=salt)
    salts = [options.salt for options in backend.options]
    assert len(set(salts)) == 4
    assert salts[3] == ""


@pytest.mark.parametrize("streams", [False, True])
def test_a_call_knows_what_it_has_cost(streams):
    _, made = call(Service(backend=ScriptedBackend()), "/v1/completions", {"prompt": [5, 6], "n": 2, "stream": streams})
    assert (made.spent.num_prompt_tokens, made.spent.num_output_tokens) == (2, 6)


@pytest.mark.parametrize("streams", [False, True])
def test_a_bug_of_ours_ends_one_call_and_tells_nothing(caplog, streams):
    app = make_application(ScriptedBackend(error=ValueError("my secret")), KeyRing([]), ServeConfig(port=0))
    with listening([app]) as made, caplog.at_level(logging.ERROR, "playhead"):
        url = f"http://127.0.0.1:{made.ports[0]}/v1/chat/completions"
        answer = httpx.post(url, json={"messages": HELLO, "stream": streams}, timeout=None)
    assert answer.status_code == (200 if streams else 500)
    assert "internal_error" in answer.text
    assert "secret" not in answer.text
    (failed,) = [record.getMessage() for record in caplog.records if "request failed" in record.getMessage()]
    assert "error=ValueError, at=scripted_backend.py:" in failed
    assert "secret" not in caplog.text


def test_names_of_models_may_have_slashes():
    service = Service(backend=ScriptedBackend())
    found, _ = call(service, "/v1/models/{model}", b"", method="GET", value="scripted")
    assert json.loads(found.body)["id"] == "scripted"
    found, _ = call(service, "/v1/models/{model}", b"", method="GET", value="org/other")
    assert (found.status, json.loads(found.body)["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": "a", "messages": HELLO}, {"prompt": 5}, {"messages": []}, {"prompt": "a", "colour": 1}],
)
def test_tokenize_wants_one_of_text_and_messages(body):
    status, _ = ask(Service(backend=ScriptedBackend()), "/tokenize", **body)
    assert status == (200 if body == {"messages": []} else 400)


def test_tokenize_counts_texts_beyond_the_context_and_refuses_huge_ones():
    service = Service(backend=ScriptedBackend())
    status, body = ask(service, "/tokenize", prompt="a b " * 3000)
    assert status == 200
    assert body["count"] > body["max_model_len"]
    assert ask(service, "/tokenize", prompt="a" * 70_000)[0] == 400


@pytest.mark.parametrize("tokens", [[-1], [4096], [True], [1.0], "a", [2**70]])
def test_detokenize_refuses_what_is_no_token(tokens):
    assert ask(Service(backend=ScriptedBackend()), "/detokenize", tokens=tokens)[0] == 400


def test_the_document_describes_every_route_and_what_it_answers():
    """Answers of all routes fit the schemas of the document, and their statuses are declared."""
    service = Service(backend=ScriptedBackend())
    found, _ = call(service, "/openapi.json", b"", method="GET")
    made = json.loads(found.body)
    assert made["openapi"] == "3.1.0"
    schemas = made["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path, body in GENERATING.items():
        responses = made["paths"][path]["post"]["responses"]
        for wanted in (body, {**body, "n": 0}, {**body, "model": "other"}):
            status, answer = ask(service, path, **wanted)
            content = responses[str(status)]["content"]["application/json"]
            jsonschema.validate(answer, {**content["schema"], "components": made["components"]})
        for event in stream(service, path, **body):
            content = responses["200"]["content"]["text/event-stream"]
            jsonschema.validate(event, {**content["schema"], "components": made["components"]})


@pytest.mark.parametrize(
    ("name", "body", "fits"),
    [
        ("ChatRequest", {"messages": HELLO, "n": 16}, True),
        ("ChatRequest", {"messages": HELLO, "n": 17}, False),
        ("ChatRequest", {"messages": HELLO, "top_p": 0}, False),
        ("ChatRequest", {"messages": HELLO, "stop": ["a"] * 5}, False),
        ("ChatRequest", {"messages": HELLO, "logit_bias": {"5": 100}}, True),
        ("ChatRequest", {"messages": HELLO, "logit_bias": {"x": 100}}, False),
        ("ChatRequest", {"messages": HELLO, "functions": [{}]}, False),
        ("ChatRequest", {"messages": HELLO, "colour": 1}, False),
        ("ChatRequest", {"messages": []}, False),
        ("CompletionRequest", {"prompt": "a", "suffix": "x"}, False),
        ("CompletionRequest", {"prompt": "a", "stop_token_ids": [10**9]}, False),
        ("ResponsesRequest", {"input": "a", "previous_response_id": "x"}, False),
    ],
)
def test_the_document_is_as_narrow_as_the_checks(name, body, fits):
    made = document(ROUTES, version="1", vocab_size=4096)
    schema = {"$ref": f"#/components/schemas/{name}", "components": made["components"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) is fits


def test_every_route_says_which_fields_it_takes():
    for route in ROUTES:
        if route.request is not None:
            assert msgspec.structs.fields(route.request)
            assert route.request.__struct_config__.forbid_unknown_fields
