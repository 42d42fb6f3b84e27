"""Completions through the `openai` package: prompts of all forms, echo, logprobs of the older form, streams."""

from __future__ import annotations

import pytest

from tests.serve.openai_client.asking import text

IDS = [5, 6, 7, 200]


def test_an_answer_has_its_parts(ask):
    answer = ask.complete()
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", ask.model)
    assert answer.choices[0].text
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize(
    ("prompt", "count"),
    [
        ("The whale", 1),
        (["The whale"], 1),
        (["The whale", "Call me"], 2),
        (IDS, 1),
        ([IDS], 1),
        ([IDS, [9, 10]], 2),
        (["The whale"] * 8, 8),
    ],
    ids=["text", "list of one", "texts", "ids", "list of ids", "lists of ids", "eight"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_form_of_a_prompt_is_answered(ask, prompt, count, stream):
    answer = ask.complete(prompt, stream=stream, max_tokens=3, **ask.exact)
    if stream:
        assert {choice.index for chunk in answer for choice in chunk.choices} == set(range(count))
        assert all(text(answer, index) for index in range(count))
    else:
        assert [choice.index for choice in answer.choices] == list(range(count))
        assert answer.usage.completion_tokens == 3 * count


def test_several_prompts_get_the_answers_that_each_gets_alone(ask):
    prompts = ["The whale", "Call me", "My lord"]
    alone = [ask.complete(prompt).choices[0].text for prompt in prompts]
    assert [choice.text for choice in ask.complete(prompts).choices] == alone
    chunks = ask.complete(prompts, stream=True)
    assert [text(chunks, index) for index in range(3)] == alone


def test_samples_of_several_prompts_are_numbered_in_order(ask):
    answer = ask.complete(["The whale", "Call me"], n=2, seed=4, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    second = ask.complete("Call me", n=2, seed=4, temperature=1)
    assert [choice.text for choice in answer.choices[2:]] == [choice.text for choice in second.choices]


def test_sixteen_tokens_are_the_default(ask):
    assert ask.complete(max_tokens=None, **ask.exact).usage.completion_tokens == 16


@pytest.mark.parametrize("prompt", ["The whale", IDS], ids=["text", "ids"])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_before_the_answer(ask, prompt, stream):
    plain = ask.complete(prompt).choices[0].text
    echoed = ask.complete(prompt, echo=True, stream=stream)
    whole = text(echoed) if stream else echoed.choices[0].text
    assert whole.endswith(plain)
    if isinstance(prompt, str):
        assert whole == prompt + plain
    else:
        assert len(whole) > len(plain)


@pytest.mark.parametrize("num_top", [0, 1, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_the_older_form(ask, num_top, stream):
    answer = ask.complete(logprobs=num_top, stream=stream, **ask.exact)
    parts = [choice for chunk in answer for choice in chunk.choices if choice.logprobs] if stream else answer.choices
    reports = [part.logprobs for part in parts]
    tokens = [token for report in reports for token in report.tokens]
    offsets = [offset for report in reports for offset in report.text_offset]
    whole = text(answer) if stream else answer.choices[0].text
    assert len(tokens) == 8
    assert "".join(tokens) == whole
    assert [whole[at : at + len(token)] for at, token in zip(offsets, tokens, strict=True)] == tokens
    assert all(logprob <= 0 for report in reports for logprob in report.token_logprobs)
    for report in reports:
        if num_top == 0:
            assert report.top_logprobs is None
        else:
            assert all(len(table) <= num_top for table in report.top_logprobs)
            assert all(token in table for token, table in zip(report.tokens, report.top_logprobs, strict=True))


@pytest.mark.parametrize("stream", [False, True])
def test_a_token_is_among_the_likeliest_even_if_it_is_not(ask, stream):
    """So OpenAI's documents say: there may be one entry more than was asked for."""
    answer = ask.complete(logprobs=1, echo=True, temperature=2, seed=5, stream=stream, **ask.exact)
    parts = [choice for chunk in answer for choice in chunk.choices if choice.logprobs] if stream else answer.choices
    found = [
        (token, logprob, table)
        for part in parts
        for token, logprob, table in zip(
            part.logprobs.tokens, part.logprobs.token_logprobs, part.logprobs.top_logprobs, strict=True
        )
    ]
    assert found[0][1:] == (None, None)
    assert all(table[token] == logprob for token, logprob, table in found[1:])
    assert max(len(table) for _, _, table in found[1:]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_the_place_of_a_token_counts_characters_and_not_tokens(ask, stream):
    """A whale is one character and four tokens. A token that goes on with a character begins where it does."""
    answer = ask.complete("Ahab 🐳 née", echo=True, logprobs=0, stream=stream, **ask.exact)
    parts = [choice for chunk in answer for choice in chunk.choices if choice.logprobs] if stream else answer.choices
    whole = text(answer) if stream else answer.choices[0].text
    placed = [pair for part in parts for pair in zip(part.logprobs.tokens, part.logprobs.text_offset, strict=True)]
    plain = [(token, at) for token, at in placed[1:] if "\ufffd" not in token]  # the first is no text
    assert len(placed) - 1 - len(plain) == len("🐳é".encode())
    assert [whole[at : at + len(token)] for token, at in plain] == [token for token, _ in plain]
    assert {at for token, at in placed if "\ufffd" in token} == {whole.index("🐳"), whole.index("é")}


@pytest.mark.parametrize("stream", [False, True])
def test_of_a_prompt_that_is_cut_off_the_rest_is_echoed(ask, stream):
    """Tokens have their places in that text."""
    fields = {"truncate_prompt_tokens": 3, "ignore_eos": True}
    answer = ask.complete("Call me Ishmael. Some years ago", echo=True, logprobs=0, stream=stream, extra_body=fields)
    parts = [choice for chunk in answer for choice in chunk.choices if choice.logprobs] if stream else answer.choices
    whole = text(answer) if stream else answer.choices[0].text
    placed = [pair for part in parts for pair in zip(part.logprobs.tokens, part.logprobs.text_offset, strict=True)]
    assert whole.startswith(" Some years ago")
    assert [whole[at : at + len(token)] for token, at in placed] == [token for token, _ in placed]


def test_a_prompt_can_be_scored_without_an_answer(ask):
    answer = ask.complete(echo=True, logprobs=1, max_tokens=0)
    choice = answer.choices[0]
    assert choice.text == "The whale"
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens
    assert choice.logprobs.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in choice.logprobs.token_logprobs[1:])
    assert answer.usage.completion_tokens == 0


def test_scores_of_a_prompt_are_those_of_its_generation(ask):
    made = ask.complete(logprobs=0, **ask.exact)
    whole = "The whale" + made.choices[0].text
    scored = ask.complete(whole, echo=True, logprobs=0, max_tokens=0)
    assert scored.choices[0].text == whole
    last = scored.choices[0].logprobs.token_logprobs[-1]
    assert last == pytest.approx(made.choices[0].logprobs.token_logprobs[-1], abs=1e-2)


@pytest.mark.parametrize(
    "fields",
    [{}, {"seed": 3, "temperature": 1.1}, {"n": 2, "seed": 5, "temperature": 1.3}, {"echo": True}, {"max_tokens": 40}],
    ids=lambda fields: ",".join(fields),
)
def test_a_stream_is_the_whole_answer_in_pieces(ask, fields):
    whole = ask.complete(**fields)
    chunks = ask.complete(stream=True, stream_options={"include_usage": True}, **fields)
    for choice in whole.choices:
        assert text(chunks, choice.index) == choice.text
        ends = [one.finish_reason for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert [one for one in ends if one] == [choice.finish_reason]
    assert chunks[-1].usage.model_dump(exclude={"prompt_tokens_details"}) == whole.usage.model_dump(
        exclude={"prompt_tokens_details"}
    )


@pytest.mark.parametrize("stop", ["one", "several"])
def test_a_stop_string_ends_an_answer(ask, stop):
    whole = ask.complete(**ask.exact).choices[0].text
    found = whole[2:5]
    choice = ask.complete(stop=found if stop == "one" else ["@@", found], **ask.exact).choices[0]
    assert choice.text == whole[: whole.index(found)]
    assert choice.finish_reason == "stop"


def test_a_stop_token_ends_an_answer(ask):
    first = ask.complete(max_tokens=1, logprobs=0).choices[0].logprobs.tokens[0]
    url = str(ask.client.base_url).removesuffix("v1/") + "tokenize"
    body = {"prompt": first, "add_special_tokens": False}
    token = ask.run(ask.client.post(url, body=body, cast_to=object))["tokens"][0]
    choice = ask.complete(extra_body={"stop_token_ids": [token]}).choices[0]
    assert (choice.text, choice.finish_reason, choice.model_extra["stop_reason"]) == ("", "stop", token)


def test_best_of_n_is_n(ask):
    assert len(ask.complete(best_of=2, n=2, temperature=1).choices) == 2


def test_tokens_and_text_are_the_same_prompt(ask):
    base = str(ask.client.base_url).removesuffix("v1/")
    found = ask.run(ask.client.post(base + "tokenize", body={"prompt": "The whale"}, cast_to=object))
    assert found["count"] == len(found["tokens"])
    assert ask.complete(found["tokens"]).choices[0].text == ask.complete("The whale").choices[0].text
    back = ask.run(ask.client.post(base + "detokenize", body={"tokens": found["tokens"]}, cast_to=object))
    assert "The whale" in back["prompt"]


def test_a_conversation_is_counted_as_a_chat_counts_it(ask):
    messages = [{"role": "user", "content": "Who is there?"}]
    base = str(ask.client.base_url).removesuffix("v1/")
    found = ask.run(ask.client.post(base + "tokenize", body={"messages": messages}, cast_to=object))
    assert found["count"] == ask.chat(messages).usage.prompt_tokens


def test_the_model_is_listed_and_found(ask):
    listed = list(ask.run(ask.client.models.list()).data)
    assert [one.id for one in listed] == [ask.model]
    one = ask.run(ask.client.models.retrieve(ask.model))
    assert (one.id, one.object) == (ask.model, "model")
    assert one.model_extra["max_model_len"] > 0
