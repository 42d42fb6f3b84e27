"""The figures of docs/figures show what the code computes today."""

from __future__ import annotations

import json

import pytest

from bench import figures
from bench.kv_models import models
from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVGeometry
from playhead.kv.plan import KVLimits, plan_kv

DRAWN = json.loads((figures.FIGURES / "data.json").read_text())


@pytest.mark.parametrize("part", ["memory", "window", "decode"])
def test_the_numbers_drawn_are_the_numbers_computed(part):
    """`python -m bench.figures` draws them again."""
    assert {"memory": figures.memory, "window": figures.window, "decode": figures.decode}[part]() == DRAWN[part]


@pytest.mark.parametrize("name", figures.MEMORY_MODELS)
def test_a_request_in_the_cache_holds_the_bytes_drawn(name):
    contexts, wanted = DRAWN["memory"]["contexts"][:5], DRAWN["memory"]["models"][name]["playhead_bytes"][:5]
    limits = KVLimits(max_context_tokens=16384, max_running=1, chunk_tokens=512)
    plan = plan_kv(num_bytes=32 * 2**30, geometry=KVGeometry.of(models()[name], 16), limits=limits)
    cache = HybridKVCache(plan, prefix_caching=False)
    seq, held = cache.admit("request", [1]), []
    for context in contexts:
        for num_tokens in (context - seq.num_tokens - 1, 1):  # the prompt, then a decode step
            cache.extend(seq, num_tokens)
            pages = cache.allocator.num_held
            in_bytes = sum(n * one.page_stride_bytes for n, one in zip(pages, plan.layout.groups, strict=True))
            cache.allocator.mapping.take_unpublished()
            cache.retire(cache.launch())
        held.append(in_bytes)
    assert held == wanted


def test_no_measured_step_is_faster_than_the_floor():
    for rows in DRAWN["decode"]["models"].values():
        for engine in ("Playhead", *figures.PEERS):
            assert all(ms > floor for ms, floor in zip(rows[engine], rows["floor"], strict=True))
