"""A step that was told by arrays is the step that was meant."""

from __future__ import annotations

import numpy as np
import pytest

from playhead.parallel import wire
from playhead.parallel.rank import writes_of
from playhead.parallel.wire import Kind
from playhead.sampling_params import SamplingKind
from playhead.step.orders import Follower, StepOrder
from playhead.step.prompt_report import PromptReport
from playhead.testing.tiny_worker import tiny_worker


def sent(order, worker):
    """The order after its way over a socket."""
    frame = wire.framed_arrays(Kind.STEP, order.arrays())
    return StepOrder.of(wire.arrays_of(frame[wire.HEAD.size :]), worker)


@pytest.mark.parametrize("report", [None, PromptReport(index=np.array([1, 2]), tokens=np.array([5, 6]), num_best=0)])
@pytest.mark.parametrize("is_decode", [False, True])
def test_an_order_is_the_same_after_its_way(is_decode, report):
    worker = tiny_worker()
    inputs = worker.decode_inputs if is_decode else worker.prefill_inputs
    batch = {one.slot.name: np.arange(i, i + 3, dtype=np.int64) for i, one in enumerate(inputs)}
    order = StepOrder(
        kind=SamplingKind.FILTERED,
        is_decode=is_decode,
        is_masked=True,
        num_requests=3,
        num_tokens=9,
        batch=batch,
        report=report,
    )
    found = sent(order, worker)
    assert (found.kind, found.is_decode, found.is_masked) == (SamplingKind.FILTERED, is_decode, True)
    assert (found.num_requests, found.num_tokens) == (3, 9)
    assert {name: values.tolist() for name, values in found.batch.items()} == {
        name: values.tolist() for name, values in batch.items()
    }
    assert (found.report is None) == (report is None)
    if report is not None:
        assert (found.report.tokens.tolist(), found.report.num_best) == ([5, 6], 0)


def test_writes_go_to_their_places_in_the_tables():
    worker = tiny_worker()
    (start,) = worker.tables.mapping_starts
    writes = writes_of([np.array([start + 3]), np.array([7], np.int32), np.array([2]), np.array([9], np.int32)])
    Follower(worker).write(writes)
    assert worker.pool.device_mappings[0][3] == 7
    assert worker.tables.table_RP.view(-1)[2] == 9
