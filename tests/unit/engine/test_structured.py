"""Requests with forms through the whole engine, on the tiny model: exact tokens however they are run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from playhead.errors import NoTokenLeft, RequestFailed
from playhead.kv.ledger import Ledger
from playhead.outputs import FinishReason
from playhead.step.masks import MaskedSteps, Tail
from playhead.testing.structured import (
    END,
    FORCED,
    FORMED,
    SHRINKING,
    TEXTS,
    checked_ask,
    forcing_engine,
    formed,
    formed_alone,
    formed_engine,
    text_of,
    wrong_answers,
)
from playhead.testing.tiny_engine import Ask, greedy, run_asks


@pytest.fixture(scope="module")
def alone():
    return formed_alone()


def run(engine, asks=FORMED):
    finished, found = run_asks(engine, asks, check=checked_ask)
    assert found == []
    assert Ledger(engine.worker.kv).audit() == []
    return finished


def tokens_of(finished):
    return {name: output.outputs[0].token_ids for name, output in finished.items()}


def one(engine, **fields):
    """The only output of one request."""
    bad_words = fields.pop("bad_word_ids", ())
    ask = Ask(name="one", prompt=(5, 6, 7), params=formed(fields.pop("num_tokens", 12), **fields), bad_words=bad_words)
    return run(engine, [ask])["one"]


def test_alone_every_answer_has_its_form(alone):
    assert wrong_answers(alone, alone) == []
    stopped = [ask.name for ask in FORMED if ask.params.structured_outputs and alone[ask.name][-1] == END]
    assert len(stopped) >= 5, alone


@pytest.mark.parametrize("chunk_tokens", [8, 1, 5])
@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_are_the_same_in_any_batch(alone, overlap, chunk_tokens):
    engine = formed_engine(overlap=overlap, chunk_tokens=chunk_tokens, kv_memory_bytes=1 << 20)
    wanted = {name: tokens for name, tokens in alone.items() if name != "given up"}
    assert wrong_answers(tokens_of(run(engine)), wanted) == []
    again = tokens_of(run(engine))  # over cached prefixes
    assert engine.stats.num_cached_tokens > 0
    assert wrong_answers(again, wanted) == []


@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_are_the_same_after_preemption(alone, overlap):
    engine = formed_engine(overlap=overlap)
    found = tokens_of(run(engine))
    assert engine.stats.num_preemptions > 0
    assert wrong_answers(found, {name: tokens for name, tokens in alone.items() if name != "given up"}) == []


def test_plain_steps_are_whole_before_beside_and_after(monkeypatch):
    """Where no request has a form there are no masks, no second graph and no second part."""
    tails, launch = [], Tail.launch
    monkeypatch.setattr(Tail, "launch", lambda self: tails.append(self) or launch(self))
    engine = formed_engine(overlap=True, kv_memory_bytes=1 << 20)
    plain = Ask(name="plain", prompt=(5, 6), params=greedy(6))
    run(engine, [plain])
    assert engine.worker.masked is None
    run(engine, [Ask(name="form", prompt=(5, 6, 7), params=formed(6, regex="[0-9]{4}")), plain])
    num_tails = len(tails)
    assert num_tails >= 5
    run(engine, [plain])
    assert len(tails) == num_tails


def test_a_decode_step_goes_on_without_a_fill(alone):
    engine = formed_engine(overlap=True, kv_memory_bytes=1 << 20)
    fills = []
    ask = next(ask for ask in FORMED if ask.name == "biased")
    engine.submit("biased", checked_ask(engine, replace(ask, comes=0)))
    while engine.has_work:
        engine.step()
        if engine.worker.masked is not None:
            fills.append(engine.worker.masked.registry.num_fills)
    assert len(set(fills)) <= 4, fills  # a capture, and the first step after the prompt
    assert len(fills) > 10


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        ({"choice": ["yes"], "min_tokens": 5}, 1),
        ({"regex": "[0-9]+", "allowed_token_ids": [1, 2, 3]}, 0),
        ({"regex": "a?", "bad_word_ids": ((1,), (END,))}, 0),
        ({"regex": "12|no", "allowed_token_ids": [TOKEN_1 := 28, 29], "bad_word_ids": ((TOKEN_1, 29),)}, 1),
    ],
)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_that_no_token_is_left_for_ends_with_that_error(overlap, fields, num_tokens):
    engine = formed_engine(overlap=overlap, kv_memory_bytes=1 << 20)
    output = one(engine, **fields)
    assert isinstance(output.error, NoTokenLeft), (output.error, output.outputs[0].token_ids)
    assert f"no token that may follow the {num_tokens} so far" in str(output.error)
    assert output.outputs[0].finish_reason == FinishReason.ERROR
    assert text_of(one(engine, choice=["yes"]).outputs[0].token_ids) == "yes"  # the engine goes on


def test_min_tokens_keeps_an_answer_from_ending(alone):
    engine = formed_engine(overlap=True, kv_memory_bytes=1 << 20)
    output = one(engine, regex="[a-z]*", min_tokens=9)
    assert len(output.outputs[0].token_ids) > 9 or output.outputs[0].finish_reason == FinishReason.LENGTH


def test_a_matcher_in_error_ends_its_own_request_alone(alone):
    engine = formed_engine(overlap=True, kv_memory_bytes=1 << 20)
    asks = [ask for ask in FORMED if ask.name in ("digits", "letters")]
    for ask in asks:
        engine.submit(ask.name, checked_ask(engine, ask))
    finished = {}
    for number in range(60):
        if number == 4:
            broken = next(request for request in engine._scheduler.running if request.id == "digits")
            broken.matcher.state.consume_token(1)  # no digit: llguidance is in error for ever
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    assert isinstance(finished["digits"].error, RequestFailed)
    assert finished["letters"].outputs[0].token_ids == alone["letters"]
    assert not engine.has_work


@pytest.mark.parametrize("overlap", [False, True])
def test_a_tail_that_raises_is_computed_anew(alone, monkeypatch, overlap):
    launch, calls = Tail.launch, []

    def fails(self):
        calls.append(self)
        if len(calls) in (3, 9):
            raise MemoryError("no room")
        launch(self)

    monkeypatch.setattr(Tail, "launch", fails)
    found = tokens_of(run(formed_engine(overlap=overlap, kv_memory_bytes=1 << 20)))
    assert len(calls) > 9
    assert wrong_answers(found, {name: tokens for name, tokens in alone.items() if name != "given up"}) == []


@pytest.mark.parametrize("chunk_tokens", [2, 3, 8])
@pytest.mark.parametrize("overlap", [False, True])
def test_forced_tokens_are_those_that_would_have_come_one_by_one(overlap, chunk_tokens):
    steps, found = [], []
    for forced_tokens in (False, True):
        engine = forcing_engine(forced_tokens=forced_tokens, overlap=overlap, chunk_tokens=chunk_tokens)
        found.append(tokens_of(run(engine, FORCED)))
        steps.append(engine.stats.num_steps)
    assert found[0] == found[1]
    assert len(found[1]["cut short"]) == 6
    assert steps[1] < steps[0] or chunk_tokens < 8, steps


def test_a_stop_string_inside_forced_tokens_ends_the_answer_there():
    """Through response and scheduler: what was forced after the stop is dropped."""
    engine = forcing_engine(forced_tokens=True)
    ask = Ask(name="one", prompt=(5, 6), params=formed(24, choice=["k-x:q,z.w-v:"]))
    request = checked_ask(engine, ask)
    stop_id = TEXTS.index(":")
    engine.submit("one", replace(request, params=replace(request.params, stop_token_ids=[END, stop_id])))
    outputs = []
    while engine.has_work:
        outputs += [output for output in engine.step() if output.finished]
    assert text_of(outputs[0].outputs[0].token_ids) == "k-x:"
    assert outputs[0].outputs[0].stop_reason == stop_id
    assert Ledger(engine.worker.kv).audit() == []


def test_samples_of_one_request_have_grammars_of_their_own():
    """The compiled grammar is shared, the place in it is not."""
    engine = formed_engine(overlap=True, kv_memory_bytes=1 << 20)
    asks = [
        Ask(name=f"s{seed}", prompt=(5, 6), params=formed(10, seed=seed, regex="[a-z]{3}-[0-9]{3}"))
        for seed in range(3)
    ]
    texts = [text_of(output.outputs[0].token_ids) for output in run(engine, asks).values()]
    assert len(set(texts)) > 1
    assert all(re.fullmatch("[a-z]{3}-[0-9]{3}", text) for text in texts), texts


def test_masks_of_requests_that_get_no_token_allow_everything(monkeypatch):
    """A prompt that is not whole yet, and a request without a form: what is drawn for them is dropped, or free."""
    seen, sent = [], MaskedSteps.sent

    def watched(self, num_requests):
        found = sent(self, num_requests)
        seen.append((found["allowed_tokens"] == -1).all(dim=1).tolist())
        return found

    monkeypatch.setattr(MaskedSteps, "sent", watched)
    engine = formed_engine(overlap=False, kv_memory_bytes=1 << 20, chunk_tokens=4)
    digits = formed(4, regex="[0-9]{3}")
    asks = [
        Ask(name="short", prompt=(5, 6), params=digits),
        Ask(name="plain", prompt=(5, 6), params=greedy(6)),
        Ask(name="long", prompt=tuple(range(1, 7)), params=digits),
    ]
    run(engine, asks)
    assert seen == [[False, True], [False, True, True], [False, True, True], [False, True, False]]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_form_stays_with_its_request_when_the_batch_shrinks(alone, overlap):
    finished = run(formed_engine(overlap=overlap, kv_memory_bytes=1 << 20), SHRINKING)
    assert finished["digits"].outputs[0].token_ids == alone["digits"]


def test_a_step_in_which_no_form_matters_is_whole(monkeypatch):
    """The first chunks of a prompt give no token that its form could limit."""
    tails, launch = [], Tail.launch
    monkeypatch.setattr(Tail, "launch", lambda self: tails.append(self) or launch(self))
    engine = formed_engine(overlap=False, kv_memory_bytes=1 << 20, chunk_tokens=4)
    run(engine, [Ask(name="one", prompt=tuple(range(1, 11)), params=formed(2, regex="[0-9]{2}"))])
    assert engine.stats.num_steps == len(tails) + 2
