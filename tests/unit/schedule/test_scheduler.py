"""Who runs next, with real KV memory and no model."""

from __future__ import annotations

import pytest

from playhead.errors import RequestError
from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVDtype, KVGeometry, LayerKV
from playhead.kv.ledger import Ledger
from playhead.kv.plan import KVLimits, plan_kv
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import MAX_PREEMPTIONS, Chunk, Request
from playhead.schedule.rows import DeviceRows
from playhead.schedule.scheduler import ScheduleLimits, Scheduler

PAGE, CHUNK = 4, 16


def scheduler(num_pages: int = 64, max_running: int = 4) -> tuple[Scheduler, HybridKVCache]:
    """One full layer, so that a page is a page, and the sink besides."""
    layer = LayerKV(window=None, num_kv_heads=1, k_head_dim=8, v_head_dim=8, dtype=KVDtype.FLOAT32)
    geometry = KVGeometry.of([layer], PAGE)
    limits = KVLimits(max_context_tokens=64, max_running=max_running, chunk_tokens=CHUNK)
    num_bytes = (1 + num_pages) * PAGE * layer.bytes_per_token
    kv = HybridKVCache(
        plan_kv(num_bytes=num_bytes, geometry=geometry, limits=limits), prefix_caching=False, strict=True
    )
    return Scheduler(kv, DeviceRows(), ScheduleLimits(chunk_tokens=CHUNK, max_waiting=8)), kv


def request(name: str, num_prompt: int, *, arrival: int = 0, priority: int = 0, num_new: int = 8) -> Request:
    prompt = tuple(range(num_prompt))
    return Request(
        id=name, prompt=prompt, params=SamplingParams(), max_new_tokens=num_new, arrival=arrival, priority=priority
    )


def run_step(made: tuple[Scheduler, HybridKVCache]) -> dict[str, int]:
    """Plan, launch, retire, and give every sampling request token 7; returns the tokens each request ran."""
    plan, kv = made
    planned: list[Chunk] = plan.plan()
    kv.allocator.mapping.take_unpublished()
    kv.retire(kv.launch())
    plan.close_plan()
    for chunk in planned:
        if chunk.samples:
            plan.commit(chunk, 7)
            if len(chunk.request.output) >= chunk.request.max_new_tokens:
                plan.finish(chunk.request, FinishReason.LENGTH)
    assert Ledger(kv).audit() == []
    return {chunk.request.id: len(chunk.tokens) for chunk in planned}


def test_a_prompt_comes_in_chunks_and_then_decodes():
    made = scheduler()
    made[0].add(request("a", 40))
    assert [run_step(made) for _ in range(4)] == [{"a": 16}, {"a": 16}, {"a": 8}, {"a": 1}]


def test_decoding_requests_go_on_beside_a_long_prompt():
    made = scheduler()
    made[0].add(request("a", 3, arrival=1))
    run_step(made)
    made[0].add(request("b", 40, arrival=2))
    assert [run_step(made) for _ in range(3)] == [{"a": 1, "b": 15}, {"a": 1, "b": 15}, {"a": 1, "b": 10}]


def test_requests_that_decode_leave_a_prompt_half_of_a_step_at_least():
    """With 16 tokens a step and 12 that decode, a prompt gets 8."""
    made = scheduler(num_pages=128, max_running=16)
    for i in range(12):
        made[0].add(request(f"r{i}", 1, arrival=i, num_new=30))
        run_step(made)
    made[0].add(request("long", 40, arrival=12))
    found = run_step(made)
    assert (found["long"], len(found)) == (8, 13)


def test_requests_start_by_priority_and_then_by_arrival():
    made = scheduler(max_running=1)
    for name, arrival, priority in (("late", 3, 0), ("early", 1, 0), ("urgent", 4, -1)):
        made[0].add(request(name, 2, arrival=arrival, priority=priority, num_new=1))
    assert [list(run_step(made)) for _ in range(3)] == [["urgent"], ["early"], ["late"]]


def test_the_last_in_order_gives_way_and_comes_back():
    made = scheduler(num_pages=16, max_running=4)
    for i in range(4):
        made[0].add(request(f"r{i}", 12, arrival=i, num_new=12))
    done: list[str] = []
    steps = 0
    while made[0].has_work:
        before = {r.id for r in (*made[0].waiting, *made[0].running)}
        run_step(made)
        done += sorted(before - {r.id for r in (*made[0].waiting, *made[0].running)})
        steps += 1
        assert steps < 200
    assert made[0].num_preemptions > 0
    assert done[0] == "r0"
    assert sorted(done) == ["r0", "r1", "r2", "r3"]


def test_a_preempted_request_computes_what_it_had_and_loses_no_token():
    made = scheduler(num_pages=16, max_running=4)
    requests = [request(f"r{i}", 12, arrival=i, num_new=12) for i in range(4)]
    for one in requests:
        made[0].add(one)
    while made[0].has_work:
        run_step(made)
    assert all(one.output == [7] * 12 for one in requests)
    assert any(one.num_preemptions for one in requests)
    assert requests[0].num_preemptions == 0


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_an_abort_is_clean_at_any_moment(num_steps):
    made = scheduler()
    gone, stays = request("gone", 40, arrival=1), request("stays", 5, arrival=2, num_new=3)
    made[0].add(gone)
    made[0].add(stays)
    for _ in range(num_steps):
        run_step(made)
    made[0].finish(gone, FinishReason.ABORT)
    while made[0].has_work:
        run_step(made)
    assert stays.output == [7, 7, 7]
    assert "gone" not in made[1].sequences


def test_a_full_queue_refuses_with_the_limit():
    made = scheduler()
    for i in range(8):
        made[0].add(request(f"r{i}", 2, arrival=i))
    with pytest.raises(RequestError, match="fewer than 8"):
        made[0].add(request("one more", 2))


def test_nothing_to_do_is_an_empty_plan():
    assert not scheduler()[0].plan()


def test_nobody_gives_way_for_ever():
    """Urgent requests come one after the other and need all memory; the patient one is protected in the end."""
    made = scheduler(num_pages=16, max_running=2)
    patient = request("patient", 20, arrival=0, num_new=30)
    made[0].add(patient)
    for i in range(1, 60):
        if patient.finish_reason is not None:
            break
        made[0].add(request(f"urgent {i}", 30, arrival=i, priority=-1, num_new=12))
        while any(other.id == f"urgent {i}" for other in (*made[0].waiting, *made[0].running)):
            run_step(made)
    assert patient.finish_reason is FinishReason.LENGTH
    assert 1 < patient.num_preemptions <= MAX_PREEMPTIONS


@pytest.mark.parametrize(
    ("num_prompt", "num_new", "num_places"),
    [(8, 9, 16), (6, 9, 8), (8, 1, 8)],
    ids=["no place for its next token", "a place is left", "no next token"],
)
def test_a_newcomer_that_will_decode_gets_places_ahead(num_prompt, num_new, num_places):
    """With pages of 4 a prompt of 8 and 8 tokens to come take 4 pages at once, so that later steps change no table."""
    plan, kv = scheduler(num_pages=200)
    plan.add(request("a", num_prompt, num_new=num_new))
    plan.plan()
    assert kv.num_places(kv.sequences["a"]) == num_places


def test_a_batch_gets_places_ahead_beside_a_newcomer_that_needs_none():
    made = scheduler(num_pages=200)
    plan, kv = made
    plan.add(request("a", 6, arrival=1, num_new=40))
    run_step(made)
    run_step(made)
    plan.add(request("b", 3, arrival=2))
    planned = plan.plan()
    assert [chunk.end for chunk in planned] == [8, 3]
    assert kv.num_places(kv.sequences["a"]) > 8
    assert kv.num_places(kv.sequences["b"]) == 12  # reserved with the batch: 3 tokens and 7 to come
