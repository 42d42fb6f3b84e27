"""K6 by hypothesis: the rules as a state machine, so that a broken one comes out as a short story."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from playhead.testing.kv_rules import CHUNK_TOKENS, KVRules, drain, small_layer, small_plan

MIN_RULES = int(os.environ.get("PLAYHEAD_KV_RULES", "40000"))
NUM_PARTS = 4
WINDOWS = [(8, None), (8, 4, None), (8,), (None,), (5, None), (1, 7, None)]
"""Of whole pages, where the frontier of a window waits for a page to fill, and others."""

requests = st.integers(0, 4)
tokens = st.integers(0, 1)
prompts = st.lists(tokens, min_size=1, max_size=24)


class KVMachine(RuleBasedStateMachine):
    """Every rule of K6. Page size and windows are drawn first; memory is too small for what will be asked."""

    def __init__(self):
        super().__init__()
        self.num_rules = 0
        self.rules = None

    @initialize(page_size=st.sampled_from([1, 2, 3, 4]), windows=st.sampled_from(WINDOWS))
    def start(self, page_size, windows):
        layers = [small_layer(window) for window in windows]
        self.rules = KVRules(small_plan(layers, page_size=page_size, num_slabs=100 // page_size))

    @invariant()
    def count(self):
        self.num_rules += 1

    @rule(salt=st.sampled_from(["", "other"]), prompt=prompts)
    def admit(self, salt, prompt):
        self.rules.admit(salt, prompt)

    @rule(which=requests, num_kept=st.integers(0, 40), tail=st.lists(tokens, min_size=1, max_size=6))
    def share_prefix(self, which, num_kept, tail):
        self.rules.share_prefix(which, num_kept, tail)

    @rule(which=requests, num_tokens=st.integers(1, CHUNK_TOKENS))
    def extend(self, which, num_tokens):
        self.rules.extend(which, num_tokens)

    @rule(which=requests, token=tokens, times=st.integers(1, 12))
    def decode_and_slide(self, which, token, times):
        for _ in range(times):
            self.rules.decode(which, token)

    @rule(which=requests)
    def finish(self, which):
        self.rules.finish(which)

    @rule(which=requests)
    def abort(self, which):
        self.rules.abort(which)

    @rule(which=requests)
    def preempt(self, which):
        self.rules.preempt(which)

    @rule()
    def readmit(self):
        self.rules.readmit()

    @rule(num_pages=st.integers(1, 8))
    def evict(self, num_pages):
        self.rules.evict(num_pages)

    @rule()
    def flush(self):
        self.rules.flush()

    @rule()
    def fail_alloc(self):
        self.rules.fail_alloc()

    @rule()
    def launch(self):
        self.rules.launch()

    @rule()
    def retire(self):
        self.rules.retire()

    def teardown(self):
        if self.rules is not None:
            drain(self.rules)


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_no_sequence_of_rules_loses_or_doubles_a_page(part):
    """Parts, so that they can run side by side; each turn of each part draws its own stories."""
    told, num_rules = [], 0

    class CountedMachine(KVMachine):
        def teardown(self):
            nonlocal num_rules
            num_rules += self.num_rules
            if self.rules is not None:
                told[-1].append((self.rules.num_rules_run, self.rules.num_out_of_pages))
            super().teardown()

    while num_rules < MIN_RULES // NUM_PARTS:
        # Without a seed of its own every turn of every part would tell the same stories.
        machine = seed(part + NUM_PARTS * len(told))(CountedMachine)
        told.append([])
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=50,
                stateful_step_count=100,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert len(set(map(tuple, told))) == len(told)
