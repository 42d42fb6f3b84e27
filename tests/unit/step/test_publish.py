"""What the host decided reaches the device's tables, whatever its size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from playhead.kv.device_tables import DeviceWrite
from playhead.kv.tables import RowTables
from playhead.step import publish
from playhead.step.publish import Publisher
from playhead.step.worker import Worker
from playhead.testing.tiny_worker import TINY_GEMMA3, tiny_worker
from tests.counting import CalledOps


@pytest.mark.parametrize("few_entries", [2, 1024])
@pytest.mark.parametrize("max_entries", [1, 3, 8, 100])
def test_every_value_arrives_however_the_copies_are_cut(max_entries, few_entries, monkeypatch):
    monkeypatch.setattr(publish, "FEW_ENTRIES", few_entries)
    memory = torch.zeros(60, dtype=torch.int32)
    publisher, wanted = Publisher(memory, max_entries=max_entries), memory.clone()
    rng = np.random.default_rng(max_entries)
    for _ in range(6):  # more often than there are stages
        writes = []
        for start in (0, 20, 40):
            places = start + rng.permutation(20)[: rng.integers(0, 20)]
            values = rng.integers(1, 99, len(places)).astype(np.int32)
            writes.append(DeviceWrite(places, values))
            wanted[torch.from_numpy(places)] = torch.from_numpy(values)
        publisher.send(writes)
        assert torch.equal(memory, wanted)


def test_nothing_to_write_is_no_copy():
    publisher = Publisher(torch.zeros(8, dtype=torch.int32))
    nothing = DeviceWrite(np.zeros(0, np.int64), np.zeros(0, np.int32))
    with CalledOps() as ops:
        publisher.send([nothing, nothing])
    assert ops.called == []


def test_only_what_changed_in_the_page_table_travels():
    rows = RowTables(num_groups=2, max_running=2, max_pages=4)
    memory = torch.zeros(12, dtype=torch.int32)
    table_RP, publisher = memory.view(3, 4), Publisher(memory)
    first, second = rows.take(), rows.take()
    rows.write(0, first, 0, [7, 8])
    rows.write(0, second, 0, [9])
    rows.write(1, first, 0, [3, 4])  # a window's pages are found through the mapping
    publisher.send([DeviceWrite(*rows.take_changed())])
    assert table_RP[[first, second]].tolist() == [[7, 8, 0, 0], [9, 0, 0, 0]]
    rows.write(0, first, 2, [5])
    places, values = rows.take_changed()
    assert (places.tolist(), values.tolist()) == ([first * 4 + 2], [5])
    rows.give_back(second)
    publisher.send([DeviceWrite(*rows.take_changed())])
    assert table_RP[second].tolist() == [0, 0, 0, 0]
    assert not len(rows.take_changed()[0])


def test_a_new_request_is_one_scatter_into_all_tables():
    """The page table and the mappings lie in one memory. The second time no view is made."""
    worker = tiny_worker(page_size=4)
    for name in ("a", "b"):
        seq = worker.kv.admit(name, [1] * 9)
        worker.kv.extend(seq, 9)
        with CalledOps() as ops:
            worker.publish()
    assert ops.called == [torch.ops.aten.index_copy_.default]
    mapping = worker.kv.allocator.mapping
    for page in seq.pages:
        assert worker.pool.device_mappings[0][4 * page] == 4 * mapping.window_page(0, page) > 0
    np.testing.assert_array_equal(worker.tables.table_RP.numpy(), worker.kv.rows.tables[0])


def plain_worker() -> Worker:
    """A model without windows: no change of a mapping takes the page table along."""
    num_layers = TINY_GEMMA3["num_hidden_layers"]
    return tiny_worker(model={**TINY_GEMMA3, "layer_types": ["full_attention"] * num_layers}, page_size=4)


def test_new_pages_are_on_the_device_before_the_step_that_reads_them():
    worker = plain_worker()
    seq = worker.kv.admit("a", [1] * 9)
    worker.kv.extend(seq, 9)
    worker.publish()
    np.testing.assert_array_equal(worker.tables.table_RP.numpy(), worker.kv.rows.tables[0])


def test_a_row_that_was_given_back_is_cleared_with_the_next_pages():
    """No step reads it meanwhile: its next request writes it first."""
    worker = plain_worker()
    gone, other = (worker.kv.admit(name, [1] * 5) for name in ("gone", "other"))
    for seq in (gone, other):
        worker.kv.extend(seq, 5)
    worker.publish()
    worker.kv.abort(gone)
    worker.publish()
    assert worker.tables.table_RP[gone.row].any()
    worker.kv.extend(other, 5)
    worker.publish()
    np.testing.assert_array_equal(worker.tables.table_RP.numpy(), worker.kv.rows.tables[0])
