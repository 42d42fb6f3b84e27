"""A seed gives its requests: their moments, their lengths, what they share. Nothing else decides."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from playhead.errors import ConfigError
from playhead.load.plan import arrival_times, draw_lengths, plan_requests, prompts_of, size_of
from playhead.load.spec import Arrivals, Dataset, Endpoint, LengthKind, LoadSpec, PromptKind


def times(seed: int = 0, rate: float = 50.0, **spec: object) -> np.ndarray:
    return np.array(arrival_times(LoadSpec(**spec), rate, np.random.default_rng(seed)))


def plan(spec: LoadSpec, rate: float = 10.0, endpoint: Endpoint = Endpoint.COMPLETIONS) -> list:
    return plan_requests(spec, rate, model="m", endpoint=endpoint)


def test_a_seed_gives_the_same_requests_and_another_seed_others():
    first, again, other = (plan(LoadSpec(num_prompts=20, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert [one.at_s for one in first] != [one.at_s for one in other]
    assert len({one.body for one in (*first, *other)}) == 40


def test_the_rate_changes_moments_and_not_prompts():
    slow, fast = (plan(LoadSpec(num_prompts=20), rate) for rate in (1.0, 100.0))
    assert [one.body for one in slow] == [one.body for one in fast]
    assert slow[-1].at_s == pytest.approx(100 * fast[-1].at_s)


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential():
    gaps = np.diff(times(num_prompts=20_000))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_constant_gaps_are_equal():
    assert np.diff(times(num_prompts=50, arrivals=Arrivals.CONSTANT)) == pytest.approx(np.full(49, 1 / 50))


def test_bursts_come_together_and_keep_the_rate():
    found = times(num_prompts=16_000, arrivals=Arrivals.BURST, burst_size=16)
    groups = [len(list(group)) for _, group in itertools.groupby(found)]
    assert set(groups) == {16}
    assert len(found) / found[-1] == pytest.approx(50, rel=0.1)


def test_an_infinite_rate_sends_everything_at_once():
    assert times(rate=math.inf, num_prompts=7).tolist() == [0.0] * 7


def test_a_duration_has_what_falls_into_it_after_the_warm_up():
    requests = plan(LoadSpec(rate="100", duration=4.0, warmup=2.0), rate=100.0)
    assert max(one.at_s for one in requests) < 6.0
    assert sum(one.is_warm_up for one in requests) == pytest.approx(200, rel=0.3)
    assert sum(not one.is_warm_up for one in requests) == pytest.approx(400, rel=0.2)
    assert all(one.is_warm_up == (one.at_s < 2.0) for one in requests)


def test_a_number_of_requests_does_not_count_those_of_the_warm_up():
    requests = plan(LoadSpec(num_prompts=30, warmup=1.0), rate=40.0)
    assert sum(not one.is_warm_up for one in requests) == 30
    assert any(one.is_warm_up for one in requests)


def lengths(count: int = 20_000, **spec: object) -> np.ndarray:
    made = LoadSpec(**spec)
    return np.array(draw_lengths(made, 40, 400, count, np.random.default_rng(3)))


def test_fixed_lengths_are_fixed_and_uniform_ones_fill_their_range():
    assert set(lengths(lengths=LengthKind.FIXED)) == {40}
    assert set(lengths(lengths=LengthKind.UNIFORM, range_ratio=0.5)) == set(range(20, 61))


def test_lognormal_lengths_have_their_median_and_a_tail_that_is_cut():
    found = lengths(lengths=LengthKind.LOGNORMAL, sigma=1.0)
    assert np.median(found) == pytest.approx(40, rel=0.03)
    assert found.min() >= 1
    assert found.max() == 400
    assert np.percentile(found, 84.13) == pytest.approx(40 * math.e, rel=0.05)


@pytest.mark.parametrize("kind", PromptKind)
def test_a_prompt_has_its_length_and_its_share_of_prefixes(kind):
    spec = LoadSpec(num_prompts=40, input_len=12, prefix_len=30, num_prefixes=2, prompts=kind)
    made = prompts_of(spec, 40)
    assert {size_of(one.turns[0]) for one in made} == {12}
    assert {one.input_len for one in made} == {42}
    assert len({one.prefix for one in made}) == 2
    assert len({one.turns for one in made}) == 40


def test_ids_are_in_the_vocabulary():
    made = prompts_of(LoadSpec(prompts=PromptKind.IDS, vocab_size=20, input_len=200), 5)
    ids = {token for one in made for token in one.turns[0]}
    assert ids == {16, 17, 18, 19}


def test_a_mix_is_of_conversations_that_grow_by_question_and_answer():
    made = prompts_of(LoadSpec(dataset=Dataset.MIX, input_len=20, output_len=30, max_input_len=300), 400)
    numbers = [len(one.turns) for one in made]
    assert {number % 2 for number in numbers} == {1}
    assert 1 < np.mean([(number + 1) / 2 for number in numbers]) < 4
    seen: set[tuple] = set()
    for one in made:
        assert len(one.turns) == 1 or one.turns[:-2] in seen
        assert one.input_len <= 300
        seen.add(one.turns)


def test_a_body_asks_for_a_stream_with_usage_and_for_its_own_length():
    body = json.loads(plan(LoadSpec(num_prompts=1, input_len=5, output_len=9, seed=4))[0].body)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"], body["seed"], body["ignore_eos"]) == ("m", 9, 4, True)
    assert len(body["prompt"].split()) == 5
    assert "ignore_eos" not in json.loads(plan(LoadSpec(num_prompts=1, ignore_eos=False))[0].body)


def test_a_chat_has_its_prefix_as_the_system_and_turns_by_role():
    spec = LoadSpec(num_prompts=60, dataset=Dataset.MIX, prefix_len=4, input_len=6, output_len=6)
    longest = max((json.loads(one.body)["messages"] for one in plan(spec, endpoint=Endpoint.CHAT)), key=len)
    assert [one["role"] for one in longest[:4]] == ["system", "user", "assistant", "user"]
    assert longest[-1]["role"] == "user"


@pytest.mark.parametrize("wrong", ["", "fast", "0", "-1", "nan", "4,"])
def test_a_rate_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError, match="--rate: found"):
        LoadSpec(rate=wrong)


def test_rates_are_taken_as_text_and_as_numbers():
    assert LoadSpec(rate="2,4.5").rate == LoadSpec(rate=(2, 4.5)).rate == (2.0, 4.5)
    assert LoadSpec(rate="inf").rates == LoadSpec().rates == (math.inf,)


def test_a_duration_without_a_rate_is_refused():
    with pytest.raises(ConfigError, match="--duration: it needs a finite --rate"):
        LoadSpec(duration=3.0)
