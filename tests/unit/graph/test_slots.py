"""Declarations that are refused, and what a declaration promises."""

from __future__ import annotations

import pytest
import torch

from playhead.errors import SlotError
from playhead.graph import FillContext, GraphSlot, IndexSpace, PaddingPolicy

LOCS = IndexSpace(name="locations", dtype=torch.int32)


def slot(**changes) -> GraphSlot:
    settings = {
        "name": "x",
        "shape_fn": lambda bs, tokens: (bs,),
        "dtype": torch.int32,
        "axis": "bs",
        "padding_policy": PaddingPolicy.ZERO,
    }
    return GraphSlot(**{**settings, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"axis": "rows"}, "axis 'rows'"),
        ({"padding_policy": None}, "padding_policy None"),
        ({"padding_policy": "zero"}, "KEEP_PAD, FILL_SENTINEL"),
        ({"axis": "none"}, "no rows to pad"),
        ({"padding_policy": PaddingPolicy.KEEP_PAD}, "without a claim"),
        ({"padding_policy": PaddingPolicy.FOREACH_COPY}, "without a claim"),
        ({"tail_unread": "nobody"}, "This tail is written"),
        ({"pad_value": 3}, "Use FILL_SENTINEL"),
        ({"padding_policy": PaddingPolicy.FILL_SENTINEL, "pad_value": 2**31}, "fits torch.int32"),
        ({"padding_policy": PaddingPolicy.FILL_SENTINEL, "pad_value": 0.5}, "fits torch.int32"),
        ({"copy_from_fb": False}, "a writer"),
        ({"copy_from_fb": False, "source_fn": lambda batch, ctx: None}, "one writer"),
        ({"staged": True, "device": torch.device("cpu")}, "staged with its own device"),
        ({"index": IndexSpace(name="locations", dtype=torch.int64)}, "One index space has one dtype"),
        ({"index": LOCS, "padding_policy": PaddingPolicy.FOREACH_COPY, "tail_unread": "x"}, "a request's memory"),
        ({"index": LOCS, "padding_policy": PaddingPolicy.FILL_SENTINEL, "pad_value": 1}, "the sink"),
    ],
)
def test_bad_declarations_are_refused_with_the_reason(changes, says):
    with pytest.raises(SlotError, match=says):
        slot(**changes)


def test_padding_policy_has_no_default():
    with pytest.raises(TypeError, match="padding_policy"):
        GraphSlot(name="x", shape_fn=lambda bs, tokens: (bs,), dtype=torch.int32, axis="bs")


@pytest.mark.parametrize("policy", [PaddingPolicy.ZERO, PaddingPolicy.FILL_SENTINEL, PaddingPolicy.FILL_ONCE])
def test_index_slots_may_use_any_policy_that_writes_the_sink(policy):
    assert slot(index=LOCS, padding_policy=policy).pad_value == 0


def test_a_space_may_have_another_sink():
    space = IndexSpace(name="rows", dtype=torch.int32, sink=7)
    assert slot(index=space, padding_policy=PaddingPolicy.FILL_SENTINEL, pad_value=7).index is space


def test_slice_for_starts_at_row_zero():
    bound = slot(buffer=torch.arange(8, dtype=torch.int32))
    assert bound.slice_for(3, 5).tolist() == [0, 1, 2]
    over_tokens = slot(axis="tokens", buffer=torch.arange(8, dtype=torch.int32))
    assert over_tokens.slice_for(3, 5).tolist() == [0, 1, 2, 3, 4]


def test_slice_fn_chooses_the_dimension_that_grows():
    bound = slot(axis="tokens", buffer=torch.zeros(3, 8), slice_fn=lambda b, i, j: b[:, i:j], dtype=torch.float32)
    assert bound.slice_for(1, 5).shape == (3, 5)
    assert bound.rows(5, 8).shape == (3, 3)


def test_a_slot_without_a_buffer_says_what_to_call():
    with pytest.raises(SlotError, match="freeze"):
        slot().slice_for(1, 1)


@pytest.mark.parametrize("sizes", [(3, 2, 1, 1), (-1, 2, 1, 1), (1, 1, 5, 4)])
def test_a_context_larger_than_its_bucket_is_refused(sizes):
    raw_bs, padded_bs, raw_tokens, padded_tokens = sizes
    with pytest.raises(SlotError, match="raw <= padded"):
        FillContext(raw_bs=raw_bs, padded_bs=padded_bs, raw_num_tokens=raw_tokens, padded_num_tokens=padded_tokens)
