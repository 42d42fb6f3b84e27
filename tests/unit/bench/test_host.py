"""The host's work for a step, counted in calls of functions: what a busy machine cannot change."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from bench.host import CASES, Population, calls_of, measured, num_calls
from bench.idle_engine import MeteredEngine, idle_worker

FEW, MANY = 8, 40


@pytest.fixture(scope="module")
def engine() -> MeteredEngine:
    """Room for many short requests: 40 prompts of 128 tokens are one step."""
    return MeteredEngine(idle_worker(max_running=MANY, max_context=1024, window=512, prefix_caching=False))


def calls(engine: MeteredEngine, name: str, num_requests: int) -> int:
    """Functions that a step of a case calls when its sizes have been seen."""
    case = replace(CASES[name], num_steps=24)
    measured(engine, case, num_requests)
    return statistics.median_low(num_calls(engine, case, num_requests))


@pytest.mark.parametrize(
    ("name", "most"),
    [("steady", 225), ("one ends", 500), ("one ends, one comes", 1370)],
)
def test_a_step_calls_few_functions_however_many_requests_it_has(engine, name, most):
    few, many = calls(engine, name, FEW), calls(engine, name, MANY)
    assert many <= most
    assert many - few < 40


def test_pages_for_all_requests_are_taken_at_once(engine):
    """Some work for each request, and none of it a path through the planner."""
    case = replace(CASES["pages"], num_steps=80)
    few, many = (num_calls(engine, case, num_requests) for num_requests in (FEW, MANY))
    assert few
    assert max(many) - max(few) < 8 * (MANY - FEW)


def test_tokens_of_an_idle_engine_go_to_their_requests(engine):
    """The requests get a token in every step, as many as they asked for, and all memory comes back."""
    population = Population(engine, replace(CASES["one ends"], num_steps=6), FEW)
    population.start()
    before = [len(request.output) for request in engine.running]
    for step in population.steps():
        step()
    assert before
    assert all(len(request.output) > before[0] for request in engine.running)
    population.end()
    assert engine.worker.kv.sequences == {}
    assert engine.stats.num_violations == 0


def test_calls_are_counted_with_those_that_the_calls_make():
    def inner() -> int:
        return len("four")

    assert calls_of(inner) == 2 + 1  # inner, len, and the end of the count
