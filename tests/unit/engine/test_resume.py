"""A request that goes on from an earlier run's output gives what an undisturbed run gives, wherever it was cut.

The runs are on the tiny model: greedy and drawn, with filters, penalties, bad words, early ends, stop tokens, forms.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from playhead.engine.async_engine import AsyncEngine
from playhead.engine.front import RequestOptions
from playhead.errors import RequestError
from playhead.llm import LLM
from playhead.outputs import CompletionOutput
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.testing.resumed import CASES, differences_at, is_same, plain_engine, resumed, undisturbed
from playhead.testing.structured import FORCED, checked_ask, forcing_engine, formed, formed_engine
from playhead.testing.tiny_engine import LITTLE_BYTES, Ask, drawn, greedy


@pytest.fixture(scope="module")
def engine():
    return plain_engine()


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_the_same_from_every_cut(engine, name):
    ask = CASES[name]
    whole = undisturbed(engine, ask)
    assert len(whole.token_ids) >= 8
    for cut in range(len(whole.token_ids)):
        assert differences_at(engine, ask, whole, cut) == []


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "[a-z]{3}-[0-9]{4}"},
        {"choice": ["abc:no", "abc:yes", "bc"], "seed": 3},
        {"regex": "(one|two),[0-9]+", "seed": 5, "presence_penalty": 0.5, "logprobs": 2},
    ],
)
def test_an_answer_with_a_form_keeps_it_from_every_cut(form):
    engine = formed_engine(overlap=True, kv_memory_bytes=1 << 20)
    ask = Ask(name="formed", prompt=(5, 6, 7), params=formed(14, **form))
    whole = undisturbed(engine, ask, checked_ask)
    for cut in range(len(whole.token_ids)):
        assert differences_at(engine, ask, whole, cut, checked_ask) == []


def test_tokens_that_must_follow_are_the_same_from_every_cut():
    engine = forcing_engine(forced_tokens=True)
    for ask in FORCED:
        if ask.params.structured_outputs is None or ask.goes is not None:
            continue
        whole = undisturbed(engine, ask, checked_ask)
        for cut in range(len(whole.token_ids)):
            assert differences_at(engine, ask, whole, cut, checked_ask) == []


def test_a_request_that_goes_on_can_be_preempted_and_shares_prefixes(engine):
    """Five at once in little memory, each from another cut."""
    little = plain_engine(kv_memory_bytes=LITTLE_BYTES)
    names = ("greedy", "drawn", "filtered", "penalties", "early end")
    asks = {name: replace(CASES[name], prompt=(*range(20, 34), *CASES[name].prompt)) for name in names}
    wholes = {name: undisturbed(engine, ask) for name, ask in asks.items()}
    responses = {}
    for i, (name, ask) in enumerate(asks.items()):
        responses[name] = resumed(little, replace(ask, name=name), wholes[name], cut=1 + i)
    while little.has_work:
        little.step()
    assert little.stats.num_preemptions > 0
    found = {name: response.request.output for name, response in responses.items()}
    assert found == {name: whole.token_ids for name, whole in wholes.items()}


def test_a_request_that_goes_on_goes_before_those_that_have_not_begun(engine):
    whole = undisturbed(engine, CASES["greedy"])
    waiting = [replace(CASES["drawn"], name=f"w{i}", params=drawn(4, seed=i)) for i in range(5)]
    for ask in waiting:
        engine.submit(ask.name, checked_ask(engine, ask))
    resumed(engine, CASES["greedy"], whole, cut=6)
    engine.step()
    assert "greedy" in {request.id for request in engine.running}
    while engine.has_work:
        engine.step()


TEXT_CASES = {
    "a stop string": SamplingParams(temperature=0, max_tokens=30, stop=("the",), logprobs=2),
    "a stop string shown, late": SamplingParams(
        temperature=0, max_tokens=30, stop=("e",), min_tokens=9, include_stop_str_in_output=True
    ),
    "two drawn samples": SamplingParams(n=2, seed=5, max_tokens=9, ignore_eos=True, logprobs=1),
    "prompt logprobs": SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=2, ignore_eos=True),
}


@pytest.mark.parametrize("name", TEXT_CASES)
def test_texts_stop_strings_samples_and_logprobs_are_the_same_from_every_cut(name):
    params, prompt = TEXT_CASES[name], "It is a truth universally"

    async def every_cut(llm):
        engine = AsyncEngine.of(llm.engine)
        outputs = [output async for output in engine.generate(prompt, params)]
        whole, cuts = outputs[-1], [one for one in outputs if not any(part.finished() for part in one.outputs)]
        assert len(cuts) >= 4
        for cut in cuts:
            if len(cut.outputs) < params.n:
                continue
            again = [output async for output in engine.generate(prompt, params, resume_from=cut.outputs)]
            assert all(map(is_same, again[-1].outputs, whole.outputs))
            assert again[-1].prompt_logprobs == whole.prompt_logprobs
        await engine.close()

    with LLM("embedded", max_model_len=128, max_num_seqs=4) as llm:
        asyncio.run(every_cut(llm))


def test_deltas_of_a_request_that_goes_on_have_what_is_new():
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    async def run(llm):
        engine = AsyncEngine.of(llm.engine)
        outputs = [output async for output in engine.generate("The whale", params)]
        cut, whole = outputs[2].outputs[0], outputs[-1].outputs[0]
        deltas = replace(params, output_kind=RequestOutputKind.DELTA)
        parts = [part.outputs[0] async for part in engine.generate("The whale", deltas, resume_from=[cut])]
        await engine.close()
        assert cut.text + "".join(part.text for part in parts) == whole.text
        assert cut.token_ids + [token for part in parts for token in part.token_ids] == whole.token_ids

    with LLM("embedded", max_model_len=128) as llm:
        asyncio.run(run(llm))


def so_far(*token_ids, **more):
    return CompletionOutput(index=0, text="", token_ids=list(token_ids), finish_reason=None, **more)


@pytest.mark.parametrize(
    ("params", "output", "reason"),
    [
        (greedy(4), so_far(1, 2, 3, 4), "token 4 ends the request"),
        (greedy(8, stop_token_ids=[5]), so_far(1, 5, 3), "token 2 ends the request"),
        (greedy(8), so_far(1, 64), "token id 64"),
        (greedy(8, logprobs=1), so_far(1, 2), "0 tables of logprobs for 2 tokens"),
        (replace(drawn(8, seed=1), seed=None), so_far(1), "no seed"),
        (greedy(8), replace(so_far(1), finish_reason="stop"), "has ended"),
    ],
)
def test_an_output_that_cannot_be_resumed_is_refused_and_leaves_nothing_behind(engine, params, output, reason):
    ask = Ask(name="refused", prompt=(7, 8, 9), params=params)
    arrivals = engine._arrivals
    with pytest.raises(RequestError, match=reason):
        engine.submit("refused", checked_ask(engine, ask), RequestOptions(resume_from=(output,)))
    assert not engine.has_work
    assert engine._arrivals == arrivals


def test_an_output_that_its_grammar_does_not_allow_is_refused():
    engine = formed_engine(overlap=True, kv_memory_bytes=1 << 20)
    ask = Ask(name="refused", prompt=(5, 6), params=formed(8, regex="[0-9]{3}"))
    with pytest.raises(RequestError, match="grammar does not allow"):
        engine.submit("refused", checked_ask(engine, ask), RequestOptions(resume_from=(so_far(1, 2),)))
    assert not engine.has_work


@pytest.mark.parametrize("given", ["x", None, ["x"], [{"index": 0}]])
def test_what_is_no_output_is_refused_by_its_type(engine, given):
    async def resume() -> None:
        async with AsyncEngine.of(engine) as served:
            await anext(served.generate([7, 8, 9], greedy(4), resume_from=given))

    with pytest.raises(RequestError, match=r"resume_from: a \w+; wanted the outputs of a RequestOutput"):
        asyncio.run(resume())
    assert not engine.has_work


def test_every_sample_must_be_resumed():
    options = RequestOptions(resume_from=(so_far(1),))
    with pytest.raises(RequestError, match="all 2"):
        options.of_samples(2)
    assert options.of_samples(1) == [options]
