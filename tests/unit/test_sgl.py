"""SGLang's offline engine: what its dicts become, and what is refused by name."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
import pytest

import playhead.sgl as sgl
from playhead import PlayheadError, SamplingParams
from playhead.errors import AbsentFeature, MisuseError, RequestError
from playhead.sgl import REFUSED_OPTIONS, REFUSED_SAMPLING, GenerateOptions, LogprobOptions

SHORT = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm():
    with sgl.Engine(model_path="embedded", context_length=64, max_running_requests=2, disable_cuda_graph=True) as made:
        yield made


def test_parameters_have_sglangs_names_over_the_models_own(llm):
    given = {"max_new_tokens": 7, "min_new_tokens": 2, "sampling_seed": 3, "no_stop_trim": True, "stop": ["x"]}
    made = llm._params({**given, "logit_bias": {"5": 1.0}, "regex": None, "top_p": None}, LogprobOptions())
    wanted = SamplingParams(
        temperature=0.8, max_tokens=7, min_tokens=2, seed=3, include_stop_str_in_output=True, stop=["x"]
    )
    wanted.logit_bias = {5: 1.0}
    assert made == wanted
    assert llm._params({}, LogprobOptions()).max_tokens == 128
    assert llm._params({"max_new_tokens": None}, LogprobOptions()).max_tokens is None  # all that fit, as in SGLang


def test_the_default_length_gives_way_to_the_context(llm):
    output = llm.generate("The whale", {"temperature": 0, "ignore_eos": True})
    assert output["meta_info"]["prompt_tokens"] + output["meta_info"]["completion_tokens"] == 64


def test_one_prompt_gives_a_dict_and_several_samples_a_list(llm):
    assert llm.generate("The whale", SHORT)["output_ids"] == llm.generate(["The whale"], SHORT)[0]["output_ids"]
    samples = llm.generate(["a", "b"], [{**SHORT, "n": 2}, SHORT])
    assert [sample["meta_info"]["completion_tokens"] for sample in samples] == [3, 3, 3]
    assert len({sample["meta_info"]["id"] for sample in samples}) == 3
    assert len(llm.generate("a", {**SHORT, "n": 2})) == 2


def test_an_end_token_is_what_was_matched(llm):
    end = llm._llm.get_tokenizer().eos_token_id
    output = llm.generate("x", {"temperature": 0, "max_new_tokens": 3, "logit_bias": {str(end): 100.0}})
    assert output["meta_info"]["finish_reason"] == {"type": "stop", "matched": end}
    assert output["text"] == ""


@pytest.mark.parametrize(
    ("sampling", "pattern"),
    [
        ({"regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"json_schema": '{"enum": [12, 34]}'}, "12|34"),
        ({"ebnf": 'root ::= "ab" | "cd"'}, "ab|cd"),
    ],
)
def test_an_answer_has_the_form_that_was_asked_for(llm, sampling, pattern):
    output = llm.generate("x", {"temperature": 0, "max_new_tokens": 8, **sampling})
    assert re.fullmatch(pattern, output["text"])


def test_two_forms_exclude_each_other(llm):
    with pytest.raises(RequestError, match="json and regex; wanted exactly one"):
        llm.generate("x", {"json_schema": "{}", "regex": "a", "ebnf": None})


@pytest.mark.parametrize("name", REFUSED_SAMPLING)
def test_sampling_that_cannot_be_had_is_refused_by_name(llm, name):
    with pytest.raises(RequestError, match=rf"sampling field '{name}': 'x'. Playhead|{name}.*Sampling is part"):
        llm.generate("a", {name: "x"})


@pytest.mark.parametrize("name", REFUSED_OPTIONS)
def test_keywords_that_cannot_be_had_are_refused_by_name(llm, name):
    assert name in GenerateOptions.__annotations__
    assert llm.generate("a", SHORT, **{name: None})
    with pytest.raises(RequestError, match=f"the keyword '{name}'"):
        llm.generate("a", SHORT, **{name: "x"})


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({}, "neither of them; wanted prompt or input_ids"),
        ({"prompt": "a", "input_ids": [1]}, "both; wanted prompt or input_ids"),
        ({"prompt": 7}, "a int; wanted a prompt or a list of prompts"),
        ({"prompt": "a", "sampling_params": {"max_tokens": 5}}, "Did you mean max_new_tokens|one of max_new_tokens"),
        ({"prompt": "a", "sampling_params": [SHORT, SHORT]}, "2 tables; wanted one dict, or 1 of them"),
        ({"prompt": "a", "sampling_params": "hot"}, "a str; wanted one dict"),
        ({"prompt": "a", "sampling_params": {"temperature": "hot"}}, "sampling field 'temperature': 'hot'"),
        ({"prompt": ["a", "b"], "stream": True}, "2 prompts, n=1; wanted one prompt and n=1"),
        ({"prompt": "a", "return_logprobs": True}, "Did you mean return_logprob"),
        ({"prompt": "a", "colour": 1}, "the keyword 'colour'; wanted one of return_logprob, .*. Leave it out"),
        ({"input_ids": [1, "x"]}, "prompt"),
        ({"input_ids": 5}, "a int; wanted a prompt or a list of prompts"),
        ({"prompt": "a", "sampling_params": {5: 5}}, "the key 5; wanted one of max_new_tokens"),
        ({"prompt": "a", "sampling_params": {"logit_bias": 5}}, "sampling field 'logit_bias': 5"),
        ({"prompt": "a", "sampling_params": {"logit_bias": {"x": 1}}}, "sampling field 'logit_bias': 'x'"),
        ({"prompt": "a", "sampling_params": {"logit_bias": {5.7: 1}}}, r"sampling field 'logit_bias': 5\.7"),
        ({"prompt": "a", "sampling_params": {"max_new_tokens": 0}}, "'max_new_tokens': 0.*Change max_new_tokens or"),
        (
            {"prompt": "a", "sampling_params": {"max_new_tokens": 99}},
            "sampling field 'max_new_tokens': 99 after a prompt",
        ),
        ({"prompt": "a", "sampling_params": {"min_new_tokens": 200}}, "'min_new_tokens'.*at most max_new_tokens, 128"),
        ({"prompt": "a", "return_logprob": True, "top_logprobs_num": 30}, "sampling field 'top_logprobs_num': 30"),
        ({"prompt": ["a", "b"], "return_logprob": [False, True]}, r"return_logprob: \[False, True\]; wanted True or"),
        (
            {"prompt": "a", "return_logprob": True, "logprob_start_len": "0"},
            "logprob_start_len: '0'; wanted an integer",
        ),
    ],
)
def test_a_bad_call_is_refused_in_words(llm, keywords, says):
    with pytest.raises(RequestError, match=says):
        llm.generate(**keywords)


def test_a_stream_names_what_was_sent(llm):
    with pytest.raises(RequestError, match="sampling field 'max_new_tokens': 99 after a prompt"):
        next(llm.generate("a", {"max_new_tokens": 99}, stream=True))


def test_ids_may_be_numpys(llm):
    ids = [5, 6, 7]
    assert llm.generate(input_ids=list(np.array(ids)), sampling_params=SHORT)["meta_info"]["prompt_tokens"] == 3


def test_leaving_a_stream_gives_its_request_up(llm):
    stream = llm.generate("The whale", {"temperature": 0, "max_new_tokens": 50, "ignore_eos": True}, stream=True)
    assert next(stream)["meta_info"]["finish_reason"] is None
    stream.close()
    assert not llm._llm.is_busy


def test_coroutines_and_plain_calls_share_the_engine(llm):
    async def two():
        return await asyncio.gather(llm.async_generate("a", SHORT), llm.async_generate(["b", "c"], SHORT))

    one, many = asyncio.run(two())
    assert one["output_ids"] == llm.generate("a", SHORT)["output_ids"]
    assert [answer["output_ids"] for answer in many] == [llm.generate(text, SHORT)["output_ids"] for text in "bc"]
    with pytest.raises(RequestError):
        asyncio.run(llm.async_generate("a", {"stop_regex": "x"}))


def test_shutdown_ends_what_runs():
    """It waited for the last token of every coroutine's request, and held the event loop while it did."""
    llm = sgl.Engine(model_path="embedded", context_length=64, max_running_requests=2, disable_cuda_graph=True)
    long = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}

    async def begin_and_end() -> tuple[Any, Any]:
        stream = await llm.async_generate("The whale", long, stream=True)
        assert (await anext(stream))["meta_info"]["finish_reason"] is None
        waiting = asyncio.create_task(llm.async_generate(["The whale"] * 8, long))
        await anext(stream)  # the task has begun
        llm.shutdown()
        return [answer async for answer in stream][-1], (await asyncio.gather(waiting, return_exceptions=True))[0]

    last, raised = asyncio.run(begin_and_end())
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert isinstance(raised, MisuseError)
    with pytest.raises(MisuseError, match="after close"):
        asyncio.run(llm.async_generate("a", SHORT))


def test_what_the_engine_has_and_has_not():
    llm = sgl.Engine(model_path="embedded", context_length=64, max_running_requests=2)
    info = llm.get_server_info()
    assert (info["context_length"], info["max_running_requests"]) == (64, 2)
    with pytest.raises(AbsentFeature, match=r"Engine\.encode"):
        llm.encode("a")
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(PlayheadError):
        llm.generate("a", SHORT)
