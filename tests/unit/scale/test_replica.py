"""A simulated replica is the engine's scheduler on virtual time, and its jumps are its steps."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from playhead.errors import ConfigError
from playhead.scale.simulation.replica import SimReplica
from playhead.scale.simulation.request import ReplicaSpec, SimRequest
from tests.unit.scale.scheduled import scheduled, spec_of, toy_plan

CLOSE = 1e-9


def drawn(seed: int, count: int, *, gap_s: float, num_prefixes: int = 3, most: int = 60) -> list[SimRequest]:
    """Requests of a seed, half of them with a prefix of 16 tokens or of 16 and 12 more."""
    rng, now_s, made = random.Random(seed), 0.0, []
    for index in range(count):
        now_s += rng.expovariate(1 / gap_s)
        prefix, depth = rng.randrange(num_prefixes), rng.choice((0, 0, 1, 2))
        made.append(
            SimRequest(
                index=index,
                arrival_s=now_s,
                prompt_tokens=(0, 16, 28)[depth] + rng.randint(5, most),
                output_tokens=rng.choice((1, 2, rng.randint(3, 80))),
                path=(prefix, (prefix, "more"))[:depth],
                ends=(16, 28)[:depth],
            )
        )
    return made


def played(
    requests: Sequence[SimRequest], spec: ReplicaSpec, *, looks: Sequence[float] = ()
) -> tuple[list[SimRequest], SimReplica]:
    """Copies of these requests after one replica has answered them, looked at in between."""
    ended: list[SimRequest] = []
    replica = SimReplica(spec, ended.append)
    copies = [replace(one) for one in requests]
    moments = sorted([(one.arrival_s, one) for one in copies] + [(at, None) for at in looks], key=lambda pair: pair[0])
    for at_s, request in moments:
        replica.advance(at_s)
        if request is not None:
            replica.submit(request)
    replica.advance(float("inf"))
    assert sorted(one.index for one in ended) == list(range(len(requests))), "every request ends, and once"
    return copies, replica


def without_prefixes(requests: Sequence[SimRequest]) -> list[SimRequest]:
    return [replace(one, path=(), ends=()) for one in requests]


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("gap_s", [1e-4, 2e-3, 2e-2])
def test_a_replica_does_what_the_scheduler_does(window, gap_s):
    """The same steps, the same hits and, to rounding, the same moments: under pressure, at ease and nearly idle."""
    plan, requests = toy_plan(window=window), drawn(3, 60, gap_s=gap_s)
    if window is not None:
        requests = without_prefixes(requests)
    told = scheduled(requests, plan)
    found, replica = played(requests, spec_of(plan))
    assert replica.num_steps == len(told.steps)
    assert replica.num_prompt_tokens == sum(num_prompt for _, num_prompt in told.steps)
    assert {one.index: one.num_cached for one in found} == told.num_cached
    assert any(told.num_cached.values()) == (window is None)
    assert {one.index: one.first_s for one in found} == pytest.approx(told.first_s, rel=CLOSE)
    assert {one.index: one.end_s for one in found} == pytest.approx(told.end_s, rel=CLOSE)


@pytest.mark.parametrize("gap_s", [1e-4, 2e-3, 2e-2])
def test_prefixes_behind_windows_are_hit_as_the_cache_hits_them(gap_s):
    """Nearly: a window that a running request has not slid past yet serves a hit too, and a replica does not see it."""
    plan, requests = toy_plan(window=16), drawn(3, 60, gap_s=gap_s)
    told = scheduled(requests, plan)
    found, replica = played(requests, spec_of(plan))
    num_prompt = sum(count for _, count in told.steps)
    assert num_prompt <= replica.num_prompt_tokens <= 1.02 * num_prompt
    assert sum(one.num_cached for one in found) > 0.9 * sum(told.num_cached.values()) > 0
    assert replica.now_s == pytest.approx(max(told.end_s.values()), rel=0.01)


@pytest.mark.parametrize("has_overlap", [False, True])
@pytest.mark.parametrize("kv_share", [1.0, 0.02])
@pytest.mark.parametrize("seed", range(4))
def test_jumps_are_steps(seed, kv_share, has_overlap):
    """With memory to spare and with memory for a few requests at a time."""
    spec = replace(spec_of(toy_plan()), has_overlap=has_overlap)
    spec = replace(spec, kv_bytes=int(spec.kv_bytes * kv_share))
    requests = drawn(seed, 80, gap_s=1e-3)
    slow, stepped = played(requests, replace(spec, jumps=False))
    fast, jumped = played(requests, spec)
    assert (jumped.num_steps, jumped.num_prompt_tokens) == (stepped.num_steps, stepped.num_prompt_tokens)
    assert [one.num_cached for one in fast] == [one.num_cached for one in slow]
    assert [one.num_preemptions for one in fast] == [one.num_preemptions for one in slow]
    assert [one.first_s for one in fast] == pytest.approx([one.first_s for one in slow], rel=CLOSE)
    assert [one.end_s for one in fast] == pytest.approx([one.end_s for one in slow], rel=CLOSE)
    assert any(one.num_preemptions for one in fast) == (kv_share < 1)


def test_a_look_changes_nothing():
    """A fleet advances a replica whenever it wants to know something."""
    spec, requests = spec_of(toy_plan()), drawn(5, 60, gap_s=2e-3)
    rng = random.Random(1)
    looks = [rng.uniform(0, requests[-1].arrival_s) for _ in range(300)]
    quiet, watched = played(requests, spec)[0], played(requests, spec, looks=looks)[0]
    assert [one.end_s for one in watched] == pytest.approx([one.end_s for one in quiet], rel=CLOSE)


@pytest.mark.parametrize("kv_share", [1.0, 0.05, 0.02])
def test_memory_is_never_more_than_there_is(kv_share):
    spec = spec_of(toy_plan())
    spec = replace(spec, kv_bytes=int(spec.kv_bytes * kv_share))
    _, replica = played(drawn(7, 200, gap_s=5e-4, num_prefixes=40), spec)
    assert 0 < replica.max_held_bytes <= spec.kv_bytes
    assert replica.held_bytes == replica.cache.num_bytes, "nobody runs, so nobody holds anything"
    assert replica.cache.num_pinned_bytes == 0


@pytest.mark.parametrize("kv_share", [1.0, 0.03])
@pytest.mark.parametrize("seed", range(4))
def test_no_request_ends_before_the_replica_says(seed, kv_share):
    """A fleet that looks at that moment sees every end in time, and gets to all of them."""
    ends: list[float] = []
    spec = replace(spec_of(toy_plan()), has_overlap=bool(seed % 2))
    spec = replace(spec, kv_bytes=int(spec.kv_bytes * kv_share))
    replica = SimReplica(spec, lambda one: ends.append(one.end_s))
    for one in drawn(seed, 40, gap_s=2e-3):
        replica.advance(one.arrival_s)
        replica.submit(one)
        while (due_s := replica.next_end_s()) < one.arrival_s + 1e-3:
            before = len(ends)
            replica.advance(due_s)
            assert all(end >= due_s * (1 - CLOSE) for end in ends[before:])
    num_looks = 0
    while replica.num_requests:
        due_s, before, num_looks = replica.next_end_s(), len(ends), num_looks + 1
        replica.advance(due_s)
        assert all(end >= due_s * (1 - CLOSE) for end in ends[before:])
    assert len(ends) == 40
    assert num_looks < replica.num_steps or kv_share < 1


def test_a_window_that_fills_brings_the_end_nearer():
    """Until it is full each step is longer than the last; a rule that went on so would say too late a moment."""
    ended: list[SimRequest] = []
    replica = SimReplica(spec_of(toy_plan()), ended.append)
    replica.submit(SimRequest(index=0, arrival_s=0.0, prompt_tokens=5, output_tokens=60))
    replica.advance(1e-9)
    due_s = replica.next_end_s()
    replica.advance(math.inf)
    assert 0.9 * ended[0].end_s < due_s <= ended[0].end_s * (1 + CLOSE)


def test_a_preempted_request_comes_back_before_those_that_came_after_it():
    """The second request loses its memory to the first. The third is short and would find memory at once."""
    spec = spec_of(toy_plan())
    spec = replace(spec, kv_bytes=spec.live_bytes[216] + spec.live_bytes[100] + 2 * spec.page_bytes)
    first = SimRequest(index=0, arrival_s=0.0, prompt_tokens=100, output_tokens=120)
    second = SimRequest(index=1, arrival_s=1e-6, prompt_tokens=90, output_tokens=110)
    third = SimRequest(index=2, arrival_s=0.03, prompt_tokens=8, output_tokens=2)
    (one, two, three), _ = played([first, second, third], replace(spec, max_running=2))
    assert one.num_preemptions == 0
    assert two.num_preemptions > 0
    assert three.first_s > one.end_s


def test_with_overlap_a_request_that_comes_during_a_step_sits_the_next_one_out():
    spec = spec_of(toy_plan())
    first = SimRequest(index=0, arrival_s=0.0, prompt_tokens=8, output_tokens=50)
    late = SimRequest(index=1, arrival_s=1e-6, prompt_tokens=8, output_tokens=1)
    at_once = played([first, late], spec)[0][1].first_s
    overlapped = played([first, late], replace(spec, has_overlap=True))[0][1].first_s
    step_s = spec.fixed_s[1] + spec.kv_s * spec.live_bytes[9]
    assert overlapped - at_once == pytest.approx(step_s, rel=0.01)


def test_a_request_that_never_fits_is_refused():
    spec = spec_of(toy_plan())
    with pytest.raises(ConfigError, match="more than the 256"):
        SimReplica(spec, print).submit(SimRequest(index=0, arrival_s=0, prompt_tokens=250, output_tokens=7))
    with pytest.raises(ConfigError, match="bytes of KV"):
        SimReplica(replace(spec, kv_bytes=4000), print).submit(
            SimRequest(index=0, arrival_s=0, prompt_tokens=200, output_tokens=7)
        )
