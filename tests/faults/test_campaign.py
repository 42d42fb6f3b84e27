"""The campaign: faults of every kind at every part of a step, at random depths, sync and async.

A slice runs in the suite. `PLAYHEAD_FAULTS=full python -m pytest tests/faults -s` runs all of it and prints counts.
"""

from __future__ import annotations

import os
import random

import pytest

from playhead.llm import LLM
from playhead.sampling_params import SamplingParams
from playhead.testing.async_faults import run_async_fault
from playhead.testing.fault_runs import FaultPicker, check_outputs, leftovers, run_with_faults
from playhead.testing.faults import ERRORS, PLAIN_SITES, SITES
from playhead.testing.structured import FORCED, checked_ask, forcing_engine
from playhead.testing.tiny_engine import LITTLE_BYTES, crowd, run_asks, tiny_engine, tokens_alone

IS_FULL = os.environ.get("PLAYHEAD_FAULTS") == "full"
NUM_SEEDS = 40 if IS_FULL else 2
NUM_ASYNC = 5 * len(PLAIN_SITES) * len(ERRORS) if IS_FULL else len(PLAIN_SITES)
NUM_CAPTURES = 20 if IS_FULL else 2
FAULT_EVERY = 3  # steps
CROWD = crowd(seed=0, count=24 if IS_FULL else 14)
PROMPTS = ("The whale", "Call me", "My fellow citizens,")
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, stop=("never said",))


@pytest.fixture(scope="module")
def wanted():
    return tokens_alone(CROWD)


@pytest.mark.parametrize("kv_memory_bytes", [LITTLE_BYTES, 1 << 20], ids=["little memory", "plenty"])
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_no_fault_costs_more_than_the_request_it_hits(seed, overlap, kv_memory_bytes, wanted):
    engine = tiny_engine(overlap=overlap, kv_memory_bytes=kv_memory_bytes)
    picker = FaultPicker(rng=random.Random(seed))
    report = run_with_faults(engine, CROWD, picker, lambda number: number % FAULT_EVERY == 2)
    assert check_outputs(report, wanted, picker.num_raised) == []
    assert leftovers(engine) == []
    assert picker.num_raised > 5
    show(picker, report.num_steps)


@pytest.mark.parametrize("site", PLAIN_SITES)
def test_faults_at_one_site_alone(site, wanted):
    """Sites that are seldom reached in turn: many tries each."""
    engine = tiny_engine(overlap=True)
    picker = FaultPicker(rng=random.Random(7), sites=(site,))
    report = run_with_faults(engine, CROWD, picker, lambda number: number % 2 == 1 and number < 200)
    assert check_outputs(report, wanted, picker.num_raised) == []
    assert leftovers(engine) == []
    assert picker.num_raised > 0
    show(picker, report.num_steps)


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_no_fault_changes_an_answer_with_a_form(seed, overlap):
    """Masks, forced tokens and second parts of steps too: a request with a form is as safe as one without."""
    finished, _ = run_asks(forcing_engine(forced_tokens=True), FORCED, check=checked_ask)
    wanted = {name: output.outputs[0].token_ids for name, output in finished.items()}
    for sites in (tuple(SITES), ("masks",), ("launch", "commit")):
        engine = forcing_engine(forced_tokens=True, overlap=overlap, chunk_tokens=5)
        picker = FaultPicker(rng=random.Random(seed), sites=sites)
        report = run_with_faults(engine, FORCED, picker, lambda number: number % FAULT_EVERY == 2, check=checked_ask)
        assert check_outputs(report, wanted, picker.num_raised) == []
        assert leftovers(engine) == []
        assert picker.num_raised > 2
        show(picker, report.num_steps)


def small_llm() -> LLM:
    return LLM("embedded", max_model_len=48, max_num_seqs=2, kv_memory_bytes=1 << 22, max_num_batched_tokens=8)


def test_no_fault_under_an_event_loop_leaves_anybody_waiting():
    picker = FaultPicker(rng=random.Random(3), sites=[site for site in PLAIN_SITES if site != "capture"])
    with small_llm() as llm:
        wanted = {prompt: llm.generate(prompt, PARAMS)[0].outputs[0].token_ids for prompt in PROMPTS}
        for _ in range(NUM_ASYNC):
            assert run_async_fault(llm, PROMPTS, PARAMS, wanted, picker) == []
    assert picker.num_raised > NUM_ASYNC // 3
    show(picker, NUM_ASYNC)
    captures = FaultPicker(rng=random.Random(4), sites=("capture",))
    for _ in range(NUM_CAPTURES):
        with small_llm() as llm:  # a new one: its graphs are captured while it serves
            assert run_async_fault(llm, PROMPTS, PARAMS, wanted, captures) == []
    assert captures.num_raised == NUM_CAPTURES
    show(captures, NUM_CAPTURES)


def show(picker: FaultPicker, num_runs: int) -> None:
    if IS_FULL:
        print(
            f"{num_runs} steps or runs, {picker.num_raised} faults:",
            dict(picker.num_by_site),
            dict(picker.num_by_error),
        )
