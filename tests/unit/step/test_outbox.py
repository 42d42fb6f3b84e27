"""Boxes: the host counts as steps do, and no step in flight shares one."""

from __future__ import annotations

import pytest
import torch

from playhead.kernels.tokens import advance
from playhead.schedule.request import Chunk
from playhead.step.outbox import FIRST_BOX, NUM_BOXES, Outbox, box_after
from playhead.step.worker import HostStopwatch
from playhead.testing.mutant import swapped
from playhead.testing.tiny_engine import greedy, tiny_engine
from playhead.testing.tiny_worker import tiny_worker
from tests.unit.kernels.test_advance import int32


def test_the_host_counts_boxes_as_steps_do():
    outbox, boxes, table = Outbox(1, torch.device("cpu")), int32(FIRST_BOX), int32(0, 0, 0, 0).view(2, 2)
    box = FIRST_BOX
    for token in range(1, 2 * NUM_BOXES):
        state = (int32(0), int32(0), int32(1), int32(0), torch.tensor([0]), boxes)
        advance(torch.tensor([token]), *state, int32(1), int32(1), int32(0, 0), outbox.boxes_XR, table, 4)
        assert outbox.box(box, 1).read() == [token]
        box = box_after(box)
        assert boxes.item() == box


def test_a_step_that_would_write_an_unread_box_is_not_launched():
    engine = tiny_engine(overlap=True)
    engine.add_request("one", (1, 2, 3), greedy(9))
    for _ in range(3):
        engine.step()
    worker = engine.worker
    (oldest,) = worker.steps_in_flight
    worker._in_flight |= dict.fromkeys(range(oldest + 1, oldest + NUM_BOXES), worker._in_flight[oldest])
    with pytest.raises(AssertionError, match="before its box"):
        engine.step()


def test_steps_that_fail_on_their_way_back_leave_an_unread_step_its_tokens():
    """Each of them ran, and wrote a box. There are more of them than boxes."""

    def fails(self, results, box=None):
        raise MemoryError("no pinned memory")

    def token_of_one(num_failing: int) -> list[int]:
        worker = tiny_worker()
        one, two = (worker.kv.admit(name, [7, 8]) for name in ("one", "two"))
        for seq in (one, two):
            worker.kv.extend(seq, 1)
        unread = worker.launch([Chunk.newest(one, [7])])
        with swapped(HostStopwatch, "read_back", fails):
            for token in range(20, 20 + num_failing):
                with pytest.raises(MemoryError):
                    worker.launch([Chunk.newest(two, [token])])
        return worker.collect(unread).sampled.tokens

    assert token_of_one(num_failing=NUM_BOXES + 1) == token_of_one(num_failing=0)
