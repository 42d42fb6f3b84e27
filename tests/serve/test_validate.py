"""What clients send becomes what the library takes, or is refused by the name of its field. No engine here."""

from __future__ import annotations

import json

import pytest

from playhead.errors import (
    ChatTemplateError,
    EnginesLost,
    EngineStopped,
    QueueFull,
    RequestError,
    RequestFailed,
    RequestTimedOut,
    StepFailed,
)
from playhead.request_limits import RequestLimits
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.serve.decode import decode
from playhead.serve.failures import UnknownModel, detail_of, failure, failure_event
from playhead.serve.protocol.chat import ChatRequest
from playhead.serve.protocol.completions import CompletionRequest
from playhead.serve.protocol.notes import notes_of
from playhead.serve.protocol.responses import ResponsesRequest
from playhead.serve.validate import (
    Rules,
    joined_salt,
    validate_chat,
    validate_completion,
    validate_responses,
)

RULES = Rules(defaults=SamplingParams(temperature=0.7, top_p=0.9), limits=RequestLimits())
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def chat(rules=RULES, **fields):
    return validate_chat(decode(json.dumps({"messages": HELLO, **fields}).encode(), ChatRequest), rules)


def completion(rules=RULES, **fields):
    return validate_completion(decode(json.dumps({"prompt": "a", **fields}).encode(), CompletionRequest), rules)


def response(rules=RULES, **fields):
    return validate_responses(decode(json.dumps({"input": "a", **fields}).encode(), ResponsesRequest), rules)


def param_of(error: RequestError) -> str | None:
    return detail_of(error)[1].param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 1.5),
        ("top_p", 0.5),
        ("top_k", 5),
        ("top_k", -1),
        ("min_p", 0.1),
        ("n", 3),
        ("seed", -7),
        ("presence_penalty", -2),
        ("frequency_penalty", 2),
        ("repetition_penalty", 1.2),
        ("min_tokens", 3),
        ("ignore_eos", True),
        ("skip_special_tokens", False),
        ("include_stop_str_in_output", True),
        ("prompt_logprobs", 3),
        ("truncate_prompt_tokens", 4),
    ],
)
@pytest.mark.parametrize("take", [chat, completion])
def test_a_sampling_field_is_handed_on_as_it_is(take, field, value):
    assert take(**{field: value, "max_tokens": 9}).params.values()[field] == value


@pytest.mark.parametrize("take", [chat, completion, response])
def test_a_field_that_is_left_out_or_null_has_the_models_default(take):
    for params in (take().params, take(temperature=None, top_p=None, seed=None, stop=None, logit_bias=None).params):
        assert (params.temperature, params.top_p) == (0.7, 0.9)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"stop": "end"}, "stop", ("end",)),
        ({"stop": ["a", "b"]}, "stop", ("a", "b")),
        ({"stop_token_ids": [3, 4]}, "stop_token_ids", (3, 4)),
        ({"bad_words": ["ugly"]}, "bad_words", ("ugly",)),
        ({"allowed_token_ids": [7]}, "allowed_token_ids", (7,)),
        ({"logit_bias": {"12": -100, "5": 2.5}}, "logit_bias", {12: -100.0, 5: 2.5}),
    ],
)
@pytest.mark.parametrize("take", [chat, completion])
def test_lists_and_tables_are_taken(take, fields, name, value):
    assert take(**fields).params.values()[name] == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 17),
        ("temperature", -0.1),
        ("temperature", 1e7),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 2**70),
        ("min_p", 2),
        ("seed", 2**64),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("repetition_penalty", 2.5),
        ("stop", ["a"] * 5),
        ("stop", "x" * 257),
        ("stop", ""),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", list(range(129))),
        ("bad_words", ["x"] * 65),
        ("allowed_token_ids", []),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1.0": 1}),
        ("logit_bias", {str(i): 1 for i in range(301)}),
        ("min_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("prompt_logprobs", 21),
        ("truncate_prompt_tokens", 0),
        ("structured_outputs", {}),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}),
    ],
)
@pytest.mark.parametrize("take", [chat, completion])
def test_a_value_out_of_range_is_refused_by_its_field(take, field, value):
    with pytest.raises(RequestError) as caught:
        take(**{field: value})
    assert (param_of(caught.value) or "").startswith(field)


def test_a_chat_may_use_the_whole_context_and_a_completion_sixteen_tokens():
    assert chat().params.max_tokens is None
    assert completion().params.max_tokens == 16
    assert response().params.max_tokens is None


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 7, "max_completion_tokens": 7}, 7),
    ],
)
def test_max_completion_tokens_is_another_name_of_max_tokens(fields, most):
    assert chat(**fields).params.max_tokens == most


def test_two_numbers_of_tokens_that_differ_are_refused():
    with pytest.raises(RequestError, match="max_tokens is 5"):
        chat(max_tokens=5, max_completion_tokens=6)


def test_a_stream_gives_what_is_new_and_a_whole_answer_comes_once():
    assert chat(stream=True).params.output_kind is RequestOutputKind.DELTA
    assert chat(stream=True).options.streams
    assert chat().params.output_kind is RequestOutputKind.FINAL_ONLY
    assert not chat().options.streams


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 4}, 4)],
)
def test_a_chats_logprobs_are_a_switch_and_a_number(fields, count):
    assert chat(**fields).params.logprobs == count


@pytest.mark.parametrize("fields", [{"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}])
def test_a_chat_refuses_top_logprobs_alone_or_too_many(fields):
    with pytest.raises(RequestError):
        chat(**fields)


def test_a_completions_logprobs_are_a_number():
    assert completion(logprobs=3).params.logprobs == 3
    assert completion(logprobs=0).params.logprobs == 0
    with pytest.raises(RequestError):
        completion(logprobs=21)


def test_echo_reports_the_prompt_too_and_scoring_generates_one_token_at_most():
    assert completion(echo=True, logprobs=2).params.prompt_logprobs == 2
    scored = completion(echo=True, logprobs=1, max_tokens=0)
    assert (scored.is_scored, scored.params.max_tokens) == (True, 1)


def test_a_streamed_answer_has_no_logprobs_of_the_prompt():
    with pytest.raises(RequestError, match="prompt_logprobs"):
        chat(stream=True, prompt_logprobs=1)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [1, 2]], ["a", [1, 2]]),
    ],
)
def test_a_prompt_is_text_or_ids_or_a_list_of_both(prompt, prompts):
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize("prompt", [[], [1, "a"], [1, [2]], ["a"] * 65])
def test_no_prompts_too_many_or_a_mixture_are_refused(prompt):
    with pytest.raises(RequestError):
        completion(prompt=prompt)


def test_sixty_four_prompts_are_allowed_and_the_number_can_be_set():
    assert len(completion(prompt=["a"] * 64).prompts) == 64
    rules = Rules(defaults=SamplingParams(), limits=RequestLimits(prompts=2))
    with pytest.raises(RequestError, match="1 to 2"):
        completion(rules, prompt=["a"] * 3)


def test_best_of_must_be_n():
    completion(best_of=1)
    completion(best_of=3, n=3)
    for fields in ({"best_of": 2}, {"best_of": 1, "n": 2}):
        with pytest.raises(RequestError, match=r"^best_of"):
            completion(**fields)


@pytest.mark.parametrize(
    ("take", "fields"),
    [
        (completion, {"suffix": "x"}),
        (completion, {"add_special_tokens": False}),
        (completion, {"use_beam_search": True}),
        (completion, {"guided_json": {}}),
        (chat, {"functions": [{}]}),
        (chat, {"function_call": "auto"}),
        (chat, {"audio": {"voice": "x"}}),
        (chat, {"modalities": ["text", "audio"]}),
        (chat, {"web_search_options": {}}),
        (chat, {"chat_template": "{{ 1 }}"}),
        (chat, {"documents": [{}]}),
        (chat, {"echo": True}),
        (response, {"previous_response_id": "resp_1"}),
        (response, {"conversation": "conv_1"}),
        (response, {"background": True}),
        (response, {"prompt": {"id": "x"}}),
        (response, {"truncation": "auto"}),
        (response, {"max_tokens": 5}),
        (response, {"n": 2}),
    ],
)
def test_what_would_change_the_answer_and_cannot_be_done_is_refused_by_name(take, fields):
    with pytest.raises(RequestError) as caught:
        take(**fields)
    status, detail = detail_of(caught.value)
    assert (status, detail.param, detail.code) == (400, next(iter(fields)), "unsupported_parameter")


@pytest.mark.parametrize("take", [chat, completion, response])
def test_fields_that_change_nothing_are_ignored(take):
    kind = {chat: ChatRequest, completion: CompletionRequest, response: ResponsesRequest}[take]
    examples = {
        "metadata": {"a": "b"},
        "store": True,
        "prompt_cache_options": {"mode": "implicit"},
        "prediction": {"type": "content", "content": "x"},
        "verbosity": "low",
        "max_tool_calls": 3,
    }
    ignored = [name for name, note in notes_of(kind).items() if not note.is_refused]
    assert "user" in ignored
    plain = take()
    assert take(**{name: examples.get(name, "text") for name in ignored}).params == plain.params


def test_neutral_values_of_refused_fields_pass():
    chat(modalities=["text"], functions=[], documents=[], echo=False)
    completion(suffix="", use_beam_search=False)
    response(background=False, truncation="disabled", n=1, previous_response_id=None)


def test_stream_options_without_a_stream_are_refused():
    with pytest.raises(RequestError, match=r"^stream_options"):
        chat(stream_options={"include_usage": True})
    chat(stream=True, stream_options={"include_usage": True})


@pytest.mark.parametrize(
    ("tenant", "own", "salt"),
    [("", "", ""), ("ab", "c", "2:abc"), ("a", "bc", "1:abc"), ("", "abc", "0:abc"), ("abc", "", "3:abc")],
)
def test_salts_of_tenant_and_request_are_joined_so_that_no_two_pairs_are_equal(tenant, own, salt):
    assert joined_salt(tenant, own) == salt


def test_a_request_has_its_priority_and_both_salts():
    rules = Rules(defaults=SamplingParams(), limits=RequestLimits(), tenant_salt="t")
    options = chat(rules, priority=-3, cache_salt="mine").options
    assert (options.priority, options.salt) == (-3, "1:tmine")


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True, "disable_any_whitespace": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
            {"json": '{"type":"object"}', "disable_any_whitespace": True},
        ),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"choice": ("yes", "no")}),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, {"grammar": 'start: "a"'}),
        (
            {"structured_outputs": {"json": {"type": "integer"}}},
            {"json": '{"type":"integer"}', "disable_any_whitespace": True},
        ),
        (
            {"structured_outputs": {"json": {"type": "integer"}, "disable_any_whitespace": False}},
            {"json": '{"type":"integer"}'},
        ),
    ],
)
@pytest.mark.parametrize("take", [chat, completion])
def test_the_form_of_an_answer_is_handed_on(take, fields, wanted):
    found = take(**fields).params.structured_outputs
    assert (None if found is None else found.values()) == wanted


def test_a_response_says_its_form_under_text():
    schema = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}
    found = response(text=schema).params.structured_outputs
    assert found.values() == {"json": '{"type":"object"}', "disable_any_whitespace": True}


def test_two_forms_of_one_answer_are_refused():
    with pytest.raises(RequestError, match=r"^response_format"):
        chat(response_format={"type": "json_object"}, structured_outputs={"regex": "a"})
    with pytest.raises(RequestError, match="schema"):
        chat(response_format={"type": "json_schema", "json_schema": {"name": "a"}})


def test_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages == [{"role": "user", "content": "a\nb"}]


def test_a_message_without_content_is_the_assistants_alone():
    with pytest.raises(RequestError, match=r"^messages\[0\]\.content: missing"):
        chat(messages=[{"role": "user"}])
    assert chat(messages=[{"role": "assistant"}]).messages == [{"role": "assistant", "content": None}]


def test_developer_is_system_for_a_template_that_does_not_know_it():
    messages = [{"role": "developer", "content": "be kind"}]
    assert chat(messages=messages).messages[0]["role"] == "system"
    rules = Rules(defaults=SamplingParams(), limits=RequestLimits(), chat_template="{{ 'developer' }}")
    assert chat(rules, messages=messages).messages[0]["role"] == "developer"


def test_calls_and_results_go_to_the_template():
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    first, second = chat(messages=messages).messages
    assert first == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert second == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tools": [TOOL, TOOL]},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "time"}}},
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
    ],
)
def test_a_choice_among_tools_that_there_are_not_is_refused(fields):
    with pytest.raises(RequestError, match=r"^tool"):
        chat(**fields)


def test_tools_are_shown_unless_none_may_be_called():
    assert chat(tools=[TOOL]).tools.names == {"weather"}
    assert not chat(tools=[TOOL], tool_choice="none").tools.names
    assert chat(tools=[TOOL], tool_choice="required").tools.is_forced
    assert not chat(tools=[TOOL], tool_choice="auto").tools.is_forced


def test_variables_of_the_template_cannot_replace_the_conversation():
    assert chat(chat_template_kwargs={"enable_thinking": False}).chat.chat_template_kwargs == {"enable_thinking": False}
    assert chat(reasoning_effort="low").chat.chat_template_kwargs == {"reasoning_effort": "low"}
    for name in ("self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token"):
        with pytest.raises(RequestError, match=name) as caught:
            chat(chat_template_kwargs={name: []})
        assert param_of(caught.value) == "chat_template_kwargs"


def test_an_answer_begins_or_the_last_message_goes_on():
    with pytest.raises(RequestError, match="one of them"):
        chat(continue_final_message=True)
    assert chat(continue_final_message=True, add_generation_prompt=False).chat.continue_final_message


def test_a_responses_items_become_messages():
    items = [
        {"role": "developer", "content": "be kind"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "time", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "fine", "annotations": []}]},
    ]
    messages = response(input=items, instructions="short").messages
    assert [one["role"] for one in messages] == ["system", "system", "user", "assistant", "tool", "tool", "assistant"]
    assert [call["id"] for call in messages[3]["tool_calls"]] == ["c1", "c2"]
    assert messages[3]["reasoning_content"] == "hm"
    assert [one["content"] for one in messages[4:]] == ["sunny", "noon", "fine"]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"content": "a"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0].arguments"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
    ],
)
def test_an_item_that_lacks_a_field_is_refused_by_the_field(item, param):
    with pytest.raises(RequestError) as caught:
        response(input=[item])
    assert param_of(caught.value) == param


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("prompt", "9 tokens", "at most 7, which leaves one of the context of 8", "Shorten."), 400, None),
        (RequestError("sampling field 'n'", "0", "1", "Change it."), 400, "invalid_value"),
        (ChatTemplateError("roles must alternate"), 400, "chat_template_error"),
        (UnknownModel("other", "mine"), 404, "model_not_found"),
        (QueueFull("queue", "full", "room", "Try later."), 429, "queue_full"),
        (EngineStopped("engine"), 503, "engine_stopped"),
        (EnginesLost("r1", 4), 500, "engines_lost"),
        (RequestTimedOut("r1", "it waited", 60), 503, "request_timed_out"),
        (StepFailed("step"), 500, "step_failed"),
        (RequestFailed("r1"), 500, "request_failed"),
        (ValueError("/secret/path"), 500, "internal_error"),
    ],
)
def test_every_error_has_a_status_and_a_code(error, status, code):
    found, detail = detail_of(error)
    assert (found, detail.code) == (status, code or "context_length_exceeded")
    body = json.loads(failure(error, retry_after_s=7).body)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    headers = {"Retry-After": "7"} if status in (429, 503) else {}
    if isinstance(error, EnginesLost):  # the package openai would send it twice more, and lose more engines
        headers = {"X-Should-Retry": "false"}
    assert failure(error, retry_after_s=7).headers == headers


def test_nothing_is_told_of_an_unforeseen_error():
    for error in (ValueError("/secret/path"), StepFailed("/secret"), EngineStopped("/secret")):
        assert b"secret" not in failure(error).body
        assert b"secret" not in failure_event(error)


def test_an_error_about_the_prompt_names_the_field_of_its_route():
    error = RequestError("prompt", "0 tokens", "at least 1", "Send a prompt.")
    assert detail_of(error, {"prompt": "messages"})[1].param == "messages"
    assert detail_of(RequestError("chat, key 'content'", "x", "y", "z"), {"prompt": "input"})[1].param == "input"
