"""Snapshots of an engine: what they say adds up at every moment of a run."""

from __future__ import annotations

from collections import Counter

import pytest

from playhead.engine.engine import Engine
from playhead.engine.snapshot import MAX_SQUARES, EngineSnapshot, GroupUse, PageState, take_snapshot
from playhead.testing.tiny_engine import LITTLE_BYTES, Ask, crowd, greedy, tiny_engine

MAX_STEPS = 400


def snapshots_of(engine: Engine, asks: tuple[Ask, ...]) -> list[EngineSnapshot]:
    """One snapshot before each step of a run, each with the steps since the one before."""
    taken, pending, after_step = [], sorted(asks, key=lambda ask: ask.comes), 0
    for number in range(MAX_STEPS):
        while pending and pending[0].comes <= number:
            ask = pending.pop(0)
            engine.add_request(ask.name, ask.prompt, ask.params)
        snapshot = take_snapshot(engine, after_step)
        taken.append(snapshot)
        after_step = snapshot.stats.num_steps
        if not engine.has_work and not pending:
            return taken
        engine.step()
    raise AssertionError(f"the run did not end in {MAX_STEPS} steps")


@pytest.fixture(scope="module")
def crowded() -> tuple[Engine, list[EngineSnapshot]]:
    """Many requests in little memory: pages are held, cached, given up in flight, and free."""
    engine = tiny_engine(overlap=True, kv_memory_bytes=LITTLE_BYTES)
    return engine, snapshots_of(engine, crowd(seed=1))


def counts(group: GroupUse) -> dict[PageState, int]:
    return {
        PageState.FREE: group.num_free,
        PageState.CACHED: group.num_cached,
        PageState.IN_FLIGHT: group.num_in_flight,
        PageState.HELD: group.num_held,
        PageState.QUARANTINED: group.num_quarantined,
    }


def test_every_page_of_a_group_is_counted_once(crowded):
    engine, snapshots = crowded
    seen: Counter[PageState] = Counter()
    for snapshot in snapshots:
        num_lent = 0
        for group, layout in zip(snapshot.groups, engine.worker.kv.plan.layout.groups, strict=True):
            by_state = counts(group)
            assert sum(by_state.values()) == group.num_pages
            num_lent += group.num_pages // layout.pages_per_slab
            seen.update(by_state)
        assert 1 + num_lent + snapshot.num_free_slabs == snapshot.num_slabs  # the sinks' slab is nobody's
    assert all(seen[state] for state in PageState if state not in (PageState.ELSEWHERE, PageState.QUARANTINED)), seen


def test_the_map_shows_the_counts(crowded):
    _, snapshots = crowded
    for group in (group for snapshot in snapshots for group in snapshot.groups):
        assert group.pages_per_square == 1
        shown = Counter(group.page_states)
        assert {state: shown[state] for state in counts(group)} == counts(group)
        assert group.page_states[0] == PageState.ELSEWHERE


def test_a_page_in_quarantine_is_shown_as_such():
    engine = tiny_engine(overlap=False)
    engine.worker.kv.allocator.groups[1].quarantine(3)
    (group,) = take_snapshot(engine).groups[1:]
    assert group.page_states[3] == PageState.QUARANTINED
    assert group.num_quarantined == 1
    assert sum(counts(group).values()) == group.num_pages


def test_a_large_pool_is_shown_in_few_squares():
    """A square shows the state of its busiest page."""
    engine = tiny_engine(overlap=False, kv_memory_bytes=1 << 24)
    engine.add_request("one", (1, 2, 3), greedy(4))
    engine.step()
    group = take_snapshot(engine).groups[0]
    num_pages = engine.worker.kv.plan.num_pages(0)
    assert num_pages > MAX_SQUARES
    assert len(group.page_states) <= MAX_SQUARES
    assert len(group.page_states) * group.pages_per_square >= num_pages
    (seq,) = engine.worker.kv.sequences.values()
    squares = {page // group.pages_per_square for page in seq.pages}
    assert {square for square, state in enumerate(group.page_states) if state == PageState.HELD} == squares


def test_a_running_request_shows_its_windows_slide():
    engine = tiny_engine(overlap=False)
    frontiers = []
    for snapshot in snapshots_of(engine, (Ask(name="long", prompt=(1, 2, 3, 4), params=greedy(24)),)):
        for request in snapshot.requests:
            assert request.first_pages[0] == 0
            assert request.num_pages * engine.worker.kv.plan.geometry.page_size >= request.num_tokens
            frontiers.append(request.first_pages[1])
    assert frontiers == sorted(frontiers)
    assert frontiers[-1] > frontiers[0]


def test_requests_are_counted_while_they_wait_and_run(crowded):
    _, snapshots = crowded
    assert max(snapshot.num_waiting for snapshot in snapshots) > 0
    for snapshot in snapshots:
        assert snapshot.num_running == len(snapshot.requests) <= snapshot.max_running
    assert (snapshots[-1].num_running, snapshots[-1].num_waiting) == (0, 0)


def test_snapshots_in_a_row_tell_every_step_once(crowded):
    engine, snapshots = crowded
    told = [step.number for snapshot in snapshots for step in snapshot.steps]
    assert told == list(range(1, engine.stats.num_steps + 1))
    assert take_snapshot(engine, after_step=engine.stats.num_steps).steps == ()


def test_replays_and_padding_are_those_of_the_steps(crowded):
    _, snapshots = crowded
    last = snapshots[-1]
    replayed = [step for snapshot in snapshots for step in snapshot.steps if step.mode != "eager"]
    assert sum(graph.num_replays for graph in last.graphs) == len(replayed) > 0
    assert sum(graph.num_raw for graph in last.graphs) == sum(step.raw for step in replayed)
    assert sum(graph.num_padded for graph in last.graphs) == sum(step.padded for step in replayed)
    assert all(graph.num_raw <= graph.num_padded and graph.capture_ms > 0 for graph in last.graphs)
    by_runner = {runner.name: sum(runner.reasons.values()) for runner in last.runners}
    assert sum(by_runner.values()) == last.stats.num_steps
    assert {graph.runner for graph in last.graphs} <= by_runner.keys()


def test_steps_that_report_on_prompts_have_a_runner_of_their_own():
    engine = tiny_engine(overlap=True)
    engine.add_request("reported", [7, 8, 9, 10, 11], greedy(3, prompt_logprobs=0))
    engine.add_request("plain", [7, 8, 9], greedy(3))
    while engine.has_work:
        engine.step()
    found = take_snapshot(engine)
    by_runner = {runner.name: sum(runner.reasons.values()) for runner in found.runners}
    assert by_runner["prefill with reports"] > 0
    assert sum(by_runner.values()) == found.stats.num_steps
    assert "prefill with reports" in {graph.runner for graph in found.graphs}


def test_prefix_lookups_are_counted(crowded):
    _, snapshots = crowded
    last = snapshots[-1]
    assert 0 < last.num_hit_pages <= last.num_asked_pages
    assert last.num_prefix_lookups >= sum(last.prefix_refusals.values())
    assert last.prefix_refusals.keys() == {"hit shortened: window expired", "refused: window expired"}
