"""What a scheduler leaves until a step runs: memory of requests that have ended, and pages for the steps to come."""

from __future__ import annotations

import pytest

from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import Ledger
from playhead.outputs import FinishReason
from playhead.schedule import scheduler as scheduler_module
from playhead.schedule.scheduler import Scheduler
from playhead.testing.engine_mutants import pages_behind_a_launch
from tests.unit.schedule.test_scheduler import CHUNK, request, run_step, scheduler


def launch(made: tuple[Scheduler, HybridKVCache]) -> list[str]:
    """Plan and launch a step that stays in flight; who is in it."""
    plan, kv = made
    planned = plan.plan()
    kv.allocator.mapping.take_unpublished()
    kv.launch()
    plan.close_plan()
    return [chunk.request.id for chunk in planned]


def test_requests_that_have_left_give_back_their_memory_together():
    plan, kv = made = scheduler()
    asked = [request(name, 6, arrival=at) for at, name in enumerate("abc")]
    for one in asked:
        plan.add(one)
    run_step(made)
    for one in asked[:2]:
        plan.leave(one, FinishReason.LENGTH)
    assert list(kv.sequences) == ["a", "b", "c"]
    plan.catch_up()
    assert list(kv.sequences) == ["c"]
    assert Ledger(kv).audit() == []


def test_a_request_that_waits_gets_the_row_of_one_that_has_left():
    made = scheduler(max_running=1)
    first, second = request("a", 6), request("b", 6, arrival=1)
    made[0].add(first)
    made[0].add(second)
    assert launch(made) == ["a"]
    made[0].leave(first, FinishReason.LENGTH)
    assert launch(made) == ["b"]


def test_memory_of_a_request_that_has_left_goes_before_any_request_is_preempted():
    plan, kv = made = scheduler(num_pages=17)
    first, second = request("a", 32), request("b", 31, arrival=1, num_new=20)
    plan.add(first)
    plan.add(second)
    for _ in range(4):
        run_step(made)
    assert sum(len(seq.pages) for seq in kv.sequences.values()) == 17
    plan.leave(first, FinishReason.LENGTH)
    for _ in range(20):
        run_step(made)
    assert (second.finish_reason, plan.num_preemptions) == (FinishReason.LENGTH, 0)


def test_requests_that_soon_lack_a_page_get_pages_a_few_at_a_time(monkeypatch):
    for name, value in {"RESERVED_TOKENS": 8, "SOON_TOKENS": 3, "NUM_TOGETHER": 1, "LOOK_EVERY_STEPS": 1}.items():
        monkeypatch.setattr(scheduler_module, name, value)
    plan, kv = scheduler(num_pages=200)
    for at, name in enumerate("ab"):
        plan.add(request(name, 5, arrival=at, num_new=50))
    changed = []
    for _ in range(40):
        before = kv.allocator.num_held[0]
        planned = plan.plan()
        assert planned.newcomers or kv.allocator.num_held[0] == before, "a plan of a batch takes no page itself"
        kv.retire(kv.launch())
        plan.close_plan()
        for chunk in planned:
            plan.commit(chunk, 7)
        held = [len(seq.pages) for seq in kv.sequences.values()]
        plan.catch_up()
        changed += [sum(len(seq.pages) > num for seq, num in zip(kv.sequences.values(), held, strict=True))]
    assert set(changed) == {0, 1}
    assert Ledger(kv).audit() == []


def test_pages_that_come_behind_a_launch_are_too_late_for_the_place_of_the_next_token():
    """A step leaves its next token's place in the slots. If it had no page for that, the slots are filled again."""
    assert pages_behind_a_launch() == []


@pytest.mark.parametrize(
    ("prompts", "max_running", "is_enough"),
    [([CHUNK - 1], 4, False), ([CHUNK - 1, 1], 4, True), ([1], 1, False), ([1, 1], 1, True)],
)
def test_those_that_wait_are_enough_when_the_next_step_has_no_room_for_one_more(prompts, max_running, is_enough):
    plan, _ = scheduler(max_running=max_running)
    for at, num_prompt in enumerate(prompts):
        plan.add(request(str(at), num_prompt, arrival=at))
    assert plan.has_enough_waiting is is_enough
