"""KV memory and the scheduler under a fault at any line: a change has happened, or it has not."""

from __future__ import annotations

import os
from array import array

import pytest

from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import Ledger
from playhead.kv.sequence import SequenceKV
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import Chunk, Request
from playhead.schedule.rows import DeviceRows
from playhead.schedule.scheduler import ScheduleLimits, Scheduler
from playhead.testing.faults import injected
from playhead.testing.kv_rules import run_step, small_layer, small_plan

SHARED = [1] * 20
STRIDE = 1 if os.environ.get("PLAYHEAD_FAULTS") == "full" else 3  # lines from one fault to the next
NUM_ROWS = 5


class Fault(BaseException):
    """Caught by nothing in between, as KeyboardInterrupt."""


def running_cache() -> HybridKVCache:
    """A finished prompt, kept; a request behind it, with a window that slid; one beside it."""
    plan = small_plan([small_layer(8), small_layer(None)], page_size=4, num_slabs=60, max_running=NUM_ROWS)
    cache = HybridKVCache(plan)
    for name, token in (("done", 1), ("a", 1), ("b", 3)):
        seq = cache.admit(name, [token] * 20)
        cache.extend(seq, 20 - seq.num_hit_tokens)
        run_step(cache)
        if name == "done":
            cache.finish(seq, [token] * 20)
    return cache


def admit(cache: HybridKVCache) -> None:
    cache.admit("new", [*SHARED, 5])


def extend(cache: HybridKVCache) -> None:
    cache.extend(cache.sequences["a"], 9)


def finish(cache: HybridKVCache) -> None:
    cache.finish(cache.sequences["b"], [3] * 20)


def commit(cache: HybridKVCache) -> None:
    """Offers, exchanges pages for the tree's, and slides."""
    cache.commit()


CHANGES = {"admit": admit, "extend": extend, "finish": finish, "commit": commit}


def prepared(change: str) -> HybridKVCache:
    cache = running_cache()
    if change == "commit":
        late = cache.admit("late", [3] * 20)  # the prompt of "b", which the tree gets only now
        cache.extend(late, 20 - late.num_hit_tokens)
        cache.extend(cache.sequences["a"], 9)
        cache.allocator.mapping.take_unpublished()
        cache.begin()
    return cache


def places_of(cache: HybridKVCache) -> dict[str, tuple[int, list[int]]]:
    return {name: (seq.num_tokens, seq.pages.tolist()) for name, seq in cache.sequences.items()}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_change_of_kv_memory_is_all_or_nothing_whatever_line_it_was_at(change):
    undisturbed = prepared(change)
    before = set(places_of(undisturbed))
    CHANGES[change](undisturbed)
    after = set(places_of(undisturbed))
    num_faults = 0
    for at in range(0, 2000, STRIDE):
        cache = prepared(change)
        with injected(change, Fault, at) as injection:
            try:
                CHANGES[change](cache)
            except Fault:
                num_faults += 1
        if injection.raised_at is None:
            break
        cache.retire(cache.allocator.launched_step)
        assert cache.settle(), injection.raised_at
        assert set(cache.sequences) in (before, after), injection.raised_at
        assert Ledger(cache).audit() == [], injection.raised_at
        assert cache.rows.num_free + len(cache.sequences) == NUM_ROWS, injection.raised_at
        check_it_goes_on(cache)
    assert num_faults > 10


def check_it_goes_on(cache: HybridKVCache) -> None:
    """Everybody who is left can go on and end, and then no page is held."""
    for seq in list(cache.sequences.values()):
        seq.num_tokens = seq.num_launched_tokens
        cache.extend(seq, 3)
        run_step(cache)
        prompt = array("i", seq.prompt_key).tolist()
        cache.finish(seq, prompt + [7] * (seq.num_tokens - len(prompt)))
        assert Ledger(cache).audit() == []
    assert cache.allocator.num_held == [0, 0]


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt])
def test_a_failing_lookup_leaves_no_row_and_no_page_taken(error, monkeypatch):
    """Once, after as many such errors as there are rows, nobody could be admitted any more."""
    cache = running_cache()
    num_free = cache.rows.num_free

    def fails(*args: object) -> None:
        raise error("in the prefix cache")

    with monkeypatch.context() as patched:
        patched.setattr(cache.prefix, "windows_busy", fails)
        for _ in range(NUM_ROWS + 1):
            with pytest.raises(error):
                admit(cache)
            assert "new" not in cache.sequences
            assert cache.rows.num_free == num_free
    assert Ledger(cache).audit() == []
    admit(cache)


def test_memory_in_doubt_is_counted_again_when_the_steps_in_flight_are_done():
    cache = running_cache()
    cache.allocator.mapping.take_unpublished()
    step = cache.launch()
    with injected("admit", Fault, 40), pytest.raises(Fault):
        admit(cache)
    assert cache.in_doubt
    assert not cache.settle(), "a running step may still touch what would be free"
    cache.retire(step)
    assert not cache.in_doubt
    assert Ledger(cache).audit() == []


def scheduler(num_requests: int = 4) -> tuple[Scheduler, HybridKVCache]:
    """Three rows for four requests, and so little memory that they preempt each other."""
    plan = small_plan([small_layer(8), small_layer(None)], page_size=4, num_slabs=21, max_running=3)
    kv = HybridKVCache(plan)
    made = Scheduler(kv, DeviceRows(), ScheduleLimits(chunk_tokens=12, max_waiting=8))
    for i in range(num_requests):
        prompt = tuple([1, 2][i % 2] for _ in range(10 + i))
        made.add(Request(id=f"r{i}", prompt=prompt, params=SamplingParams(), max_new_tokens=12, arrival=i))
    return made, kv


def launch_and_read(made: Scheduler, kv: HybridKVCache, planned: list[Chunk]) -> None:
    kv.allocator.mapping.take_unpublished()
    kv.retire(kv.launch())
    made.close_plan()
    for chunk in planned:
        if chunk.samples:
            made.commit(chunk, 7)
            if len(chunk.request.output) >= chunk.request.max_new_tokens:
                made.finish(chunk.request, FinishReason.LENGTH)


def state(made: Scheduler, kv: HybridKVCache) -> object:
    def memory(seq: SequenceKV | None) -> int | None:
        return None if seq is None else seq.num_tokens

    requests = (*made.running, *made.waiting)
    known = [(one.id, memory(kv.sequences.get(one.id)), one.num_sampled, tuple(one.output)) for one in requests]
    return known, sorted(kv.sequences)


@pytest.mark.parametrize("step", [0, 1, 3, 6, 9, 12])
def test_a_plan_that_raises_is_taken_back_whatever_line_it_was_at(step):
    """Nobody has moved, unless the plan had preempted somebody before: who lost memory waits."""
    num_faults = 0
    for at in range(0, 4000, 7):
        made, kv = scheduler()
        for _ in range(step):
            launch_and_read(made, kv, made.plan())
        before = state(made, kv)
        num_preempted = kv.num_preempted
        with injected("plan", Fault, at) as injection:
            try:
                made.plan()
            except Fault:
                num_faults += 1
        if injection.raised_at is None:
            break
        if made.in_doubt:
            made.take_back()  # the engine, which knows that nothing was launched
        assert kv.settle()
        assert Ledger(kv).audit() == [], injection.raised_at
        if kv.num_preempted == num_preempted and not kv.num_restored:
            assert state(made, kv) == before, injection.raised_at
        for _ in range(200):
            if not made.has_work:
                break
            launch_and_read(made, kv, made.plan())
        assert not made.has_work, injection.raised_at
        assert not kv.sequences
    assert num_faults >= 3


def test_the_end_of_a_request_raises_nothing_of_its_own(monkeypatch):
    """Once, an end after a failed plan died of ValueError in `running.remove`."""
    made, kv = scheduler()
    launch_and_read(made, kv, made.plan())
    victim = made.running[0]

    def fails(*args: object) -> None:
        raise MemoryError("while its tokens were offered")

    with monkeypatch.context() as patched:
        patched.setattr(kv.prefix, "insert", fails)
        with pytest.raises(MemoryError):
            made.finish(victim, FinishReason.STOP)
    made.finish(victim, FinishReason.STOP)
    assert victim not in made.running
    assert victim.id not in kv.sequences
    assert Ledger(kv).audit() == []
