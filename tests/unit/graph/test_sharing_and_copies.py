"""Shared input buffers and grouped copies."""

from __future__ import annotations

import itertools

import pytest
import torch

from playhead.errors import GraphError
from playhead.graph import (
    CudaGraphBufferRegistry,
    Dispatcher,
    FullCapture,
    GraphRunner,
    GraphSlot,
    InputBufferPool,
    Mode,
    PaddingPolicy,
    StepSpec,
    TapeBackend,
    copies,
    grouped_foreach_copy_,
)
from playhead.testing.graph_checkers import policy_batch, policy_registry, square

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


def test_staged_slots_of_two_registries_have_their_own_arenas():
    """One copy fills the arena of a registry, which is therefore its own: a fill of one leaves the other alone."""
    pool = InputBufferPool()
    one, other = policy_registry(pool), policy_registry(pool)
    for registry, value in ((one, 1), (other, 2)):
        registry.fill_from(policy_batch(registry, 2, value), square(2, 4))
    assert one.get_slot("zero_staged").rows(0, 2).eq(1).all()
    assert other.get_slot("zero_staged").rows(0, 2).eq(2).all()


def test_a_registry_that_joins_later_does_not_leave_its_padding_in_anothers_slots():
    """Registration writes the new registry's padding over what the first one believes to be its own."""
    pool, registries = InputBufferPool(), []
    for pad_value in (9, 5):
        registry = CudaGraphBufferRegistry(max_bs=4, max_num_tokens=4, device="cpu", pool=pool)
        registry.register_slot(once("x", pad_value))
        registry.freeze()
        registries.append(registry)
        registries[0].fill_from({"x": torch.ones(2, dtype=torch.int32)}, square(2, 4))
    assert registries[0].get_slot("x").slice_for(4, 4).tolist() == [1, 1, 9, 9]


def once(name: str, pad_value: int) -> GraphSlot:
    return GraphSlot(
        name=name,
        shape_fn=lambda bs, tokens: (bs,),
        dtype=torch.int32,
        axis="bs",
        padding_policy=PaddingPolicy.FILL_ONCE,
        pad_value=pad_value,
    )


@pytest.mark.parametrize("shares", [True, False])
def test_a_fill_counts_for_every_registry_whose_memory_it_writes(shares):
    """Who goes on without a fill compares the count; a neighbour that shares nothing does not disturb it."""
    one = policy_registry(InputBufferPool())
    other = policy_registry(one._pool if shares else InputBufferPool())
    before = one.num_fills
    other.fill_from(policy_batch(other, 2, 1), square(2, 4))
    assert (one.num_fills > before) is shares


@pytest.mark.parametrize("shares", [True, False])
def test_a_step_that_goes_on_is_refused_only_if_its_memory_was_written(shares):
    pool = InputBufferPool()
    first, second = (advancing_runner(pool if shares else InputBufferPool()) for _ in range(2))
    first.run({"x": torch.ones(2)}, raw_bs=2, raw_num_tokens=2)
    assert first.replay_advanced().output.tolist() == [3, 3]
    second.run({"x": torch.zeros(2)}, raw_bs=2, raw_num_tokens=2)
    if shares:
        with pytest.raises(GraphError, match="filled since"):
            first.replay_advanced()
    else:
        assert first.replay_advanced().output.tolist() == [4, 4]


def advancing_runner(pool: InputBufferPool) -> GraphRunner:
    registry = CudaGraphBufferRegistry(max_bs=2, max_num_tokens=2, device="cpu", pool=pool)
    slot = {"dtype": torch.float32, "axis": "bs", "padding_policy": PaddingPolicy.ZERO, "graph_writes": "advances"}
    registry.register_slot(GraphSlot(name="x", shape_fn=lambda bs, tokens: (bs,), **slot))
    step = StepSpec(
        name="counts",
        axis="bs",
        fn=lambda inputs, scope: inputs["x"].add_(1) * 1,
        plan=lambda batch, ctx, inputs: None,
        placeholder=registry.null_batch,
    )
    dispatcher = Dispatcher(Mode.FULL, (2,))
    made = GraphRunner(step, registry=registry, capture=FullCapture(), backend=TapeBackend(), dispatcher=dispatcher)
    made.capture_all()
    return made


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
