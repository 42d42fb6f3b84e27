"""Requests through the engine on the embedded model: how they end, what they report, what is refused."""

from __future__ import annotations

import itertools

import pytest

from playhead.engine import num_held_back
from playhead.llm import LLM, EngineConfig, as_prompts
from playhead.schedule.errors import RequestError
from playhead.schedule.request import FinishReason
from playhead.schedule.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    with LLM(config=EngineConfig(max_model_len=96, max_num_seqs=4, max_num_batched_tokens=32)) as made:
        yield made


def test_text_is_the_tokens_decoded(llm):
    (output,) = llm.generate("The whale", GREEDY)
    completion = output.outputs[0]
    assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert (len(completion.token_ids), completion.finish_reason) == (12, FinishReason.LENGTH)
    assert output.prompt == "The whale"


def test_a_stop_string_ends_the_text_before_it_and_is_never_shown(llm):
    text = llm.generate("The whale", GREEDY)[0].outputs[0].text
    stop = text[10:14]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[stop])
    shown = [output.outputs[0].text for output in llm.stream("The whale", params)]
    assert shown[-1] == text[: text.index(stop)]
    assert all(after.startswith(before) for before, after in itertools.pairwise(shown))
    completion = llm.generate("The whale", params)[0].outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, stop)


def test_a_stop_token_ends_the_request(llm):
    ids = llm.generate("The whale", GREEDY)[0].outputs[0].token_ids
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[ids[3]])
    completion = llm.generate("The whale", params)[0].outputs[0]
    assert completion.token_ids == ids[: ids.index(ids[3]) + 1]
    assert completion.stop_reason == ids[3]


def test_held_back_text_is_what_may_become_a_stop_string():
    assert num_held_back("the en", ["end", "x"]) == 2
    assert num_held_back("the end of", ["end"]) == 0


def test_several_samples_have_seeds_of_their_own(llm):
    params = SamplingParams(n=3, seed=5, max_tokens=8, temperature=1.0)
    (output,) = llm.generate("The whale", params)
    alone = [llm.generate("The whale", SamplingParams(seed=5 + i, max_tokens=8))[0].outputs[0] for i in range(3)]
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert [c.token_ids for c in output.outputs] == [c.token_ids for c in alone]


def test_logprobs_come_with_the_best_candidates(llm):
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2)
    completion = llm.generate("The whale", params)[0].outputs[0]
    assert [len(entries) for entries in completion.logprobs] == [3, 3, 3]
    for token, (chosen, best, second) in zip(completion.token_ids, completion.logprobs, strict=True):
        assert chosen.token_id == best.token_id == token
        assert 0 >= best.logprob >= second.logprob
    assert completion.cumulative_logprob == pytest.approx(sum(e[0].logprob for e in completion.logprobs))


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "at least 1"),
        ([1, 4096], r"ids in \[0, 4096\)"),
        ([1, -1], "ids in"),
        ([1, True], "token ids"),
        ([1, 2.0], "token ids"),
        ([1] * 96, "at most 95"),
    ],
)
def test_bad_prompts_are_refused_and_others_go_on(llm, prompt, says):
    wanted = llm.generate("The whale", GREEDY)[0].outputs[0].token_ids
    stream = llm.stream("The whale", GREEDY)
    outputs = [next(stream)]
    with pytest.raises(RequestError, match=says):
        llm.engine.add_request("bad", prompt, GREEDY)
    outputs += list(stream)
    assert outputs[-1].outputs[0].token_ids == wanted


def test_a_stream_that_is_left_is_aborted(llm):
    stream = llm.stream("The whale", GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.has_work


def test_an_abort_answers_once(llm):
    llm.engine.add_request("gone", "The whale", GREEDY)
    llm.engine.step()
    output = llm.engine.abort("gone")
    assert output.outputs[0].finish_reason is FinishReason.ABORT
    assert llm.engine.abort("gone") is None


def test_prompts_may_be_one_or_many_text_or_ids():
    assert as_prompts("a") == ["a"]
    assert as_prompts(["a", "b"]) == ["a", "b"]
    assert as_prompts([1, 2]) == [[1, 2]]
    assert as_prompts([[1], [2]]) == [[1], [2]]


def test_chat_needs_a_template(llm):
    with pytest.raises(RequestError, match="chat template"):
        llm.chat([{"role": "user", "content": "hello"}])
