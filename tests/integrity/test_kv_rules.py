"""K6 by a seeded driver: 60,000 rules over geometries and page sizes, each checked against sets.

Hypothesis drives the same rules in `test_kv_state_machine.py` and shrinks what it finds; this driver always runs the
same rules, so a change of behaviour shows as one.
"""

from __future__ import annotations

import pytest

from playhead.kv.prefix import Outcome
from playhead.testing.kv_rules import KVRules, run_random_rules, small_layer, small_plan

NUM_RULES = 60_000

MODELS = {
    "hybrid": (8, 8, 8, None),
    "two windows": (8, 8, None, 4),
    "odd window": (None, 7),
    "all window": (8,),
    "all full": (None,),
}

# Slabs so few that every pool runs dry.
NUM_SLABS = {
    ("hybrid", 1): 50, ("hybrid", 4): 15, ("hybrid", 16): 11,
    ("two windows", 1): 60, ("two windows", 4): 18, ("two windows", 16): 11,
    ("odd window", 1): 85, ("odd window", 4): 24, ("odd window", 16): 12,
    ("all window", 1): 30, ("all window", 4): 10, ("all window", 16): 7,
    ("all full", 1): 60, ("all full", 4): 16, ("all full", 16): 8,
}  # fmt: skip

CASES = [(model, page_size, seed) for (model, page_size) in NUM_SLABS for seed in (1, 2)]
RULES_PER_CASE = NUM_RULES // len(CASES)


@pytest.mark.parametrize(("model", "page_size", "seed"), CASES)
def test_rules_in_any_order_keep_every_page_accounted_for(model, page_size, seed):
    layers = [small_layer(window, num_kv_heads=1 + index % 2) for index, window in enumerate(MODELS[model])]
    rules = KVRules(small_plan(layers, page_size=page_size, num_slabs=NUM_SLABS[model, page_size]))
    run_random_rules(rules, seed=seed, num_rules=RULES_PER_CASE)
    assert rules.num_rules_run >= RULES_PER_CASE
    assert rules.num_out_of_pages > 0, "a driver that never fills the pools proves nothing"


@pytest.mark.parametrize("page_size", [1, 4])
def test_rules_hold_without_the_prefix_cache(page_size):
    layers = [small_layer(8), small_layer(None)]
    rules = KVRules(small_plan(layers, page_size=page_size, num_slabs=80 // page_size), prefix_caching=False)
    run_random_rules(rules, seed=3, num_rules=3000)


def test_the_driver_reaches_every_outcome():
    layers = [small_layer(8), small_layer(8), small_layer(8), small_layer(None)]
    rules = KVRules(small_plan(layers, page_size=1, num_slabs=90))
    run_random_rules(rules, seed=5, num_rules=5000)
    outcomes = rules.cache.prefix.stats.num_by_outcome
    assert len(outcomes) == len(Outcome)
    assert min(outcomes.values()) > 5, outcomes
    assert rules.cache.num_preempted > 50
