"""Engines at their limits: the least memory that a plan takes, windows around the page size, chunks of one token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playhead.engine.engine import Engine
from playhead.errors import ConfigError
from playhead.kv.plan import KVLimits
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.testing.tiny_engine import crowd, run_schedule
from playhead.testing.tiny_worker import TINY_GEMMA3, tiny_worker
from playhead.types import Mode

ASKS = crowd(seed=4, count=6)
# The longest request fills the context, which is no whole number of pages.
CONTEXT_TOKENS = max(len(ask.prompt) + (ask.params.max_tokens or 0) for ask in ASKS)


def engine(window, limits, *, page_size, kv_memory_bytes=1 << 20, prefix_caching=True):
    worker = tiny_worker(
        Mode.EAGER,
        model={**TINY_GEMMA3, "sliding_window": window},
        page_size=page_size,
        limits=limits,
        kv_memory_bytes=kv_memory_bytes,
        prefix_caching=prefix_caching,
    )
    return Engine(worker, IdsOnlyTokenizer())


def in_least_memory(window, limits, *, page_size):
    """The engine whose plan is refused with 256 bytes less."""
    refused, taken = 0, 1 << 16
    while taken - refused > 256:
        middle = (refused + taken) // 2
        try:
            engine(window, limits, page_size=page_size, kv_memory_bytes=middle)
        except ConfigError:
            refused = middle
        else:
            taken = middle
    return engine(window, limits, page_size=page_size, kv_memory_bytes=taken)


@pytest.fixture(scope="module", params=[1, 4], ids=lambda window: f"window {window}")
def window_and_tokens(request):
    """A window, and what each request gets alone."""
    limits = KVLimits(max_context_tokens=CONTEXT_TOKENS, max_running=1, chunk_tokens=CONTEXT_TOKENS)
    alone, tokens = engine(request.param, limits, page_size=4, prefix_caching=False), {}
    for ask in ASKS:
        tokens |= run_schedule(alone, [replace(ask, comes=0, priority=0)])[0]
    return request.param, tokens


@pytest.mark.parametrize(("page_size", "chunk_tokens", "max_running"), [(1, 1, 1), (4, 4, 4)])
def test_everybody_gets_on_in_the_least_memory(window_and_tokens, page_size, chunk_tokens, max_running):
    assert CONTEXT_TOKENS % 4 != 0
    window, alone = window_and_tokens
    limits = KVLimits(
        max_context_tokens=CONTEXT_TOKENS, max_running=max_running, chunk_tokens=chunk_tokens, num_steps_in_flight=2
    )
    found, violations = run_schedule(in_least_memory(window, limits, page_size=page_size), ASKS)
    assert violations == []
    assert found == alone
