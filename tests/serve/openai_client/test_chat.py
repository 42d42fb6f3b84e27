"""Chats through the `openai` package: what a client asks for is what it gets, whole or streamed."""

from __future__ import annotations

import pytest

from tests.serve.openai_client.asking import HELLO, LONG, content

DRAWN = {"temperature": 1.2, "max_tokens": 12}


def test_an_answer_has_its_parts(ask):
    answer = ask.chat()
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", ask.model)
    assert answer.created > 1_700_000_000
    assert answer.system_fingerprint.startswith("fp_")
    assert [choice.index for choice in answer.choices] == [0]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("most", [1, 2, 7])
def test_an_answer_is_as_long_as_it_may_be(ask, name, most):
    answer = ask.chat(**{"max_tokens": None, name: most}, **ask.exact)
    assert answer.usage.completion_tokens == most
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"extra_body": {"top_k": 1}, "temperature": 1},
        {"top_p": 1e-6, "temperature": 1},
        {"extra_body": {"min_p": 1}, "temperature": 1},
        {"seed": 5},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"parallel_tool_calls": True, "prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "low"},
        {"reasoning_effort": "low"},
        {"modalities": ["text"]},
        {"response_format": {"type": "text"}},
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}},
        {"stop": None, "seed": None},
        {"extra_body": {"priority": 3}},
        {"extra_body": {"cache_salt": "mine"}},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"extra_body": {"repetition_penalty": 1.0, "spaces_between_special_tokens": True}},
    ],
    ids=lambda fields: ",".join(fields) + ":" + ",".join(fields.get("extra_body", ())),
)
def test_a_greedy_answer_is_always_the_same(ask, fields):
    assert ask.chat(**fields).choices[0].message.content == ask.chat().choices[0].message.content


@pytest.mark.parametrize("seed", [0, 7, -3, 2**63 - 1])
def test_the_same_seed_gives_the_same_answer(ask, seed):
    first, again = (ask.chat(seed=seed, **DRAWN, **ask.exact).choices[0].message.content for _ in range(2))
    assert first == again


def test_other_seeds_give_other_answers(ask):
    answers = {ask.chat(seed=seed, **DRAWN, **ask.exact).choices[0].message.content for seed in range(4)}
    assert len(answers) > 1


@pytest.mark.parametrize("count", [1, 2, 5])
def test_there_are_n_samples(ask, count):
    answer = ask.chat(n=count, temperature=1, **ask.exact)
    assert [choice.index for choice in answer.choices] == list(range(count))
    assert answer.usage.completion_tokens == 8 * count


def test_sample_i_of_a_seed_is_the_answer_to_seed_plus_i(ask):
    many = ask.chat(n=3, seed=11, **DRAWN, **ask.exact).choices
    ones = [ask.chat(seed=11 + i, **DRAWN, **ask.exact).choices[0] for i in range(3)]
    assert [one.message.content for one in many] == [one.message.content for one in ones]


@pytest.mark.parametrize("kind", ["one", "list", "four"])
def test_a_stop_string_ends_an_answer(ask, kind):
    whole = ask.chat(**ask.exact).choices[0].message.content
    stop = whole[2:5]
    stops = {"one": stop, "list": [stop], "four": ["@@", "##", stop, "%%"]}[kind]
    choice = ask.chat(stop=stops, **ask.exact).choices[0]
    assert choice.message.content == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"
    assert choice.model_extra["stop_reason"] == stop


def test_a_stop_string_can_stay_in_the_answer(ask):
    whole = ask.chat(**ask.exact).choices[0].message.content
    body = {"ignore_eos": True, "include_stop_str_in_output": True}
    answer = ask.chat(stop=whole[2:5], extra_body=body).choices[0].message.content
    assert answer == whole[: whole.index(whole[2:5]) + 3]


@pytest.mark.parametrize("num_top", [None, 0, 1, 5, 20])
def test_logprobs_are_reported_for_every_token(ask, num_top):
    answer = ask.chat(logprobs=True, top_logprobs=num_top, **ask.exact)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert b"".join(bytes(one.bytes) for one in entries).decode() == answer.choices[0].message.content
    for one in entries:
        assert one.logprob <= 0
        assert len(one.top_logprobs) == (num_top or 0)
        assert [top.logprob for top in one.top_logprobs] == sorted((t.logprob for t in one.top_logprobs), reverse=True)
        if num_top:
            assert one.top_logprobs[0].token == one.token


def test_without_logprobs_there_are_none(ask):
    assert ask.chat().choices[0].logprobs is None


def tokens_of(ask, words):
    body = {"prompt": words, "add_special_tokens": False}
    url = str(ask.client.base_url).removesuffix("v1/") + "tokenize"
    return ask.run(ask.client.post(url, body=body, cast_to=object))["tokens"]


def test_a_bias_forces_a_token_and_another_forbids_one(ask):
    token = tokens_of(ask, "whale")[0]
    forced = ask.chat(logit_bias={str(token): 100}, max_tokens=1, logprobs=True).choices[0].logprobs.content[0]
    first = ask.chat(max_tokens=1, logprobs=True, top_logprobs=2).choices[0].logprobs.content[0]
    assert forced.token != first.token
    best = tokens_of(ask, first.token)[0]
    other = ask.chat(max_tokens=1, logprobs=True, logit_bias={str(best): -100}).choices[0].logprobs.content[0]
    assert other.token == first.top_logprobs[1].token


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
        {"extra_body": {"repetition_penalty": 1.9}},
    ],
    ids=["presence", "frequency", "repetition"],
)
def test_penalties_change_a_long_greedy_answer(ask, fields):
    body = {"ignore_eos": True, **fields.get("extra_body", {})}
    plain = ask.chat(max_tokens=60, **ask.exact).choices[0].message.content
    assert ask.chat(max_tokens=60, **{**fields, "extra_body": body}).choices[0].message.content != plain


def test_only_allowed_tokens_come_out(ask):
    allowed = tokens_of(ask, "the")[:1]
    answer = ask.chat(max_tokens=3, logprobs=True, extra_body={"allowed_token_ids": allowed, "ignore_eos": True})
    assert len({one.token for one in answer.choices[0].logprobs.content}) == 1


def test_bad_words_do_not_come_out(ask):
    def first_word(text: str) -> str:
        return text.split()[0].strip(",.;!?")

    word = first_word(ask.chat(max_tokens=12, **ask.exact).choices[0].message.content)
    answer = ask.chat(max_tokens=12, extra_body={"ignore_eos": True, "bad_words": [word]}).choices[0].message.content
    assert first_word(answer) != word


def test_min_tokens_keeps_an_answer_from_ending(ask):
    answer = ask.chat(max_tokens=30, extra_body={"min_tokens": 30})
    assert answer.usage.completion_tokens == 30


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Speak softly."}, *HELLO],
        [{"role": "developer", "content": "Speak softly."}, *HELLO],
        [*HELLO, {"role": "assistant", "content": "A friend."}, {"role": "user", "content": "Come in."}],
        [{"role": "user", "content": [{"type": "text", "text": "Who"}, {"type": "text", "text": "is there?"}]}],
        [{"role": "user", "content": "Who is there?", "name": "hamlet"}],
        [{"role": "user", "content": '日本 \U0001f433 naïve\n\t"quoted" \\ back'}],
    ],
    ids=["system", "developer", "turns", "parts", "name", "unicode"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_conversations_of_all_kinds_are_answered(ask, messages, stream):
    answer = ask.chat(messages, stream=stream, **ask.exact)
    assert content(answer) if stream else answer.choices[0].message.content


def test_the_last_message_can_be_gone_on_with(ask):
    messages = [*HELLO, {"role": "assistant", "content": "It is I, and"}]
    body = {"continue_final_message": True, "add_generation_prompt": False, "ignore_eos": True}
    assert ask.chat(messages, extra_body=body).choices[0].message.content


def test_cached_tokens_are_counted_and_a_salt_shares_none(ask):
    body = {"cache_salt": f"salt {id(ask)} a"}
    cached = [ask.chat(LONG, extra_body=body).usage.prompt_tokens_details.cached_tokens for _ in range(2)]
    assert cached[0] == 0
    assert cached[1] > 0
    other = ask.chat(LONG, extra_body={"cache_salt": f"salt {id(ask)} b"})
    assert other.usage.prompt_tokens_details.cached_tokens == 0


def test_the_prompts_logprobs_are_reported(ask):
    answer = ask.chat(extra_body={"prompt_logprobs": 1})
    tables = answer.model_extra["prompt_logprobs"]
    assert tables[0] is None
    assert len(tables) == answer.usage.prompt_tokens
    assert all(set(entry) == {"logprob", "rank", "decoded_token"} for table in tables[1:] for entry in table.values())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"seed": 3, "temperature": 1.1},
        {"n": 3, "seed": 5, "temperature": 1.3},
        {"logprobs": True, "top_logprobs": 2},
        {"max_tokens": 1},
        {"max_tokens": 40},
        {"extra_body": {"top_k": 3, "ignore_eos": True}, "seed": 9, "temperature": 1},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_a_stream_is_the_whole_answer_in_pieces(ask, fields):
    whole, chunks = ask.chat(**fields), ask.chat(stream=True, stream_options={"include_usage": True}, **fields)
    for choice in whole.choices:
        pieces = [piece for chunk in chunks for piece in chunk.choices if piece.index == choice.index]
        assert pieces[0].delta.role == "assistant"
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [choice.finish_reason]
        assert pieces[-1].finish_reason == choice.finish_reason
        if choice.logprobs is not None:
            entries = [one for piece in pieces if piece.logprobs for one in piece.logprobs.content]
            assert [one.token for one in entries] == [one.token for one in choice.logprobs.content]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_chunks_of_a_stream_belong_together(ask):
    chunks = ask.chat(stream=True, n=2, **ask.exact)
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}


@pytest.mark.parametrize("wants", [True, False, None])
def test_the_usage_comes_last_and_only_on_request(ask, wants):
    options = {} if wants is None else {"stream_options": {"include_usage": wants}}
    chunks = ask.chat(stream=True, **options)
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [bool(wants)]
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [not wants]


def test_a_stop_string_never_shows_in_a_stream(ask):
    whole = ask.chat(**ask.exact).choices[0].message.content
    stop = whole[2:6]
    chunks = ask.chat(stream=True, stop=stop, **ask.exact)
    assert content(chunks) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("most", [1, 3])
def test_a_stream_that_is_left_early_ends_its_request(ask, served, most):
    body = {"ignore_eos": True}
    made = ask.client.chat.completions.create(
        model=ask.model, messages=HELLO, max_tokens=150, stream=True, extra_body=body
    )
    assert len(ask.items(made, most)) == most
    served.wait_until_idle()
    assert ask.chat().choices[0].message.content


def test_a_raw_response_has_its_headers(ask):
    raw = ask.run(
        ask.client.chat.completions.with_raw_response.create(
            model=ask.model, messages=HELLO, max_tokens=2, extra_headers={"X-Request-Id": "mine-1"}
        )
    )
    assert raw.headers["content-type"].startswith("application/json")
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.parse().choices


def test_many_requests_at_once_get_their_own_answers(ask):
    prompts = ["Who is there?", "What news?", "Where is the king?", "Speak!"]
    alone = {one: ask.chat([{"role": "user", "content": one}]).choices[0].message.content for one in prompts}
    made = [
        ask.client.chat.completions.create(
            model=ask.model, messages=[{"role": "user", "content": one}], temperature=0, max_tokens=8, stream=True
        )
        for one in prompts
    ]
    assert [content(ask.items(one)) for one in made] == list(alone.values())


@pytest.mark.parametrize(
    "fields", [{}, {"logprobs": True, "top_logprobs": 1}, {"n": 2}], ids=["plain", "logprobs", "n"]
)
def test_the_packages_own_reader_of_streams_adds_up_an_answer(ask, fields):
    stop = ask.chat(**ask.exact).choices[0].message.content[4:7]  # the package refuses answers that were cut off
    wanted = {"model": ask.model, "messages": HELLO, "temperature": 0, "stop": stop, **ask.exact, **fields}
    events, stream = ask.managed(ask.client.chat.completions.stream(**wanted))
    final = ask.run(stream.get_final_completion())
    whole = ask.run(ask.client.chat.completions.create(**wanted))
    assert [one.message.content for one in final.choices] == [one.message.content for one in whole.choices]
    assert [one.finish_reason for one in final.choices] == ["stop"] * len(whole.choices)
    deltas = [event.delta for event in events if event.type == "content.delta"]
    assert sorted("".join(deltas)) == sorted("".join(one.message.content for one in whole.choices))


def test_a_page_of_models_can_be_walked(ask):
    assert [one.id for one in ask.listed(ask.client.models.list())] == [ask.model]
