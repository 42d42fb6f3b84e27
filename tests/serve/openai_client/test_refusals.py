"""Errors as clients of the `openai` package see them, time-outs, retries and cancelled calls."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.serve.openai_client.asking import HELLO, Asking
from tests.serve.running import KEYS

BAD = [
    ("temperature", -1),
    ("temperature", "warm"),
    ("top_p", 0),
    ("top_p", 2),
    ("n", 0),
    ("n", 17),
    ("n", 1.5),
    ("seed", 2**70),
    ("seed", "one"),
    ("stop", ["a"] * 5),
    ("stop", [""]),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", 1_000_000),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"whale": 1}),
    ("logit_bias", {"99999999": 1}),
    ("stream_options", {"include_usage": True}),
]
BAD_CHAT = [
    ("top_logprobs", 3),
    ("logprobs", 5),
    ("functions", [{"name": "f"}]),
    ("function_call", "auto"),
    ("modalities", ["audio"]),
    ("audio", {"voice": "alloy", "format": "mp3"}),
    ("tool_choice", "required"),
    ("tools", [{"type": "function", "function": {"name": "has space"}}]),
    ("response_format", {"type": "json_schema"}),
    ("web_search_options", {}),
]
BAD_EXTRA = ["top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "priority", "cache_salt"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("field", "value"), BAD + BAD_CHAT, ids=lambda value: str(value)[:24])
def test_a_chat_refuses_a_bad_field_by_its_name(ask, field, value, stream):
    if stream and field == "stream_options":
        value = {"include_usage": "yes"}
    error = ask.refusal(ask.chat, stream=stream or None, **{field: value})
    assert isinstance(error, openai.BadRequestError)
    assert error.param.startswith(field)
    assert error.type == "invalid_request_error"
    assert error.body["message"]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda value: str(value)[:24])
def test_a_completion_refuses_a_bad_field_by_its_name(ask, field, value):
    error = ask.refusal(ask.complete, **{field: value})
    assert isinstance(error, openai.BadRequestError)
    assert error.param.startswith(field)


@pytest.mark.parametrize("field", BAD_EXTRA)
def test_further_fields_are_checked_too(ask, field):
    error = ask.refusal(ask.chat, extra_body={field: {"a": "table"}})
    assert (error.status_code, error.param, error.code) == (400, field, "invalid_type")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"extra_body": {"max_completion_tokens": 5}}, "max_completion_tokens"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": [1, 2, 99_999_999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": "whale " * 5000}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"extra_body": {"use_beam_search": True}}, "use_beam_search"),
        ({"extra_body": {"prompt": [1, True]}}, "prompt[1]"),
        ({"extra_body": {"prompt": [1.5]}}, "prompt[0]"),
        ({"extra_body": {"sufix": "x"}}, "sufix"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_completion_refuses_what_it_cannot_do(ask, fields, param):
    error = ask.refusal(ask.complete, **fields)
    assert (error.status_code, error.param) == (400, param)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "pirate", "content": "arr"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], None),
        ([*HELLO, {"role": "user", "content": 5}], "messages[1].content"),
        ([{"role": "user", "content": "whale " * 5000}], "messages"),
    ],
    ids=["none", "no content", "role", "image", "number", "long"],
)
def test_a_chat_refuses_messages_it_cannot_read(ask, messages, param):
    create = ask.client.chat.completions.create
    error = ask.refusal(lambda: ask.run(create(model=ask.model, messages=messages)))
    assert error.status_code == 400
    assert error.param == (param or "messages[0].content[0].type")


def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(ask, served):
    context = served.backend.facts.max_model_len
    error = ask.refusal(ask.complete, [5] * (context + 3))
    assert error.code == "context_length_exceeded"
    assert str(context) in error.message
    assert str(context + 3) in error.message
    error = ask.refusal(ask.complete, [5] * 10, max_tokens=context)
    assert str(context - 10) in error.message
    assert str(context) in error.message


def test_a_misspelt_field_is_refused_with_the_right_name(ask):
    error = ask.refusal(ask.chat, extra_body={"max_token": 3})
    assert error.code == "unknown_parameter"
    assert "max_tokens" in error.message


@pytest.mark.parametrize("path", ["chat", "complete", "respond"])
def test_another_model_is_not_found(ask, path):
    other = {"chat": ask.chat, "complete": ask.complete, "respond": ask.respond}[path]
    error = ask.refusal(other, model="gpt-4o")
    assert isinstance(error, openai.NotFoundError)
    assert (error.code, error.param) == ("model_not_found", "model")


def test_a_model_that_is_not_served_is_not_found(ask):
    with pytest.raises(openai.NotFoundError):
        ask.run(ask.client.models.retrieve("org/other"))


def test_a_route_that_there_is_not_is_not_found_and_says_why(ask):
    with pytest.raises(openai.NotFoundError, match="Playhead generates text: it has no pooling models") as refused:
        ask.run(ask.client.embeddings.create(model=ask.model, input="a", encoding_format="float"))
    assert refused.value.code == "unknown_url"
    with pytest.raises(openai.NotFoundError, match="Playhead stores nothing"):
        ask.run(ask.client.responses.retrieve("resp_1"))
    with pytest.raises(openai.NotFoundError, match="There is nothing at this path"):
        ask.run(ask.client.get("/embeddingsome", cast_to=object))


@pytest.mark.parametrize(
    ("fields", "neutral", "says"),
    [
        ({"length_penalty": 2.0}, {"length_penalty": 1.0}, "Ask for n samples"),
        ({"add_special_tokens": True}, {"add_special_tokens": False}, "the template writes them"),
        ({"enable_thinking": False}, {"enable_thinking": None}, "Put it into chat_template_kwargs"),
        ({"return_token_ids": True}, {"return_token_ids": False}, "/tokenize"),
        ({"request_id": "a"}, {"request_id": None}, "X-Request-Id"),
        ({"mm_processor_kwargs": {"a": 1}}, {"mm_processor_kwargs": {}}, "text part of a model"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_field_of_vllm_is_refused_with_what_to_do_unless_it_asks_for_nothing(ask, fields, neutral, says):
    error = ask.refusal(ask.chat, extra_body=fields)
    assert (error.code, error.param) == ("unsupported_parameter", next(iter(fields)))
    assert says in error.message
    assert ask.chat(max_tokens=1, extra_body=neutral).choices


def test_usage_in_every_chunk_is_refused_by_its_path(ask):
    error = ask.refusal(ask.chat, stream=True, stream_options={"continuous_usage_stats": True})
    assert (error.code, error.param) == ("unsupported_parameter", "stream_options.continuous_usage_stats")


@pytest.mark.parametrize("key", ["", "wrong", KEYS["alice"][:-1], KEYS["alice"] + "x", KEYS["alice"].upper()])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_wrong_key_is_refused(served, key, mode):
    asking = Asking(served.locked_url, served.backend.facts.name, mode, api_key=key or "-")
    for call in (asking.chat, asking.complete, asking.respond):
        assert isinstance(asking.refusal(call), openai.AuthenticationError)
    asking.close()


@pytest.mark.parametrize("name", list(KEYS))
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_right_key_is_served(served, name, mode):
    asking = Asking(served.locked_url, served.backend.facts.name, mode, api_key=KEYS[name])
    assert asking.chat().choices[0].message.content
    asking.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_client_that_times_out_ends_its_request(served, mode):
    asking = Asking(served.url, served.backend.facts.name, mode, timeout=0.05)
    with pytest.raises(openai.APITimeoutError):
        asking.chat(max_tokens=200, n=16, temperature=1, **asking.exact)
    served.wait_until_idle()
    asking.close()


def test_a_cancelled_task_ends_its_request(served):
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            made = client.chat.completions.create(
                model=served.backend.facts.name, messages=HELLO, max_tokens=200, extra_body={"ignore_eos": True}
            )
            task = asyncio.create_task(made)
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    served.wait_until_idle()


def test_a_full_queue_says_when_to_come_again(ask, served):
    """Four sequences run and sixteen wait: two calls of sixteen samples do not fit beside each other."""
    fields = {"max_tokens": 200, "n": 16, "temperature": 1, **ask.exact}
    asking = Asking(served.url, served.backend.facts.name, "sync")
    with asking.client.chat.completions.create(model=ask.model, messages=HELLO, stream=True, **fields) as stream:
        next(iter(stream))
        error = ask.refusal(ask.chat, **fields)
    assert isinstance(error, openai.RateLimitError)
    assert error.code == "queue_full"
    assert int(error.response.headers["retry-after"]) >= 0
    asking.close()
    served.wait_until_idle()
    assert ask.chat().choices[0].message.content
