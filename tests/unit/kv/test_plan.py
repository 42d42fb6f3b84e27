"""Bytes become an arena, the arena a capacity, and impossible options an error that says what would fit."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from bench.kv_models import models
from playhead.errors import ConfigError
from playhead.kv.geometry import KVGeometry
from playhead.kv.layout import lay_out
from playhead.kv.plan import KVLimits, hybrid_bound_tokens, least_bytes, longest_context, plan_kv, useful_bytes
from playhead.testing.kv_rules import small_layer

GIB = 2**30
LIMITS = KVLimits(max_context_tokens=131072, max_running=256, chunk_tokens=1024, num_steps_in_flight=2)

BOUNDS = {
    "Gemma-3-1B": (4.84, 5.99),
    "Gemma-3-4B": (3.94, 5.76),
    "Gemma-3-12B": (3.69, 5.19),
    "Gemma-3-27B": (3.76, 5.33),
    "gpt-oss-20b": (1.97, 1.99),
    "MiMo-V2-Flash": (8.51, 9.35),
}


def plan_of(name: str, *, num_bytes: int = 64 * GIB, limits: KVLimits = LIMITS):
    return plan_kv(num_bytes=num_bytes, geometry=KVGeometry.of(models()[name], 16), limits=limits)


@pytest.mark.parametrize("name", list(BOUNDS))
def test_bound_is_the_scorecard_s(name):
    geometry = KVGeometry.of(models()[name], 16)
    num_bytes = 64 * GIB
    uniform = num_bytes / geometry.bytes_per_token
    for context, times in zip((8192, 32768), BOUNDS[name], strict=True):
        assert hybrid_bound_tokens(num_bytes, geometry, context) / uniform == pytest.approx(times, abs=0.006)


@pytest.mark.parametrize("context", [8192, 32768])
@pytest.mark.parametrize("name", list(BOUNDS))
def test_planned_capacity_is_within_three_percent_of_the_bound(name, context):
    capacity = plan_of(name).capacity(context)
    assert 0.97 <= capacity.fraction_of_bound <= 1
    assert capacity.num_requests * context <= capacity.num_tokens < (capacity.num_requests + 1) * context


@pytest.mark.parametrize("name", list(BOUNDS))
def test_slabs_of_requests_hold_their_pages_and_the_steps_in_flight(name):
    plan = plan_of(name)
    fits = plan.capacity(131072)
    slabs = plan.slabs_of(fits.num_requests, 131072)
    assert sum(slabs) + 1 <= plan.num_slabs  # the sink's
    assert sum(plan.slabs_of(fits.num_requests + 1, 131072)) + 1 > plan.num_slabs
    in_flight = 2 * 1024 // 16
    for layout, slabs_of_one in zip(plan.layout.groups, plan.slabs_of(1, 131072), strict=True):
        window = layout.group.window
        pages = 131072 // 16 if window is None else window // 16 + 1 + in_flight
        assert slabs_of_one == -(-pages // layout.pages_per_slab)


@pytest.mark.parametrize("chunk_tokens", [1, 5, 64, 1000])
@pytest.mark.parametrize("page_size", [3, 16, 64])
@pytest.mark.parametrize("windows", [(None,), (None, 5), (5, None, 40), (5,), (5, 40)], ids=str)
def test_bytes_that_are_said_to_be_enough_are_taken_and_hold_what_they_are_for(windows, page_size, chunk_tokens):
    """Chunks are shorter than a page, or longer than a context: every count of them must be the same."""
    geometry = KVGeometry.of([small_layer(window) for window in windows], page_size)
    limits = KVLimits(max_context_tokens=64, max_running=6, chunk_tokens=chunk_tokens, num_steps_in_flight=2)
    alone = replace(limits, max_running=1)
    for one, num_bytes in ((alone, least_bytes(geometry, alone)), (limits, useful_bytes(geometry, limits))):
        plan = plan_kv(num_bytes=num_bytes, geometry=geometry, limits=one)
        assert longest_context(num_bytes, geometry, one) >= 64
        assert plan.capacity(64).num_requests >= one.max_running


def test_a_context_that_cannot_fit_is_refused_with_one_that_does():
    limits = KVLimits(max_context_tokens=131072, max_running=1, chunk_tokens=1024)
    with pytest.raises(ConfigError, match="max_context_tokens: found 131072") as refusal:
        plan_of("Gemma-3-4B", num_bytes=GIB, limits=limits)
    fitting = int(re.search(r"lower max_context_tokens to (\d+)", str(refusal.value))[1])
    plan_of("Gemma-3-4B", num_bytes=GIB, limits=KVLimits(max_context_tokens=fitting, max_running=1, chunk_tokens=1024))
    with pytest.raises(ConfigError):
        plan_of(
            "Gemma-3-4B",
            num_bytes=GIB,
            limits=KVLimits(max_context_tokens=fitting + 16, max_running=1, chunk_tokens=1024),
        )


def test_bytes_too_few_are_refused_with_enough():
    limits = KVLimits(max_context_tokens=131072, max_running=1, chunk_tokens=1024)
    with pytest.raises(ConfigError) as refusal:
        plan_of("Gemma-3-4B", num_bytes=GIB, limits=limits)
    enough = int(re.search(r"Raise kv_memory_bytes to (\d+)", str(refusal.value))[1])
    assert plan_of("Gemma-3-4B", num_bytes=enough, limits=limits).capacity(131072).num_requests >= 1


def test_too_many_running_requests_are_refused_with_as_many_as_fit():
    limits = KVLimits(max_context_tokens=1024, max_running=10**6, chunk_tokens=128)
    with pytest.raises(ConfigError, match="max_running: found 1000000") as refusal:
        plan_of("Gemma-3-1B", num_bytes=GIB, limits=limits)
    most = int(re.search(r"Lower max_running to (\d+)", str(refusal.value))[1])
    plan_of("Gemma-3-1B", num_bytes=GIB, limits=KVLimits(max_context_tokens=1024, max_running=most, chunk_tokens=128))


@pytest.mark.parametrize("windows", [(None,), (1024, 1024, None), (1024,)], ids=str)
def test_locations_beyond_int32_are_refused(windows):
    """The last location of the largest plan is an int32; a plan of one slab more is refused, with bytes that fit."""
    geometry = KVGeometry.of([small_layer(window) for window in windows], 16)
    layout = lay_out(geometry)
    most_per_slab = 16 * max(group.pages_per_slab for group in layout.groups if group.has_bytes)
    num_slabs = (2**31 - 1) // most_per_slab
    plan = plan_kv(num_bytes=num_slabs * layout.slab_bytes, geometry=geometry, limits=LIMITS)
    last_loc = max(16 * plan.num_pages(index) for index in range(len(geometry.groups))) - 1
    assert np.array(last_loc).astype(np.int32) == last_loc
    with pytest.raises(ConfigError, match="int32") as refused:
        plan_kv(num_bytes=(num_slabs + 1) * layout.slab_bytes, geometry=geometry, limits=LIMITS)
    advised = int(re.search(r"Lower kv_memory_bytes to (\d+)", str(refused.value)).group(1))
    plan_kv(num_bytes=advised, geometry=geometry, limits=LIMITS)


@pytest.mark.parametrize("field", ["max_context_tokens", "max_running", "chunk_tokens", "num_steps_in_flight"])
def test_limits_refuse_values_below_one(field):
    values = {"max_context_tokens": 1, "max_running": 1, "chunk_tokens": 1, "num_steps_in_flight": 1, field: 0}
    with pytest.raises(ConfigError, match=field):
        KVLimits(**values)


def test_the_plan_reads_as_text():
    text = plan_of("Gemma-3-12B").describe()
    assert "8 layers" in text
    assert "5 pages per slab" in text
    assert "of the hybrid bound" in text
