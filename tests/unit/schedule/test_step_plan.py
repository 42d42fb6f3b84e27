"""A batch that goes on decoding: its plan follows from the last one, and is the plan that would be made anew."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from playhead.kv.cache import HybridKVCache
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk, Request
from playhead.schedule.rows import DecodeSlots
from playhead.schedule.scheduler import Scheduler
from playhead.schedule.step_plan import StepPlan
from playhead.types import Step
from tests.unit.schedule.test_scheduler import request, run_step, scheduler


def facts(chunk: Chunk) -> tuple[object, ...]:
    """All of a chunk that a step and its reading depend on."""
    return chunk.request.id, chunk.seq.row, tuple(chunk.tokens), chunk.end, chunk.samples, chunk.num_generated


def read(made: Scheduler, planned: StepPlan) -> None:
    """Every request of a step that sampled gets token 7."""
    _, left = made.commit_plain(planned, [7] * len(planned))
    while left:
        chunk = planned[left.pop()]
        if chunk.request.finish_reason is None:
            made.commit(chunk, 7)
            if len(chunk.request.output) >= chunk.request.max_new_tokens:
                made.finish(chunk.request, FinishReason.LENGTH)


@dataclass(kw_only=True)
class Side:
    """A scheduler whose steps are read when the next one is on its way, as an engine's are; with `is_prompt` before."""

    made: Scheduler
    kv: HybridKVCache
    requests: list[Request]
    is_prompt: bool = False
    last: tuple[StepPlan, Step] | None = None

    @classmethod
    def of(cls, seed: int, num_pages: int, *, is_prompt: bool) -> Side:
        made, kv = scheduler(num_pages=num_pages)
        drawn = random.Random(seed)
        requests = [
            request(f"r{i}", drawn.randint(1, 9), arrival=i, num_new=drawn.randint(1, 30), priority=drawn.randint(0, 1))
            for i in range(40)
        ]
        for one in requests:
            one.is_plain = drawn.random() < 0.7
        return cls(made=made, kv=kv, requests=requests, is_prompt=is_prompt)

    @classmethod
    def empty(cls, num_pages: int = 600) -> Side:
        made, kv = scheduler(num_pages=num_pages)
        return cls(made=made, kv=kv, requests=[])

    def step(self) -> StepPlan:
        planned = self.made.plan()
        launched = None
        if planned:
            self.kv.allocator.mapping.take_unpublished()
            launched = planned, self.kv.launch()
            self.made.close_plan()
        to_read, self.last = (launched, None) if self.is_prompt else (self.last, launched)
        if to_read is not None:
            self.kv.retire(to_read[1])
            read(self.made, to_read[0])
        return planned


@pytest.mark.parametrize("is_prompt", [False, True])
@pytest.mark.parametrize("num_pages", [16, 64, 600])
@pytest.mark.parametrize("seed", range(4))
def test_a_plan_that_follows_is_the_plan_made_anew(seed, num_pages, is_prompt):
    """Two schedulers, the same requests, aborts and memory; one may go on, the other plans every step anew."""
    one, other = (Side.of(seed, num_pages, is_prompt=is_prompt) for _ in range(2))
    drawn, num_following, num_beside = random.Random(seed), 0, 0
    for step in range(200):
        for side in (one, other):
            if step % 5 == 0 and side.made.can_queue:
                side.made.add(side.requests[step // 5])
        aborted = drawn.randrange(4) if drawn.random() < 0.15 else 4
        for side in (one, other):
            for gone in side.made.running[aborted : aborted + 1]:
                side.made.finish(gone, FinishReason.ABORT)
        other.made._last = None
        following, anew = one.step(), other.step()
        assert [facts(chunk) for chunk in following] == [facts(chunk) for chunk in anew]
        num_following += following.goes_on
        num_beside += 0 < following.num_going_on < len(following)
    assert [a.output for a in one.requests] == [b.output for b in other.requests]
    assert num_following > 20
    assert num_beside > 5


def test_a_plan_that_follows_has_the_arrays_of_its_chunks():
    made = scheduler(num_pages=600)
    for i in range(3):
        made[0].add(request(f"r{i}", 5, arrival=i, num_new=20 if i else 4))
    for _ in range(4):
        run_step(made)
    following = made[0].plan()
    assert following.goes_on
    assert len(following) == 2  # the first request has all its tokens
    anew = StepPlan.of([*following])
    for name in ("rows", "ends", "num_generated", "num_left", "first_tokens", "samples", "watched"):
        np.testing.assert_array_equal(getattr(following, name), getattr(anew, name))
    assert (following.requests, following.seqs, following.formed) == (anew.requests, anew.seqs, anew.formed)
    assert (following.num_tokens, following.is_decode) == (anew.num_tokens, anew.is_decode)


def test_a_plan_beside_newcomers_has_the_arrays_of_its_chunks():
    """One request goes on, and a chunk of a long prompt is beside it."""
    side = Side.empty()
    side.made.add(request("on", 5, num_new=20))
    for _ in range(4):
        side.step()
    side.made.add(request("long", 30, arrival=1, num_new=20))
    for num_tokens, samples in ((15, False), (15, True)):
        beside = side.step()
        assert (beside.num_going_on, len(beside), beside.is_decode) == (1, 2, False)
        (long,) = beside.newcomers
        assert (beside[-1], len(long.tokens), long.samples) == (long, num_tokens, samples)
        anew = StepPlan.of([*beside])
        for name in ("rows", "ends", "num_generated", "num_left", "first_tokens", "lens", "samples", "watched"):
            np.testing.assert_array_equal(getattr(beside, name), getattr(anew, name))
        assert (beside.requests, beside.seqs, beside.num_tokens) == (anew.requests, anew.seqs, anew.num_tokens)


def test_newcomers_join_the_stride_of_a_batch_that_goes_on():
    side = Side.empty()
    first, second = (request(name, 5, arrival=i, num_new=20) for i, name in enumerate(("first", "second")))
    side.made.add(first)
    strides = [side.step().stride for _ in range(3)]
    side.made.add(second)
    side.step()
    planned = side.step()
    assert planned.goes_on
    assert planned.stride is strides[-1]
    assert [seq.growth.stride for seq in planned.seqs] == [planned.stride] * 2
    assert planned.stride.seqs == planned.seqs
    assert [(one.num_sampled, seq.num_tokens) for one, seq in zip((first, second), planned.seqs, strict=True)] == [
        (5, 9),
        (2, 6),
    ]


def test_a_newcomer_whose_place_is_between_others_has_the_batch_planned_anew():
    side = Side.empty()
    side.made.add(request("later", 5, num_new=20, priority=1))
    for _ in range(3):
        side.step()
    side.made.add(request("first", 5, arrival=1, num_new=20))
    side.step()
    planned = side.step()
    assert not planned.goes_on
    assert [one.id for one in planned.requests] == ["first", "later"]


def test_a_batch_that_lost_a_request_to_a_prompt_is_planned_anew():
    """The rest of a long prompt takes the memory of the last request, which decodes."""
    made, kv = scheduler(num_pages=16)
    side = Side(made=made, kv=kv, requests=[], is_prompt=True)
    for place, name in enumerate(("stays", "loses"), start=1):
        made.add(request(name, 16, arrival=place, num_new=20))
    for _ in range(4):
        side.step()
    made.add(request("long", 40, num_new=4))
    plans = [side.step() for _ in range(2)]
    assert [[one.id for one in planned.requests] for planned in plans] == [
        ["stays", "loses", "long"],
        ["stays", "long"],
    ]
    assert all(kv.sequences[chunk.request.id] is chunk.seq for chunk in plans[-1])


def test_the_ending_ids_of_a_batch_are_those_of_its_newcomers_too():
    side, found = Side.empty(), []
    for place, ids in enumerate(({3}, {3}, {4})):
        one = request(f"r{place}", 5, arrival=place, num_new=20)
        one.ending_ids = frozenset(ids)
        side.made.add(one)
        found.append(side.step().ending_ids)
    assert found == [{3}, {3}, {3, 4}]


def test_slots_do_not_hold_a_plan_that_takes_a_page_for_its_own_token():
    """The device looked for the place when the step before ran, and it was not there."""
    side = Side.empty(num_pages=16)  # too few to reserve some
    side.made.add(request("a", 5, num_new=20))
    plans = [side.step() for _ in range(12)]
    slots = [DecodeSlots.after_launch(plan, SamplingKind.GREEDY, num_fills=0, num_places=None, box=1) for plan in plans]
    held = [
        before.hold(plan, SamplingKind.GREEDY, num_fills=0, box=1)
        for before, plan in zip(slots, plans[1:], strict=False)
    ]
    # Tokens 9, 13 and 17 begin a page of 4.
    assert held == [True, True, True, False, True, True, True, False, True, True, True]
    assert all(plan.follows(before) for before, plan in pairwise(plans))
    assert [plan.goes_on for plan in plans] == [False] + [True] * 11


def test_a_plan_that_follows_can_be_taken_back():
    made = scheduler()
    one = request("a", 5, num_new=20)
    made[0].add(one)
    for _ in range(3):
        run_step(made)
    num_tokens, num_sampled = made[1].sequences["a"].num_tokens, one.num_sampled
    assert made[0].plan().goes_on
    made[0].take_back()
    assert (made[1].sequences["a"].num_tokens, one.num_sampled) == (num_tokens, num_sampled)
    assert not made[0].plan().goes_on


def test_plain_tokens_are_given_out_once_however_often_it_is_asked():
    made, kv = scheduler()
    plain, watched = (request(name, 5, arrival=i, num_new=20) for i, name in enumerate(("plain", "watched")))
    plain.is_plain = True
    made.add(plain)
    made.add(watched)
    side = Side(made=made, kv=kv, requests=[])
    _, planned = side.step(), side.step()
    assert made.commit_plain(planned, [8, 9]) == (1, [1])
    assert made.commit_plain(planned, [8, 9]) == (0, [1])
    assert (plain.output, watched.output) == ([7, 8], [7])


@pytest.mark.parametrize(("ending_ids", "num_new"), [({8}, 20), ((), 2)])
def test_a_token_that_may_end_a_request_is_looked_at(ending_ids, num_new):
    made, kv = scheduler()
    one = request("a", 5, num_new=num_new)
    one.is_plain, one.ending_ids = True, frozenset(ending_ids)
    made.add(one)
    side = Side(made=made, kv=kv, requests=[])
    _, planned = side.step(), side.step()
    assert made.commit_plain(planned, [8]) == (0, [0])


def test_a_request_that_has_ended_gets_no_more_tokens():
    made, kv = scheduler()
    one = request("a", 5, num_new=20)
    one.is_plain = True
    made.add(one)
    side = Side(made=made, kv=kv, requests=[])
    _, planned = side.step(), side.step()
    made.finish(one, FinishReason.ABORT)
    assert made.commit_plain(planned, [8]) == (0, [0])
    assert one.output == [7]
