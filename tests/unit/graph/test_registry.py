"""Registration and fills: what is written, in which order, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from playhead.errors import SlotError
from playhead.graph import CudaGraphBufferRegistry, FillContext, GraphSlot, IndexSpace, PaddingPolicy
from playhead.graph.oplog import OpObserver
from playhead.graph.registry import NUM_STAGES
from playhead.graph.staging import HostChannel
from playhead.testing.graph_checkers import policy_batch, policy_registry, square


def vector(name: str, padding_policy: PaddingPolicy = PaddingPolicy.ZERO, **changes) -> GraphSlot:
    changes["padding_policy"] = padding_policy
    settings = {"shape_fn": lambda bs, tokens: (bs,), "dtype": torch.int32, "axis": "bs"}
    return GraphSlot(name=name, **{**settings, **changes})


def registry_of(*slots: GraphSlot, freeze: bool = True) -> CudaGraphBufferRegistry:
    registry = CudaGraphBufferRegistry(max_bs=8, max_num_tokens=8, device="cpu")
    for slot in slots:
        registry.register_slot(slot)
    if freeze:
        registry.freeze()
    return registry


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


class TestPolicies:
    """One worked example per policy: three rows after eight, in a bucket of five."""

    def after(self, policy: PaddingPolicy, *, staged: bool, **changes) -> list[int]:
        registry = registry_of(vector("x", policy, staged=staged, **changes))
        registry.poison()
        for _ in range(NUM_STAGES):  # every stage of the ring has held eight rows
            registry.fill_from({"x": torch.arange(10, 18, dtype=torch.int32)}, square(8, 8))
        registry.fill_from({"x": ints(1, 2, 3)}, square(3, 5))
        return registry.get_slot("x").slice_for(5, 5).tolist()

    @pytest.mark.parametrize("staged", [False, True])
    def test_zero_writes_zero(self, staged):
        assert self.after(PaddingPolicy.ZERO, staged=staged) == [1, 2, 3, 0, 0]

    @pytest.mark.parametrize("staged", [False, True])
    def test_zero_writes_the_sink_of_an_index_slot(self, staged):
        rows = IndexSpace(name="rows", dtype=torch.int32)
        assert self.after(PaddingPolicy.ZERO, staged=staged, index=rows) == [1, 2, 3, 0, 0]

    @pytest.mark.parametrize("staged", [False, True])
    def test_fill_sentinel_writes_the_pad_value(self, staged):
        assert self.after(PaddingPolicy.FILL_SENTINEL, staged=staged, pad_value=-1) == [1, 2, 3, -1, -1]

    @pytest.mark.parametrize("staged", [False, True])
    def test_fill_once_writes_where_a_larger_fill_left_values(self, staged):
        assert self.after(PaddingPolicy.FILL_ONCE, staged=staged, pad_value=9) == [1, 2, 3, 9, 9]

    def test_fill_once_writes_at_registration(self):
        registry = registry_of(vector("x", PaddingPolicy.FILL_ONCE, pad_value=9))
        assert registry.get_slot("x").rows(0, 8).tolist() == [9] * 8

    def test_fill_once_does_not_write_a_clean_tail_again(self):
        registry = registry_of(vector("x", PaddingPolicy.FILL_ONCE, pad_value=9))
        registry.fill_from({"x": ints(1, 2)}, square(2, 4))
        registry.get_slot("x").rows(3, 4).fill_(77)  # a mark behind its back
        registry.fill_from({"x": ints(1, 2)}, square(2, 4))
        assert registry.get_slot("x").rows(0, 4).tolist() == [1, 2, 9, 77]

    @pytest.mark.parametrize("policy", [PaddingPolicy.FOREACH_COPY, PaddingPolicy.KEEP_PAD])
    def test_tail_leaving_policies_leave_the_tail(self, policy):
        registry = registry_of(vector("x", policy, tail_unread="test"))
        registry.fill_from({"x": torch.arange(10, 18, dtype=torch.int32)}, square(8, 8))
        registry.fill_from({"x": ints(1, 2, 3)}, square(3, 5))
        assert registry.get_slot("x").slice_for(5, 5).tolist() == [1, 2, 3, 13, 14]

    def test_axis_none_is_copied_whole(self):
        scalar = vector("n", PaddingPolicy.KEEP_PAD, axis="none", shape_fn=lambda bs, tokens: (2,))
        registry = registry_of(scalar)
        registry.fill_from({"n": ints(4, 5)}, square(1, 4))
        assert registry.get_slot("n").slice_for(1, 1).tolist() == [4, 5]


class TestRefusals:
    def test_duplicate_name(self):
        with pytest.raises(SlotError, match="registered twice"):
            registry_of(vector("x"), vector("x"))

    def test_registration_after_freeze(self):
        with pytest.raises(SlotError, match="after freeze"):
            registry_of(vector("x")).register_slot(vector("y"))

    def test_fill_before_freeze(self):
        with pytest.raises(SlotError, match="before freeze"):
            registry_of(vector("x"), freeze=False).fill_from({"x": ints(1)}, square(1, 1))

    @pytest.mark.parametrize(
        "bind",
        [
            torch.zeros(7, dtype=torch.int32),
            torch.zeros(8, dtype=torch.int64),
            torch.zeros(8, dtype=torch.int32, device="meta"),
        ],
    )
    def test_bind_of_wrong_shape_dtype_or_device(self, bind):
        with pytest.raises(SlotError, match="bind of"):
            registry_of(freeze=False).register_slot(vector("x"), bind=bind)

    @pytest.mark.parametrize(
        ("bind", "says"),
        [
            (torch.zeros(1, dtype=torch.int32).expand(8), "strides"),
            (torch.zeros(16, dtype=torch.int32)[::2], "strides"),
        ],
    )
    def test_bind_of_rows_that_share_or_skip_memory(self, bind, says):
        with pytest.raises(SlotError, match=says):
            registry_of(freeze=False).register_slot(vector("x"), bind=bind)

    @pytest.mark.parametrize("start", [0, 7])
    def test_bind_of_memory_that_another_slot_has(self, start):
        memory, registry = torch.zeros(16, dtype=torch.int32), registry_of(freeze=False)
        registry.register_slot(vector("x"), bind=memory[:8])
        registry.register_slot(vector("y"), bind=memory[8:])
        with pytest.raises(SlotError, match="that slot 'x' has"):
            registry.register_slot(vector("z"), bind=memory[start : start + 8])

    def test_bind_of_memory_that_a_slot_got_from_the_registry(self):
        registry = registry_of(freeze=False)
        own = registry.register_slot(vector("x")).buffer
        with pytest.raises(SlotError, match="that slot 'x' has"):
            registry.register_slot(vector("y"), bind=own)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"staged": True}, "staged=True"),
            ({"padding_policy": PaddingPolicy.FILL_ONCE}, "bind with FILL_ONCE"),
            ({"buffer": torch.zeros(8, dtype=torch.int32)}, "a buffer and another tensor"),
        ],
    )
    def test_bind_of_a_slot_whose_memory_or_padding_comes_from_elsewhere(self, changes, says):
        with pytest.raises(SlotError, match=says):
            registry_of(freeze=False).register_slot(vector("x", **changes), bind=torch.zeros(8, dtype=torch.int32))

    def test_missing_and_unknown_sources_name_both_lists(self):
        registry = registry_of(vector("x"), vector("y"))
        with pytest.raises(SlotError, match=r"missing sources \['y'\], unknown sources \['z'\]"):
            registry.fill_from({"x": ints(1), "z": ints(1)}, square(1, 1))

    @pytest.mark.parametrize("staged", [False, True])
    def test_a_missing_source_alone(self, staged):
        """Nothing else is wrong with the batch, and the last step's value is there to be read again."""
        registry = registry_of(vector("x", staged=staged), vector("y", staged=staged))
        registry.fill_from({"x": ints(1), "y": ints(2)}, square(1, 1))
        with pytest.raises(SlotError, match=r"missing sources \['y'\], unknown sources \[\]"):
            registry.fill_from({"x": ints(1)}, square(1, 1))

    def test_an_unknown_source_alone(self):
        with pytest.raises(SlotError, match=r"missing sources \[\], unknown sources \['z'\]"):
            registry_of(vector("x")).fill_from({"x": ints(1), "z": ints(1)}, square(1, 1))

    def test_a_missing_source_that_only_a_hook_reads(self):
        hook = {"copy_from_fb": False, "post_fill": lambda buffer, batch, ctx: None, "reads": ("lens",)}
        with pytest.raises(SlotError, match=r"missing sources \['lens'\]"):
            registry_of(vector("x", **hook)).fill_from({}, square(1, 1))

    def test_a_source_that_is_none_is_missing_too(self):
        registry = registry_of(vector("x"))
        with pytest.raises(SlotError, match="NoneType"):
            registry.fill_from({"x": None}, square(1, 1))

    @pytest.mark.parametrize("staged", [False, True])
    @pytest.mark.parametrize("length", [1, 3, 9])
    def test_a_source_of_another_length(self, staged, length):
        registry = registry_of(vector("x", staged=staged))
        with pytest.raises(SlotError, match="cut or stretch"):
            registry.fill_from({"x": torch.zeros(length, dtype=torch.int32)}, square(2, 4))

    @pytest.mark.parametrize("staged", [False, True])
    def test_a_source_of_another_dtype(self, staged):
        registry = registry_of(vector("x", staged=staged))
        with pytest.raises(SlotError, match="never convert"):
            registry.fill_from({"x": torch.zeros(2, dtype=torch.int64)}, square(2, 4))

    def test_host_numbers_that_would_wrap(self):
        registry = registry_of(vector("x", staged=True))
        registry.fill_from({"x": [1, 2]}, square(2, 4))
        with pytest.raises(SlotError, match="would wrap"):
            registry.fill_from({"x": [1, 2**31]}, square(2, 4))
        with pytest.raises(SlotError, match="would wrap"):
            registry.fill_from({"x": [1, 0.5]}, square(2, 4))

    def test_staged_bfloat16(self):
        with pytest.raises(SlotError, match="bfloat16"):
            registry_of(vector("x", staged=True, dtype=torch.bfloat16))

    def test_a_step_larger_than_the_registry(self):
        with pytest.raises(SlotError, match="at most 8 rows"):
            registry_of(vector("x")).fill_from({"x": torch.zeros(9, dtype=torch.int32)}, square(9, 9))

    @pytest.mark.parametrize("shape", [lambda bs, tokens: (bs - 1,), lambda bs, tokens: (bs + 1,)])
    @pytest.mark.parametrize("staged", [False, True])
    def test_a_shape_without_one_row_per_request(self, shape, staged):
        with pytest.raises(SlotError, match="8 rows along axis"):
            registry_of(vector("x", shape_fn=shape, staged=staged))

    def test_unknown_slot_lists_what_there_is(self):
        with pytest.raises(SlotError, match=r"one of \['x'\]"):
            registry_of(vector("x")).get_slot("y")

    def test_a_refused_fill_changes_nothing_on_the_device(self):
        """All sources are checked before the first write."""
        registry = policy_registry()
        registry.fill_from(policy_batch(registry, 4, 5), square(4, 6))
        before = {name: slot.buffer.clone() for name, slot in registry.slots.items()}
        bad = policy_batch(registry, 2, 6) | {"req_pool_indices": np.zeros((2, 3), np.int32)}
        with pytest.raises(SlotError):
            registry.fill_from(bad, square(2, 6))
        for name, slot in registry.slots.items():
            assert torch.equal(slot.buffer, before[name]), name

    def test_a_refused_fill_does_not_hide_rows_from_the_next(self):
        registry = policy_registry()
        for _ in range(4):  # every stage of the ring has held six rows
            registry.fill_from(policy_batch(registry, 6, 5), square(6, 6))
        for _ in range(4):
            with pytest.raises(SlotError):
                registry.fill_from(policy_batch(registry, 1, 6) | {"once_staged": [[1]]}, square(1, 6))
            registry.fill_from(policy_batch(registry, 2, 6), square(2, 6))
            assert registry.get_slot("positions").rows(2, 6).eq(0).all()


def ops_of(registry: CudaGraphBufferRegistry, batch, ctx: FillContext) -> list[str]:
    """What a fill dispatches, without views."""
    with OpObserver(keep_calls=False).watching() as observer:
        registry.fill_from(batch, ctx)
    return [op.name.split(".")[0] for op in observer.log.ops if not op.is_view]


class TestOps:
    """What a fill costs on the device, and in which order."""

    def test_a_fill_copies_all_device_sources_in_one_launch_per_dtype_pair(self):
        dtypes = dict.fromkeys("abc", torch.int32) | dict.fromkeys("de", torch.int64)
        slots = [vector(name, dtype=dtype) for name, dtype in dtypes.items()]
        registry = registry_of(*slots)
        batch = {slot.name: torch.ones(8, dtype=slot.dtype) for slot in slots}
        assert ops_of(registry, batch, square(8, 8)) == ["aten::_foreach_copy_"] * 2

    def test_a_fill_sends_all_host_sources_in_one_copy(self, monkeypatch):
        copies, send = [], HostChannel.send
        monkeypatch.setattr(HostChannel, "send", lambda self: copies.append(self) or send(self))
        slots = [vector(name, staged=True) for name in "abcde"]
        batch = {slot.name: np.ones(8, np.int32) for slot in slots}
        assert ops_of(registry_of(*slots), batch, square(8, 8)) == []
        assert len(copies) == 1

    def test_padding_goes_first_then_copies_then_hooks(self):
        registry = registry_of(vector("a", post_fill=lambda buffer, batch, ctx: buffer.neg_()), vector("b"))
        ops = ops_of(registry, {"a": ints(1, 2), "b": ints(3, 4)}, square(2, 4))
        assert ops == ["aten::fill_", "aten::fill_", "aten::_foreach_copy_", "aten::neg_"]


class TestHooksAndSources:
    def test_order_is_padding_then_copies_then_hooks(self):
        seen = []

        def hook(buffer, batch, ctx):
            seen.append(buffer[:4].tolist())
            buffer[0] = 99

        registry = registry_of(vector("x", post_fill=hook))
        registry.poison()
        registry.fill_from({"x": ints(1, 2)}, square(2, 4))
        assert seen == [[1, 2, 0, 0]]
        assert registry.get_slot("x").rows(0, 4).tolist() == [99, 2, 0, 0]

    def test_a_hook_may_be_the_only_writer_and_name_what_it_reads(self):
        def total(buffer, batch, ctx):
            buffer.fill_(int(sum(batch["lens"])) + ctx.raw_bs)

        registry = registry_of(
            vector(
                "total",
                PaddingPolicy.KEEP_PAD,
                axis="none",
                shape_fn=lambda bs, tokens: (1,),
                copy_from_fb=False,
                post_fill=total,
                reads=("lens",),
            )
        )
        registry.fill_from({"lens": [3, 4]}, square(2, 4))
        assert registry.get_slot("total").buffer.tolist() == [9]

    @pytest.mark.parametrize("staged", [False, True])
    def test_source_fn_replaces_the_batch_value_of_the_same_name(self, staged):
        def doubled(batch, ctx):
            return (torch.tensor(batch["y"], dtype=torch.int32) * 2)[: ctx.raw_bs]

        registry = registry_of(vector("x", staged=staged, source_fn=doubled, reads=("y",)))
        registry.fill_from({"y": [1, 2]}, square(2, 4))
        assert registry.get_slot("x").rows(0, 4).tolist() == [2, 4, 0, 0]

    def test_slice_fn_pads_the_dimension_that_grows(self):
        for staged in (False, True):
            registry = registry_of(
                vector(
                    "mrope",
                    axis="tokens",
                    shape_fn=lambda bs, tokens: (3, tokens),
                    slice_fn=lambda buffer, start, stop: buffer[:, start:stop],
                    staged=staged,
                )
            )
            registry.poison()
            registry.fill_from({"mrope": torch.ones(3, 2, dtype=torch.int32)}, square(2, 4))
            assert registry.get_slot("mrope").slice_for(4, 4).tolist() == [[1, 1, 0, 0]] * 3


class TestBuffers:
    @pytest.mark.parametrize("way", ["bind", "buffer"])
    def test_an_adopted_tensor_keeps_its_contents_until_the_first_fill(self, way):
        memory = torch.full((8,), 5, dtype=torch.int32)
        registry = registry_of(freeze=False)
        if way == "bind":
            registry.register_slot(vector("x"), bind=memory)
        else:
            registry.register_slot(vector("x", buffer=memory))
        registry.freeze()
        assert registry.get_slot("x").buffer.data_ptr() == memory.data_ptr()
        assert memory.tolist() == [5] * 8
        registry.fill_from({"x": ints(1, 2)}, square(2, 4))
        assert memory.tolist() == [1, 2, 0, 0, 5, 5, 5, 5]

    def test_an_adopted_tensor_without_rows_is_copied_into(self):
        scalar = vector("n", PaddingPolicy.KEEP_PAD, axis="none", shape_fn=lambda bs, tokens: (2,))
        memory, registry = ints(7, 8), registry_of(freeze=False)
        registry.register_slot(scalar, bind=memory)
        registry.freeze()
        assert memory.tolist() == [7, 8]
        registry.fill_from({"n": ints(4, 5)}, square(1, 4))
        assert memory.tolist() == [4, 5]

    def test_extract_buffer_gives_the_padded_views(self):
        registry = registry_of(
            vector("x", staged=True), vector("t", axis="tokens", shape_fn=lambda bs, tokens: (tokens,))
        )
        ctx = FillContext(raw_bs=1, padded_bs=2, raw_num_tokens=3, padded_num_tokens=4)
        views = registry.extract_buffer(ctx)
        assert {name: tuple(view.shape) for name, view in views.items()} == {"x": (2,), "t": (4,)}
        assert views["x"].data_ptr() == registry.get_slot("x").buffer.data_ptr()

    def test_addresses_do_not_change_between_fills(self):
        registry = policy_registry()
        before = {name: slot.buffer.data_ptr() for name, slot in registry.slots.items()}
        for raw in (6, 1, 3):
            registry.fill_from(policy_batch(registry, raw, 1), square(raw, 6))
        assert before == {name: slot.buffer.data_ptr() for name, slot in registry.slots.items()}

    def test_staged_slots_are_one_allocation(self):
        registry = registry_of(vector("a", staged=True), vector("b", staged=True, dtype=torch.int64))
        storages = {registry.get_slot(name).buffer.untyped_storage().data_ptr() for name in ("a", "b")}
        assert len(storages) == 1

    def test_null_batch_is_padding_as_values(self):
        rows = IndexSpace(name="rows", dtype=torch.int32)
        registry = registry_of(
            vector("rows", index=rows, staged=True), vector("lens", PaddingPolicy.FILL_SENTINEL, pad_value=1)
        )
        batch = registry.null_batch(square(3, 3))
        assert batch["rows"].tolist() == [0, 0, 0]
        assert batch["lens"].tolist() == [1, 1, 1]
        registry.fill_from(batch, square(3, 4))


class TestDisabledSlots:
    """Declared, and absent."""

    @pytest.fixture(params=[False, True])
    def registry(self, request) -> CudaGraphBufferRegistry:
        return registry_of(vector("x"), vector("y", staged=request.param, enabled=False))

    def test_they_have_no_memory_and_no_source(self, registry):
        registry.fill_from({"x": ints(1, 2)}, square(2, 4))
        assert set(registry.slots) == set(registry.extract_buffer(square(2, 4))) == {"x"}
        assert "y" not in registry.null_batch(square(2, 4))

    @pytest.mark.parametrize("read", [lambda r: r.get_slot("y"), lambda r: r.extract_buffer(square(2, 4))["y"]])
    def test_reading_one_names_it(self, registry, read):
        with pytest.raises(SlotError, match="slot 'y': declared with enabled=False"):
            read(registry)

    def test_a_value_for_one_is_unknown(self, registry):
        with pytest.raises(SlotError, match=r"unknown sources \['y'\]"):
            registry.fill_from({"x": ints(1), "y": ints(1)}, square(1, 4))

    def test_its_name_is_taken(self, registry):
        with pytest.raises(SlotError, match="registered twice"):
            registry_of(vector("y", enabled=False), vector("y"))

    def test_reading_a_name_nobody_declared_lists_what_there_is(self, registry):
        with pytest.raises(SlotError, match=r"one of \['x'\]"):
            registry.extract_buffer(square(2, 4))["z"]
