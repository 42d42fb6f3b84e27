"""The two registries every model starts from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from playhead.errors import SlotError
from playhead.graph import FillContext, GraphSlot, InputBufferPool, PaddingPolicy
from playhead.graph.audit import unwritten_tails
from playhead.step.inputs import FULL_LOCS, InputFeatures, build_decode_registry, build_prefill_registry

USUAL = {
    "input_ids",
    "positions",
    "out_cache_loc",
    "req_pool_indices",
    "seq_lens",
    "num_token_non_padded",
}
EVERYTHING = InputFeatures(
    host_lengths=True, encoder=True, mamba_tracking=True, mrope=True, pp_proxies={"hidden": (4, torch.float32)}
)
DECODE = FillContext(raw_bs=2, padded_bs=4, raw_num_tokens=2, padded_num_tokens=4)


def filled(registry, ctx):
    """A registry whose live rows are ones, after poison."""
    registry.poison()
    batch = {
        name: np.ones_like(v) if isinstance(v, np.ndarray) else torch.ones_like(v)
        for name, v in registry.null_batch(ctx).items()
    }
    proxies = {name: torch.ones_like(value) for name, value in (registry.null_proxies(ctx) or {}).items()}
    registry.fill_from(batch, replace(ctx, pp_proxy_tensors=proxies))
    return registry


def test_a_plain_model_has_the_usual_inputs_and_no_others():
    assert set(build_decode_registry(max_bs=4, device="cpu").slots) == USUAL
    assert set(build_prefill_registry(max_bs=4, max_num_tokens=8, device="cpu").slots) == USUAL


def test_features_add_their_inputs():
    registry = build_decode_registry(max_bs=4, device="cpu", features=EVERYTHING)
    added = {"encoder_lens", "mamba_track_indices", "mamba_track_mask", "mrope_positions", "pp_proxy.hidden"}
    assert set(registry.slots) == USUAL | added | {"seq_lens_cpu"}
    assert registry.get_slot("seq_lens_cpu").buffer.device.type == "cpu"


@pytest.mark.parametrize("raw", [0, 1, 3, 4])
def test_a_padded_row_is_a_null_request(raw):
    ctx = FillContext(raw_bs=raw, padded_bs=4, raw_num_tokens=raw, padded_num_tokens=4)
    registry = filled(build_decode_registry(max_bs=4, device="cpu", features=EVERYTHING), ctx)
    assert list(unwritten_tails(registry, ctx)) == []
    null = {name: slot.rows(raw, 4).tolist() for name, slot in registry.slots.items() if slot.axis != "none"}
    rows = 4 - raw
    assert null["positions"] == null["out_cache_loc"] == null["req_pool_indices"] == [0] * rows
    assert null["seq_lens"] == null["seq_lens_cpu"] == null["encoder_lens"] == [1] * rows
    assert null["mamba_track_mask"] == [False] * rows
    assert registry.get_slot("num_token_non_padded").buffer.tolist() == [raw]


def test_prefill_pads_tokens_and_not_requests():
    ctx = FillContext(raw_bs=2, padded_bs=2, raw_num_tokens=5, padded_num_tokens=8)
    registry = filled(build_prefill_registry(max_bs=4, max_num_tokens=8, device="cpu", features=EVERYTHING), ctx)
    views = registry.extract_buffer(ctx)
    assert views["input_ids"].tolist() == [1] * 5 + [0] * 3
    assert views["mrope_positions"].shape == (3, 8)
    assert views["seq_lens"].shape == (2,)
    assert views["num_token_non_padded"].tolist() == [5]
    assert views["pp_proxy.hidden"][5:].eq(0).all()


def test_what_a_model_lacks_is_declared_and_says_so_by_name():
    registry = build_decode_registry(max_bs=4, device="cpu")
    lacking = {"seq_lens_cpu", "encoder_lens", "mamba_track_indices", "mamba_track_mask", "mrope_positions"}
    for name in lacking:
        with pytest.raises(SlotError, match=f"'{name}': declared with enabled=False"):
            registry.extract_buffer(DECODE)[name]


def test_padded_requests_have_the_length_the_attention_backend_wants():
    features = InputFeatures(host_lengths=True, seq_len_fill_value=5)
    registry = filled(build_decode_registry(max_bs=4, device="cpu", features=features), DECODE)
    assert registry.get_slot("seq_lens").rows(0, 4).tolist() == [1, 1, 5, 5]
    assert registry.get_slot("seq_lens_cpu").rows(0, 4).tolist() == [1, 1, 5, 5]
    assert registry.null_batch(DECODE)["seq_lens"].tolist() == [5, 5]


def test_a_decode_registry_may_have_several_tokens_per_request():
    registry = build_decode_registry(max_bs=4, device="cpu", num_tokens_per_bs=3)
    ctx = FillContext(raw_bs=2, padded_bs=4, raw_num_tokens=6, padded_num_tokens=12)
    views = filled(registry, ctx).extract_buffer(ctx)
    assert views["input_ids"].tolist() == [1] * 6 + [0] * 6
    assert views["seq_lens"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("raw", [0, 1, 7, 8])
def test_num_token_non_padded_counts_the_live_tokens_of_every_step(raw):
    """Kernels stop there. The padded count would let them run over null requests."""
    registry = build_prefill_registry(max_bs=4, max_num_tokens=8, device="cpu")
    ctx = FillContext(raw_bs=min(raw, 1), padded_bs=1, raw_num_tokens=raw, padded_num_tokens=8)
    filled(registry, ctx)
    assert registry.get_slot("num_token_non_padded").buffer.tolist() == [raw]


def test_locations_have_one_dtype():
    registry = build_decode_registry(max_bs=4, device="cpu")
    assert registry.get_slot("out_cache_loc").dtype is FULL_LOCS.dtype is torch.int32


def test_a_new_field_is_one_declaration():
    extra = GraphSlot(
        name="lora_ids",
        shape_fn=lambda bs, tokens: (bs,),
        dtype=torch.int32,
        axis="bs",
        padding_policy=PaddingPolicy.ZERO,
        staged=True,
    )
    registry = build_decode_registry(max_bs=4, device="cpu", features=InputFeatures(extra=(extra,)))
    assert filled(registry, DECODE).get_slot("lora_ids").rows(0, 4).tolist() == [1, 1, 0, 0]


def test_a_missing_pipeline_tensor_is_refused():
    registry = build_decode_registry(
        max_bs=4, device="cpu", features=InputFeatures(pp_proxies={"hidden": (4, torch.float32)})
    )
    with pytest.raises(SlotError, match=r"missing sources \['pp_proxy_tensors\[hidden\]'\]"):
        registry.fill_from(registry.null_batch(DECODE), DECODE)


def test_decode_and_prefill_may_share_device_memory():
    pool = InputBufferPool()
    features = InputFeatures(pp_proxies={"hidden": (4, torch.float32)})
    decode = build_decode_registry(max_bs=8, device="cpu", features=features, pool=pool)
    prefill = build_prefill_registry(max_bs=8, max_num_tokens=8, device="cpu", features=features, pool=pool)
    name = "pp_proxy.hidden"
    assert decode.get_slot(name).buffer.data_ptr() == prefill.get_slot(name).buffer.data_ptr()
