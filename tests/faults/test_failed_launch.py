"""A launch that fails at any line: nobody is later given KV that was never computed."""

from __future__ import annotations

import random

import pytest

from playhead.testing.fault_runs import leftovers
from playhead.testing.faults import injected
from playhead.testing.tiny_engine import greedy, tiny_engine

PROMPT_TOKENS = 16


@pytest.mark.parametrize(("overlap", "error"), [(False, MemoryError), (True, KeyboardInterrupt)])
def test_a_prompt_whose_launch_failed_is_computed_when_it_is_asked_again(overlap, error):
    """Once, its pages were in the prefix cache before the step ran: the next request hit them and got wrong tokens."""
    engine, alone, rng = (
        tiny_engine(overlap=overlap),
        tiny_engine(overlap=False, prefix_caching=False),
        random.Random(1),
    )
    num_faults = 0
    for number in range(25):
        prompt = tuple(rng.randrange(64) for _ in range(PROMPT_TOKENS))
        wanted = finished_tokens(alone, f"alone {number}", prompt)
        engine.add_request(f"fails {number}", prompt, greedy(4))
        with injected("launch", error, 31 * number) as injection:
            try:
                engine.step()
            except error:
                num_faults += 1
        engine.abort(f"fails {number}")
        tokens = finished_tokens(engine, f"again {number}", prompt)
        assert tokens == wanted, injection.raised_at
        assert leftovers(engine) == [], injection.raised_at
    assert num_faults > 8


def finished_tokens(engine, name, prompt):
    engine.add_request(name, prompt, greedy(4))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return next(output.outputs[0].token_ids for output in outputs if output.request_id == name and output.finished)


def test_a_failed_launch_forgets_no_prefix_that_was_computed():
    """Once, every failed step emptied the whole prefix cache."""
    engine = tiny_engine(overlap=False)
    prompt = tuple(range(20, 36))
    finished_tokens(engine, "first", prompt)
    engine.add_request("fails", (1, 2, 3), greedy(2))
    with injected("launch", MemoryError, 60), pytest.raises(MemoryError):
        engine.step()
    engine.abort("fails")
    engine.add_request("hits", prompt, greedy(2))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert outputs[-1].num_cached_tokens >= PROMPT_TOKENS // 2
