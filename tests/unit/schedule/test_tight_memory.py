"""The least memory a plan allows, random requests with shared prefixes: somebody always gets on, and all end."""

from __future__ import annotations

import random

import pytest

from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVDtype, KVGeometry, LayerKV
from playhead.kv.layout import lay_out
from playhead.kv.plan import KVLimits, KVPlan, _least_slabs, plan_kv
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import Request
from playhead.schedule.rows import DeviceRows
from playhead.schedule.scheduler import ScheduleLimits, Scheduler

NUM_REQUESTS = 25
# With these a prefix hit, scattered over slabs, kept its own request out for good.
ONCE_LOCKED = [103, 1123, 1271]


def layer(window: int | None, num_kv_heads: int) -> LayerKV:
    return LayerKV(window=window, num_kv_heads=num_kv_heads, k_head_dim=16, v_head_dim=16, dtype=KVDtype.FLOAT32)


def tight_cache(rng: random.Random) -> tuple[HybridKVCache, KVLimits]:
    """A random hybrid geometry with the fewest slabs its plan accepts, or up to two more."""
    page_size, context = rng.choice([1, 2, 4]), rng.choice([16, 24, 32])
    chunk = rng.choice([2, 4, 8, 16])
    full_heads, window_heads, window = rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.choice([2, 4, 8])
    geometry = KVGeometry.of([layer(None, full_heads), layer(window, window_heads)], page_size)
    layout = lay_out(geometry)
    limits = KVLimits(max_context_tokens=context, max_running=rng.choice([1, 2, 3]), chunk_tokens=chunk)
    empty = KVPlan(geometry=geometry, limits=limits, layout=layout, num_slabs=1)
    num_slabs = _least_slabs(empty, context) + rng.choice([0, 0, 1, 2])
    plan = plan_kv(num_bytes=num_slabs * layout.slab_bytes, geometry=geometry, limits=limits)
    return HybridKVCache(plan, prefix_caching=rng.random() < 0.8, strict=True), limits


def random_request(rng: random.Random, number: int, context: int) -> Request:
    num_prompt = rng.randint(1, context - 1)
    prompt = tuple(rng.randint(0, 1) if i > rng.choice([0, 6]) else 0 for i in range(num_prompt))
    return Request(
        id=str(number),
        prompt=prompt,
        params=SamplingParams(max_tokens=None),
        max_new_tokens=rng.randint(1, context - num_prompt),
        arrival=number,
        priority=rng.choice([0, 0, 1]),
    )


@pytest.mark.parametrize("seed", [*ONCE_LOCKED, *range(20)])
def test_every_request_ends(seed):
    rng = random.Random(seed)
    kv, limits = tight_cache(rng)
    scheduler = Scheduler(kv, DeviceRows(), ScheduleLimits(chunk_tokens=limits.chunk_tokens, max_waiting=100))
    num_added = num_steps = 0
    while num_added < NUM_REQUESTS or scheduler.has_work:
        while num_added < NUM_REQUESTS and len(scheduler.waiting) < 4 and rng.random() < 0.5:
            scheduler.add(random_request(rng, num_added, limits.max_context_tokens))
            num_added += 1
        if not scheduler.has_work:
            continue
        planned = scheduler.plan()
        num_steps += 1
        assert planned, "nothing can run although requests wait"
        assert num_steps < 20_000, "requests preempt each other for ever"
        assert sum(len(chunk.tokens) for chunk in planned) <= limits.chunk_tokens + limits.max_running
        kv.allocator.mapping.take_unpublished()
        kv.retire(kv.launch())
        scheduler.close_plan()
        for chunk in planned:
            if rng.random() < 0.03:
                scheduler.finish(chunk.request, FinishReason.ABORT)
            elif chunk.samples:
                scheduler.commit(chunk, rng.randint(0, 1))
                if len(chunk.request.output) >= chunk.request.max_new_tokens:
                    scheduler.finish(chunk.request, FinishReason.LENGTH)
    assert not kv.sequences
