"""A model without windows pays nothing for them."""

from __future__ import annotations

import gc

import pytest
import torch

from playhead.kv.hybrid import HybridAllocator
from playhead.kv.swa_pool import create_kv_pool
from playhead.kv.violations import ViolationLog
from playhead.testing.kv_rules import small_layer, small_plan

PAGE_SIZE = 4


def live_storages() -> dict[int, int]:
    """Address and bytes of all tensor memory that Python can reach."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


@pytest.mark.parametrize("windows", [(None, None), (8, None), (8, 4, None)], ids=["plain", "one window", "two windows"])
def test_only_a_hybrid_model_gets_memory_beside_its_keys_and_values(windows):
    plan = small_plan([small_layer(window) for window in windows], page_size=PAGE_SIZE, num_slabs=60)
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    before = live_storages()
    pool = create_kv_pool(plan, allocator.mapping, device=torch.device("cpu"))
    sizes = [num_bytes for address, num_bytes in live_storages().items() if address not in before]
    tensors = (*pool.device_mappings, *pool.workspaces)
    beside = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    assert sorted(sizes) == sorted([plan.arena_bytes, *beside.values()])
    assert bool(beside) == (windows != (None, None))
