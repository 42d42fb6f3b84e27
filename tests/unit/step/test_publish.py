"""What the host decided reaches the device's tables, whatever its size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from playhead.kv.pool import DeviceWrite
from playhead.kv.tables import RowTables
from playhead.step.publish import DevicePageTable, Publisher
from playhead.step.worker import Worker
from playhead.testing.tiny_worker import TINY_GEMMA3, tiny_worker


@pytest.mark.parametrize("max_entries", [1, 3, 8, 100])
def test_every_value_arrives_however_the_copies_are_cut(max_entries):
    publisher = Publisher(torch.device("cpu"), max_entries=max_entries)
    rng = np.random.default_rng(max_entries)
    tables = [torch.zeros(20, dtype=torch.int32) for _ in range(3)]
    wanted = [table.clone() for table in tables]
    for _ in range(6):  # more often than there are stages
        writes = []
        for table, copy in zip(tables, wanted, strict=True):
            places = rng.permutation(20)[: rng.integers(0, 20)]
            values = rng.integers(1, 99, len(places)).astype(np.int32)
            writes.append(DeviceWrite(table, places, values))
            copy[torch.from_numpy(places)] = torch.from_numpy(values)
        publisher.send(writes)
        assert all(torch.equal(table, copy) for table, copy in zip(tables, wanted, strict=True))


def test_only_what_changed_in_the_page_table_travels():
    rows = RowTables(num_groups=2, max_running=2, max_pages=4)
    device = DevicePageTable(rows, torch.device("cpu"))
    publisher = Publisher(torch.device("cpu"))
    first, second = rows.take(), rows.take()
    rows.write(0, first, 0, [7, 8])
    rows.write(0, second, 0, [9])
    rows.write(1, first, 0, [3, 4])  # a window's pages are found through the mapping
    publisher.send(device.take_writes())
    assert device.table_RP[[first, second]].tolist() == [[7, 8, 0, 0], [9, 0, 0, 0]]
    rows.write(0, first, 2, [5])
    (write,) = device.take_writes()
    assert (write.places.tolist(), write.values.tolist()) == ([first * 4 + 2], [5])
    rows.give_back(second)
    publisher.send(device.take_writes())
    assert device.table_RP[second].tolist() == [0, 0, 0, 0]
    assert device.take_writes() == []


def plain_worker() -> Worker:
    """A model without windows: no change of a mapping takes the page table along."""
    num_layers = TINY_GEMMA3["num_hidden_layers"]
    return tiny_worker(model={**TINY_GEMMA3, "layer_types": ["full_attention"] * num_layers}, page_size=4)


def test_new_pages_are_on_the_device_before_the_step_that_reads_them():
    worker = plain_worker()
    seq = worker.kv.admit("a", [1] * 9)
    worker.kv.extend(seq, 9)
    worker.publish()
    np.testing.assert_array_equal(worker.page_table.table_RP.numpy(), worker.kv.rows.tables[0])


def test_a_row_that_was_given_back_is_cleared_with_the_next_pages():
    """No step reads it meanwhile: its next request writes it first."""
    worker = plain_worker()
    gone, other = (worker.kv.admit(name, [1] * 5) for name in ("gone", "other"))
    for seq in (gone, other):
        worker.kv.extend(seq, 5)
    worker.publish()
    worker.kv.abort(gone)
    worker.publish()
    assert worker.page_table.table_RP[gone.row].any()
    worker.kv.extend(other, 5)
    worker.publish()
    np.testing.assert_array_equal(worker.page_table.table_RP.numpy(), worker.kv.rows.tables[0])
