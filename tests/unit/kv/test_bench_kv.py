"""The bench's parts run, small: its figures are only as good as this code."""

from __future__ import annotations

from bench.kv import ROUNDS, insert, plan_of, unseen_prompts
from bench.kv_steady import SteadyRun
from bench.kv_trace import TraceRun
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.prefix import PrefixCache, token_key
from playhead.kv.violations import ViolationLog

GIB = 2**30


def test_every_insert_that_is_timed_is_of_a_prompt_the_tree_does_not_know():
    plan = plan_of("Gemma-3-4B", num_bytes=12 * GIB, max_context_tokens=8192, max_running=64)
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    prefix = PrefixCache(allocator)
    rounds = list(unseen_prompts(allocator))
    for prompts in rounds:
        assert not any(prefix.match("", token_key(tokens)).pages for tokens, _ in prompts)
        assert insert(prefix, prompts) == len(prompts) == 200
    assert len(rounds) == ROUNDS


def test_the_steady_state_stays_within_a_few_percent_of_the_bound():
    """12 GiB hold few requests, so that what is in flight weighs more than in the bench's 64."""
    plan = plan_of("Gemma-3-4B", num_bytes=12 * GIB, max_context_tokens=8192, max_running=64)
    state = SteadyRun(plan, context_tokens=8192).measure(num_decode_steps=33)
    assert state.num_replaced >= state.num_requests - 1
    assert 0.94 < state.fraction_of_bound < 1


def test_the_trace_ends_with_every_request_finished_or_aborted():
    plan = plan_of("Gemma-3-4B", num_bytes=2 * GIB, max_context_tokens=8192, max_running=64)
    run = TraceRun(plan, num_requests=300)
    result = run.run()
    assert result.num_finished + result.num_aborted == 300
    assert result.num_aborted
    assert run.cache.num_preempted
    assert run.cache.prefix.stats.num_hit_pages
    assert run.cache.allocator.num_held == [0, 0]
