"""What a request may ask of the sampler, and how it is told that it may not."""

from __future__ import annotations

import copy
import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest

from playhead.errors import PlayheadError, RequestError
from playhead.sampling_params import SAMPLING_SETTINGS, RequestOutputKind, SamplingKind, SamplingParams

NAN, INF = math.nan, math.inf
HUGE = 10**5000  # more digits than Python prints

REFUSED = {
    "n": [0, 16385, True, 1.0, "1", None, HUGE],
    "temperature": [-0.1, NAN, INF, -INF, 1e7, True, "0.5", None, HUGE],
    "top_k": [-2, True, 1.5, "3", None, HUGE],
    "top_p": [0, 0.0, -0.5, 1.01, NAN, INF, True, "0.9", None],
    "min_p": [-0.01, 1.01, NAN, False, "0.1", None],
    "repetition_penalty": [0, -1, 1e7, NAN, INF, True, "1", None],
    "presence_penalty": [-2.1, 2.1, NAN, INF, True, "1", None],
    "frequency_penalty": [-2.1, 2.1, NAN, -INF, True, "1", None],
    "logit_bias": [
        {1: 1.1e9},
        {1: -INF},
        {1: NAN},
        {1: True},
        {1: "5"},
        {-1: 1.0},
        {"1": 1.0},
        {True: 1.0},
        {1.0: 1.0},
        [(1, 1.0)],
        "1",
    ],
    "seed": [2**63, -(2**63) - 1, 1.0, True, "7", HUGE],
    "logprobs": [-1, 21, True, 5.0, "5"],
    "prompt_logprobs": [-1, 21, True, 5.0, "5"],
    "stop": [["a"] * 4097, "x" * 65537, [""], "", [1], [None], [b"a"], 3, {"a": 1}],
    "stop_token_ids": [[-1], [True], [1.0], ["1"], 5, "5", {5}],
    "bad_words": [[""], [7], 7, ["a"] * 4097],
    "allowed_token_ids": [[], [-1], [True], [1.0], ["1"], 5, {5}],
    "min_tokens": [-1, 17, True, 1.0, "1", None],
    "max_tokens": [0, -1, True, 2.0, "2", HUGE],
    "truncate_prompt_tokens": [0, -2, True, 1.0, "1"],
    "structured_outputs": ["json", 5, True, [("regex", "a")], {1: "a"}],
    "output_kind": [0, "DELTA", None],
    **{
        name: [1, 0, "true", None]
        for name in (
            "ignore_eos",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "detokenize",
            "include_stop_str_in_output",
        )
    },
}

ALLOWED = {
    "n": [1, 16384],
    "temperature": [0, 0.0, 1, 2.5, 1e6],
    "top_k": [-1, 0, 1, 10**9],
    "top_p": [1e-9, 1, 1.0],
    "min_p": [0, 1],
    "repetition_penalty": [1e-300, 2, 1e6],
    "presence_penalty": [-2, 2.0],
    "frequency_penalty": [-2.0, 2],
    "logit_bias": [{}, {0: 1e9, 7: -1e9}, dict.fromkeys(range(5000), 0.0)],
    "seed": [None, 0, -(2**63), 2**63 - 1],
    "logprobs": [None, 0, 20],
    "prompt_logprobs": [None, 0, 20],
    "truncate_prompt_tokens": [None, -1, 1, 10**9],
    "allowed_token_ids": [None, (3, 1)],
    "bad_words": [(), ("a", " b")],
    "output_kind": list(RequestOutputKind),
    "min_tokens": [0, 16],
    "max_tokens": [None, 1, 10**9],
    "ignore_eos": [True, False],
    "skip_special_tokens": [True, False],
}


def outside(declared):
    """Values that a number's own declaration rules out."""
    low, high = declared.setting.low, declared.setting.high
    beyond = [low - 1 if low is not None else None, high + 1 if high is not None else None]
    edges = [value for value in (*beyond, low if declared.setting.above else None) if value is not None]
    return [*edges, True, "1", NAN, *([] if declared.is_optional else [None])]


NUMBERS = [one for one in SAMPLING_SETTINGS if one.kind in (int, float) and one.setting.take is None]
REFUSED_VALUES = [(name, value) for name, values in REFUSED.items() for value in values]
REFUSED_VALUES += [(one.name, value) for one in NUMBERS for value in outside(one)]


def test_every_field_has_refused_values():
    assert {name for name, _ in REFUSED_VALUES} == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(*case, id=f"{case[0]}-{i}") for i, case in enumerate(REFUSED_VALUES)]
)
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(RequestError) as refusal:
        SamplingParams(**{name: value})
    assert repr(name) in refusal.value.where
    assert refusal.value.found
    assert refusal.value.wanted
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ALLOWED.items() for value in values])
def test_a_value_at_the_limit_is_kept_as_it_is(name, value):
    kept = dataclasses.asdict(SamplingParams(**{name: value}))[name]
    assert kept == value
    assert type(kept) is type(value)


def test_a_refusal_shows_the_field_the_value_and_the_limit():
    with pytest.raises(PlayheadError, match=r"'top_p': 1\.5; wanted a finite number above 0 and at most 1\. Change"):
        SamplingParams(top_p=1.5)
    with pytest.raises(PlayheadError, match="'n': 0; wanted an integer from 1 to 16384"):
        SamplingParams(n=0)
    with pytest.raises(PlayheadError, match=r"'logit_bias': 2000000000\.0; wanted a finite number from -1e\+09 to 1e"):
        SamplingParams(logit_bias={5: 2e9})
    with pytest.raises(
        PlayheadError, match="'stop': a string of 65537 characters; wanted at most 4096 strings of 1 to"
    ):
        SamplingParams(stop="x" * 65537)
    with pytest.raises(PlayheadError, match="'seed': an integer of 16610 bits"):
        SamplingParams(seed=HUGE)


def test_many_and_long_stops_are_accepted():
    assert len(SamplingParams(stop=["x" * 1000] * 200).stop) == 200
    assert len(SamplingParams(stop_token_ids=list(range(5000))).stop_token_ids) == 5000


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("best_of", "not supported. Ask for n samples with logprobs=0"),
        ("use_beam_search", "There is no beam search"),
        ("logits_processors", "A captured graph cannot call Python. Use logit_bias"),
        ("guided_decoding", "It is called structured_outputs now"),
        ("extra_args", "Nothing here would read them"),
        ("length_penalty", "There is no beam search"),
        ("flat_logprobs", "Logprobs are tables by token id"),
        ("logprob_token_ids", "Use logprobs"),
        ("skip_reading_prefix_cache", "Give the prompt a cache_salt of its own"),
        ("thinking_token_budget", "Use max_tokens"),
        ("temprature", "no such field; wanted one of n, temperature, .*Did you mean temperature?"),
        ("xyz", "no such field; .*Remove it"),
    ],
)
def test_a_field_that_there_is_not_is_refused_by_name_with_what_to_do(field, says):
    with pytest.raises(RequestError, match=f"^sampling field '{field}': .*{says}"):
        SamplingParams(**{field: 1})


def test_a_value_without_a_name_is_refused():
    with pytest.raises(RequestError, match="SamplingParams: 1 values without a name; wanted names"):
        SamplingParams(0.5)


def test_numpy_scalars_count_as_the_numbers_they_are():
    params = SamplingParams(
        n=np.int64(2),
        temperature=np.float32(0.7),
        top_k=np.uint8(5),
        ignore_eos=np.bool_(True),
        stop_token_ids=[np.int32(7)],
        logit_bias={np.int64(3): np.float16(0.5)},
        allowed_token_ids=[np.int16(9)],
    )
    assert params == SamplingParams(
        n=2,
        temperature=float(np.float32(0.7)),
        top_k=5,
        ignore_eos=True,
        stop_token_ids=[7],
        logit_bias={3: 0.5},
        allowed_token_ids=[9],
    )
    assert [type(value) for value in (params.n, params.temperature, params.ignore_eos)] == [int, float, bool]
    for wrong in ({"n": np.bool_(True)}, {"top_k": np.float32(5)}, {"ignore_eos": np.int64(1)}, {"n": np.array([1])}):
        with pytest.raises(RequestError):
            SamplingParams(**wrong)


def test_no_text_and_stop_strings_exclude_each_other():
    with pytest.raises(RequestError, match="'detokenize': False; wanted True, because stop strings"):
        SamplingParams(detokenize=False, stop=["x"])
    assert SamplingParams(detokenize=False, stop=[], stop_token_ids=[5]).stop_token_ids == (5,)


@pytest.mark.parametrize(
    ("most", "max_tokens", "kept"), [(None, 16, 500), (3, 16, 3), (900, 16, 500), (-1, 16, 84), (-1, None, 99)]
)
def test_a_prompt_is_cut_to_its_last_tokens(most, max_tokens, kept):
    params = SamplingParams(truncate_prompt_tokens=most, max_tokens=max_tokens)
    assert params.num_prompt_tokens(500, 100) == kept


def test_optional_fields_may_be_given_as_none():
    params = SamplingParams.from_optional(n=None, temperature=None, top_k=5, max_tokens=None, stop=None, seed=None)
    assert params == SamplingParams(top_k=5, max_tokens=None)
    assert params.clone() == params
    assert copy.deepcopy(params) == params


def test_a_single_stop_string_is_a_sequence_of_one():
    assert SamplingParams(stop="\n").stop == ("\n",)


def test_none_means_none_of_them():
    params = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None)
    assert (params.stop, params.stop_token_ids, params.logit_bias) == ((), (), {})


def test_what_was_checked_does_not_change_with_the_callers_objects():
    stop, ids, bias = ["a"], [1], {1: 2.0}
    params = SamplingParams(stop=stop, stop_token_ids=ids, logit_bias=bias)
    stop.append(5)
    ids.append("x")
    bias[1] = NAN
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("a",), (1,), {1: 2.0})


def test_a_clone_has_every_value_and_shares_none_that_can_change():
    values = {name: found[-1] for name, found in ALLOWED.items()}
    params = SamplingParams(**{**values, "min_tokens": 1, "max_tokens": 5, "logit_bias": {1: 2.0}})
    clone = params.clone()
    assert clone == params
    params.logit_bias[1] = 3.0
    params.top_k = 7
    assert (clone.logit_bias, clone.top_k) == ({1: 2.0}, values["top_k"])


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(*case, id=f"{case[0]}-{i}") for i, case in enumerate(REFUSED_VALUES)]
)
def test_a_value_that_was_set_is_checked_by_the_clone(name, value):
    params = SamplingParams()
    setattr(params, name, value)
    with pytest.raises(RequestError) as refusal:
        params.clone()
    assert repr(name) in refusal.value.where


def test_params_can_be_compared_and_replaced():
    params = SamplingParams(logit_bias={1: 2.0}, stop=["a"])
    assert params == SamplingParams(logit_bias={1: 2.0}, stop=("a",))
    with pytest.raises(RequestError, match="'top_k'"):
        dataclasses.replace(params, top_k=-5)


def test_temperatures_too_small_to_divide_by_are_greedy():
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=9e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy


LEAST_KIND = {
    SamplingKind.GREEDY: [{"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1}, {"temperature": 9e-6}],
    SamplingKind.DRAWN: [{}, {"top_k": -1}, {"seed": 5}, {"prompt_logprobs": 5}],
    SamplingKind.FILTERED: [{"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5}],
    SamplingKind.EVERYTHING: [
        {"temperature": 0, "logprobs": 0},
        {"temperature": 0, "logit_bias": {1: 1}},
        {"temperature": 0, "repetition_penalty": 1.1},
        {"temperature": 0, "presence_penalty": -1},
        {"temperature": 0, "frequency_penalty": 1},
        {"temperature": 0, "bad_words": ["a"]},
        {"temperature": 0, "allowed_token_ids": [1]},
    ],
}


@pytest.mark.parametrize(("kind", "options"), [(kind, one) for kind, cases in LEAST_KIND.items() for one in cases])
def test_a_request_needs_the_least_kind_of_sampling_that_serves_it(kind, options):
    assert SamplingParams(**options).kind is kind


@pytest.mark.parametrize(
    ("max_tokens", "prompt_len", "effective"), [(16, 83, 16), (16, 84, 16), (1, 99, 1), (None, 90, 10), (None, 1, 99)]
)
def test_max_tokens_may_fill_the_context(max_tokens, prompt_len, effective):
    assert SamplingParams(max_tokens=max_tokens).check_against(1000, prompt_len, 100) == effective


@pytest.mark.parametrize(("max_tokens", "prompt_len", "room"), [(16, 85, 15), (2, 99, 1), (10**12, 1, 99)])
def test_more_tokens_than_the_context_leaves_are_refused_with_both_numbers(max_tokens, prompt_len, room):
    says = f"'max_tokens': {max_tokens} after a prompt of {prompt_len} tokens; wanted at most {room}"
    with pytest.raises(RequestError, match=says):
        SamplingParams(max_tokens=max_tokens).check_against(1000, prompt_len, 100)


@pytest.mark.parametrize("prompt_len", [100, 101, 5000])
def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(prompt_len):
    with pytest.raises(RequestError, match=f"prompt: {prompt_len} tokens; wanted at most 99.*context of 100"):
        SamplingParams().check_against(1000, prompt_len, 100)


def test_an_empty_prompt_is_refused():
    with pytest.raises(RequestError, match="prompt: 0 tokens"):
        SamplingParams().check_against(1000, 0, 100)


def test_min_tokens_must_fit_the_context_too():
    params = SamplingParams(min_tokens=12, max_tokens=16)
    assert dataclasses.replace(params, max_tokens=12).check_against(1000, 88, 100) == 12
    with pytest.raises(RequestError, match="'min_tokens': 12 after a prompt of 89 tokens; wanted at most 11"):
        params.check_against(1000, 89, 100)


@pytest.mark.parametrize("field", ["stop_token_ids", "logit_bias", "allowed_token_ids"])
@pytest.mark.parametrize("token", [10, 11, 10**12, HUGE], ids=["size", "beyond", "large", "huge"])
def test_an_id_outside_the_vocabulary_is_refused(field, token):
    ids = {0: 1.0, 9: 1.0, token: 1.0} if field == "logit_bias" else [0, 9, token]
    params = SamplingParams(**{field: ids})
    with pytest.raises(RequestError, match=rf"'{field}': token id .*; wanted ids in \[0, 10\)"):
        params.check_against(10, 5, 100)
    if token == 10:
        assert params.check_against(11, 5, 100) == 16


def test_sampling_params_import_no_torch():
    code = "import sys, playhead.sampling_params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
