"""The two registries every model starts from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from playhead.errors import SlotError
from playhead.graph import FillContext, InputBufferPool
from playhead.graph.audit import unwritten_tails
from playhead.graph.slots import host_vector
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import Chunk
from playhead.step.inputs import FULL_LOCS, OVER_TOKENS, SAMPLING, StepInput, batch_of
from playhead.step.optional_inputs import OptionalInputs
from playhead.step.registries import InputFeatures, build_decode_registry, build_prefill_registry
from playhead.testing.tiny_worker import tiny_worker

USUAL = {
    "input_ids",
    "positions",
    "out_cache_loc",
    "req_pool_indices",
    "seq_lens",
    "num_token_non_padded",
}
PROXIES = {"hidden": (4, torch.float32)}
EVERYTHING = InputFeatures(
    optional=OptionalInputs(host_lengths=True, encoder=True, mamba_tracking=True, mrope=True, pp_proxies=PROXIES)
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


def decode_chunk(worker, name, *, priority=0):
    """A request that runs with one token."""
    seq = worker.kv.admit(name, [5])
    worker.kv.extend(seq, 1)
    chunk = Chunk.newest(seq, [5])
    chunk.request.priority = priority
    return chunk


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
    features = InputFeatures(optional=OptionalInputs(host_lengths=True), seq_len_fill_value=5)
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
    """The slot and the function that makes its values: the registry has it, and so has every step's batch."""
    slot = host_vector("priority", "bs", torch.int32)
    extra = StepInput(
        slot=slot, make=lambda step: np.array([chunk.request.priority for chunk in step.chunks], dtype=np.int32)
    )
    features = InputFeatures(extra=(extra,))
    registry = build_decode_registry(max_bs=4, device="cpu", features=features)
    worker = tiny_worker()
    chunks = [decode_chunk(worker, "late", priority=3), decode_chunk(worker, "early", priority=-1)]
    registry.fill_from(batch_of(features.made, worker.requests(chunks)), DECODE)
    assert registry.get_slot("priority").rows(0, 4).tolist() == [3, -1, 0, 0]
    assert registry.get_slot("seq_lens").rows(0, 4).tolist() == [1, 1, 1, 1]


def test_a_missing_pipeline_tensor_is_refused():
    registry = build_decode_registry(
        max_bs=4, device="cpu", features=InputFeatures(optional=OptionalInputs(pp_proxies=PROXIES))
    )
    with pytest.raises(SlotError, match=r"missing sources \['pp_proxy_tensors\[hidden\]'\]"):
        registry.fill_from(registry.null_batch(DECODE), DECODE)


def test_decode_and_prefill_may_share_device_memory():
    pool = InputBufferPool()
    features = InputFeatures(optional=OptionalInputs(pp_proxies=PROXIES))
    decode = build_decode_registry(max_bs=8, device="cpu", features=features, pool=pool)
    prefill = build_prefill_registry(max_bs=8, max_num_tokens=8, device="cpu", features=features, pool=pool)
    name = "pp_proxy.hidden"
    assert decode.get_slot(name).buffer.data_ptr() == prefill.get_slot(name).buffer.data_ptr()


def test_the_inputs_of_a_step_are_made_from_its_requests():
    """Two chunks of a step over tokens: the last two of a prompt's four, and a token that is on the device alone."""
    worker = tiny_worker(page_size=2)
    first, second = worker.kv.admit("first", [7, 8, 9, 10]), worker.kv.admit("second", [3])
    worker.kv.extend(first, 4)
    worker.kv.extend(second, 1)
    chunks = [
        replace(Chunk.newest(first, [9, 10]), samples=False),
        replace(Chunk.newest(second, [-second.row]), num_generated=5),
    ]
    made = batch_of(InputFeatures(extra=(*SAMPLING, *OVER_TOKENS)).made, worker.requests(chunks))
    wanted = {
        "input_ids": [9, 10, -second.row],
        "positions": [2, 3, 0],
        "out_cache_loc": [worker.kv.full_loc(seq, at) for seq, at in ((first, 2), (first, 3), (second, 0))],
        "req_pool_indices": [first.row, second.row],
        "seq_lens": [4, 1],
        "token_rows": [first.row, first.row, second.row],
        "query_starts": [0, 2],
        "query_lens": [2, 1],
        "last_token_index": [1, 2, 0],
        "sampling_rows": [0, second.row],
        "num_generated": [0, 5],
    }
    assert {name: made[name].tolist() for name in wanted} == wanted


def test_a_lone_piece_of_a_prompt_is_laid_out_as_one_among_others():
    worker = tiny_worker(page_size=2)
    seq = worker.kv.admit("lone", [7, 8, 9, 10, 11])
    worker.kv.extend(seq, 5)
    made = batch_of(InputFeatures(extra=OVER_TOKENS).made, worker.requests([Chunk.newest(seq, [9, 10, 11])]))
    wanted = {
        "positions": [2, 3, 4],
        "out_cache_loc": [worker.kv.full_loc(seq, at) for at in (2, 3, 4)],
        "seq_lens": [5],
        "token_rows": [seq.row] * 3,
        "query_starts": [0],
        "query_lens": [3],
        "last_token_index": [2, 0, 0],
    }
    assert {name: made[name].tolist() for name in wanted} == wanted
    assert {made[name].dtype for name in wanted} == {np.dtype(np.int32)}


def test_a_greedy_step_shows_no_numbers_of_its_requests():
    """Nobody reads them. Beside a request that draws, a greedy one shows its own."""
    worker = tiny_worker()
    chunks = [decode_chunk(worker, name) for name in ("greedy", "drawn")]
    for chunk, temperature in zip(chunks, (0.0, 0.5), strict=True):
        params = SamplingParams(temperature=temperature, top_k=3, seed=8)
        worker.sampler.set(chunk.seq.row, replace(chunk.request, params=params))
    for some, wanted in ((chunks[:1], ([0.0], [0], [0])), (chunks, ([0.0, 0.5], [3, 3], [8, 8]))):
        step = worker.requests(some)
        step.chunks.kind = worker.sampler.kind(step.rows)
        made = batch_of(SAMPLING, step)
        assert tuple(made[name].tolist() for name in ("temperature", "top_k", "seed")) == wanted


def test_the_sampler_s_inputs_are_the_numbers_of_the_requests_in_these_rows():
    worker = tiny_worker()
    chunks = [decode_chunk(worker, name) for name in ("one", "two")]
    for chunk, params in zip(chunks, (SamplingParams(top_k=3, seed=8), SamplingParams(min_p=1.0, seed=9)), strict=True):
        worker.sampler.set(chunk.seq.row, replace(chunk.request, params=params))
    made = batch_of(SAMPLING, worker.requests(chunks))
    assert {name: made[name].tolist() for name in ("top_k", "min_p", "seed", "temperature")} == {
        "top_k": [3, 0],
        "min_p": [-math.inf, 0.0],
        "seed": [8, 9],
        "temperature": [1.0, 1.0],
    }
