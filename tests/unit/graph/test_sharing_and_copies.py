"""Shared input buffers and grouped copies."""

from __future__ import annotations

import itertools

import torch

from playhead.graph import InputBufferPool, copies, grouped_foreach_copy_
from playhead.testing.graph_checkers import policy_registry

CPU = torch.device("cpu")


def test_equal_buffers_share_memory_in_any_order_of_asking():
    asks = [("a", (4,), torch.int32), ("a", (2, 2), torch.int32), ("a", (4,), torch.int64), ("b", (4,), torch.int32)]
    for order in itertools.permutations(asks):
        pool = InputBufferPool()
        memory = {ask: pool.share_input_buffer(ask[0], ask[1], dtype=ask[2], device=CPU)[0].data_ptr() for ask in order}
        assert memory[asks[0]] == memory[asks[1]]
        assert len(set(memory.values())) == len(pool) == 3


def test_registries_on_one_pool_share_their_device_slots():
    pool = InputBufferPool()
    one, other = policy_registry(pool), policy_registry(pool)
    assert one.get_slot("zero").buffer.data_ptr() == other.get_slot("zero").buffer.data_ptr()
    assert one.get_slot("zero_staged").buffer.data_ptr() != other.get_slot("zero_staged").buffer.data_ptr()


def pairs():
    dtypes = [torch.int32, torch.int64, torch.int32, torch.float32, torch.int64]
    srcs = [torch.arange(3).to(dtype) + i for i, dtype in enumerate(dtypes)]
    return [torch.zeros_like(src) for src in srcs], srcs


def test_copies_are_grouped_by_dtype_pair():
    dsts, srcs = pairs()
    assert grouped_foreach_copy_(dsts, srcs) == 3
    assert all(torch.equal(dst, src) for dst, src in zip(dsts, srcs, strict=True))


def test_copies_fall_back_to_one_by_one(monkeypatch):
    monkeypatch.setattr(copies, "FOREACH_COPY", None)
    dsts, srcs = pairs()
    assert grouped_foreach_copy_(dsts, srcs) == 3
    assert all(torch.equal(dst, src) for dst, src in zip(dsts, srcs, strict=True))


def test_a_pair_of_other_dtypes_is_a_group_of_its_own():
    wide, narrow = torch.zeros(3, dtype=torch.int64), torch.arange(3, dtype=torch.int32)
    same = torch.zeros(3, dtype=torch.int32)
    assert grouped_foreach_copy_([wide, same], [narrow, narrow]) == 2
    assert wide.tolist() == same.tolist() == [0, 1, 2]
