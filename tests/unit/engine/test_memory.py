"""A model starts with what memory has room for: what nobody asked for gives way, what was asked for is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from playhead.engine.config import EngineConfig
from playhead.engine.memory import CPU_KV_BYTES, EngineMemory, fit_beside_weights, fit_memory, share_of_gpu
from playhead.errors import ConfigError
from playhead.kv.plan import plan_kv
from playhead.llm import LLM
from playhead.models.build import spec_from_config
from playhead.models.load import ModelDescription
from playhead.step.forward import kv_geometry

CPU, CUDA, GIB = torch.device("cpu"), torch.device("cuda"), 1 << 30
LLAMA_1B = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
}
MISTRAL = {**LLAMA_1B, "model_type": "mistral", "sliding_window": 4096}
TINY_128K = {
    **LLAMA_1B,
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def described(config):
    return ModelDescription(path=Path("nowhere"), config=config, spec=spec_from_config(config))


def fit(model, device, free, **settings) -> EngineMemory:
    return fit_memory(described(model), EngineConfig(**settings), device, free)


def test_a_128k_context_gives_way_to_memory_with_one_line():
    """64 KiB of KV a token in float32: 8 GiB for 131,072 of them, and half of 4 GiB is what a CPU gives."""
    memory = fit(LLAMA_1B, CPU, 4 * GIB)
    assert memory.kv_memory_bytes == 2 * GIB
    assert 30_000 < memory.limits.max_context_tokens < 32_768
    (note,) = memory.notes
    assert note == (
        f"context {memory.limits.max_context_tokens:,} instead of the model's 131,072, which would take 8.00 GiB of KV "
        "memory: this machine gives 2.00 GiB. Set max_model_len or kv_memory_bytes to choose."
    )


def test_a_cpu_gives_kv_what_all_requests_can_use_up_to_half_of_what_is_free():
    """16 requests of 131,072 tokens at 64 KiB: 128 GiB."""
    memory = fit(LLAMA_1B, CPU, 64 * GIB)
    assert (memory.limits.max_context_tokens, memory.notes) == (131_072, ())
    assert memory.kv_memory_bytes == 32 * GIB
    assert 128 * GIB < fit(LLAMA_1B, CPU, 1024 * GIB).kv_memory_bytes < 129 * GIB


def test_a_small_model_takes_no_more_than_it_can_use():
    small = {**TINY_128K, "max_position_embeddings": 256}
    assert fit(small, CPU, 64 * GIB).kv_memory_bytes == CPU_KV_BYTES
    assert fit(small, CPU, CPU_KV_BYTES).kv_memory_bytes == CPU_KV_BYTES // 2


@pytest.mark.parametrize("model", [LLAMA_1B, MISTRAL, TINY_128K, {**TINY_128K, "max_position_embeddings": 1 << 24}])
@pytest.mark.parametrize("free", [GIB // 2, 3 * GIB, 100 * GIB])
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_what_fits_can_be_planned(model, free, device):
    """The plan an engine makes next has nothing to refuse."""
    memory = fit(model, device, free)
    dtype = torch.float32 if device is CPU else torch.bfloat16
    geometry = kv_geometry(spec_from_config(model), page_size=16, dtype=dtype)
    plan = plan_kv(num_bytes=memory.kv_memory_bytes, geometry=geometry, limits=memory.limits)
    assert plan.capacity(memory.limits.max_context_tokens).num_requests >= 1


def test_a_context_that_was_asked_for_is_refused_with_the_numbers_that_would_fit():
    with pytest.raises(ConfigError, match=r"max_model_len: found 131072, which needs \d+ bytes") as refusal:
        fit(LLAMA_1B, CPU, 4 * GIB, max_model_len=131_072)
    words = str(refusal.value).split()
    lower, raised = int(words[words.index("Lower") + 3].strip(",")), int(words[-1].strip("."))
    assert fit(LLAMA_1B, CPU, 4 * GIB, max_model_len=lower).limits.max_context_tokens == lower
    assert fit(LLAMA_1B, CPU, 64 * GIB, max_model_len=131_072, kv_memory_bytes=raised).notes == ()


GEMMA_TINY = {**TINY_128K, "model_type": "gemma2", "head_dim": 16, "sliding_window": 8, "max_position_embeddings": 2048}
WINDOWS_ALONE = {**GEMMA_TINY, "model_type": "mistral"}


@pytest.mark.parametrize("model", [GEMMA_TINY, WINDOWS_ALONE, {**WINDOWS_ALONE, "sliding_window": 4096}])
@pytest.mark.parametrize("asked", [{"max_model_len": 2000}, {"max_model_len": 2000, "max_num_seqs": 2}, {}])
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_the_bytes_that_a_refusal_names_are_enough(model, asked, device):
    """A chunk that nobody asked for gives way to a context that somebody did. Windows alone need names for tokens."""
    with pytest.raises(ConfigError, match=r"kv_memory_bytes (to|found)|wanted at least") as refusal:
        fit(model, device, GIB, kv_memory_bytes=5000, **asked)
    named = int(re.search(r"(?:raise kv_memory_bytes to|wanted at least) (\d+)", str(refusal.value)).group(1))
    assert named > 5000
    limits = fit(model, device, GIB, kv_memory_bytes=named, **asked).limits
    assert limits.max_context_tokens >= asked.get("max_model_len", 128)


def test_a_chunk_that_nobody_asked_for_gives_way_to_requests_that_somebody_did():
    settings = {"kv_memory_bytes": 1 << 20, "max_num_seqs": 60, "max_model_len": 128}
    limits = fit(GEMMA_TINY, CPU, GIB, **settings).limits
    assert limits.max_running == 60
    assert limits.chunk_tokens < 512


def test_a_chunk_longer_than_the_context_takes_no_memory_from_one_request():
    """A step of one request has at most 64 tokens."""
    short = {"max_model_len": 64, "max_num_seqs": 1, "kv_memory_bytes": 200_000}
    assert fit(GEMMA_TINY, CPU, GIB, **short, max_num_batched_tokens=64).limits.max_running == 1
    assert fit(GEMMA_TINY, CPU, GIB, **short, max_num_batched_tokens=4096).limits.max_running == 1


def test_a_cpu_has_names_for_the_longest_context_of_windows_alone():
    """16 requests of 2,097,152 tokens: 1 GiB for their names, more than the least that a CPU takes."""
    memory = fit({**WINDOWS_ALONE, "max_position_embeddings": 1 << 21}, CPU, 64 * GIB)
    assert (memory.limits.max_context_tokens, memory.notes) == (1 << 21, ())


def test_bytes_that_were_asked_for_bound_a_context_that_was_not():
    memory = fit(LLAMA_1B, CPU, 64 * GIB, kv_memory_bytes=GIB)
    assert memory.kv_memory_bytes == GIB
    assert 15_000 < memory.limits.max_context_tokens < 16_384


def test_an_engine_takes_nine_tenths_of_a_gpu_or_the_share_it_is_given():
    """As in vLLM: a share of all the memory the GPU has, whatever is free."""
    assert share_of_gpu(EngineConfig(), 99 * GIB, 100 * GIB) == 90 * GIB
    assert share_of_gpu(EngineConfig(), 50 * GIB, 100 * GIB) == 50 * GIB
    assert share_of_gpu(EngineConfig(gpu_memory_utilization=0.25), 99 * GIB, 100 * GIB) == 25 * GIB
    assert share_of_gpu(EngineConfig(kv_memory_bytes=GIB), 99 * GIB, 100 * GIB) == 99 * GIB


def test_a_share_that_is_not_free_is_refused_with_the_largest_that_is():
    says = "gpu_memory_utilization: found 0.9, which is 90.00 GiB of this GPU's 100.00 GiB, where 50.50 GiB are free"
    with pytest.raises(ConfigError, match=says) as refusal:
        share_of_gpu(EngineConfig(gpu_memory_utilization=0.9), 50 * GIB + GIB // 2, 100 * GIB)
    assert "Lower it to 0.5," in str(refusal.value)


def test_bytes_beyond_the_machine_are_refused():
    with pytest.raises(ConfigError, match=f"kv_memory_bytes: found {5 * GIB}; wanted at most {GIB}"):
        fit(LLAMA_1B, CPU, GIB, kv_memory_bytes=5 * GIB)


def test_requests_give_way_unless_they_were_asked_for():
    settings = {"kv_memory_bytes": 8 << 20, "max_num_batched_tokens": 16}
    memory = fit(LLAMA_1B, CUDA, GIB, **settings)
    assert memory.limits.max_running < 256
    assert any(f"max_num_seqs is {memory.limits.max_running} instead of 256" in note for note in memory.notes)
    with pytest.raises(ConfigError, match="max_num_seqs: found 256; wanted at most"):
        fit(LLAMA_1B, CUDA, GIB, **settings, max_num_seqs=256)


def test_memory_for_no_useful_context_is_refused_by_settings_that_exist():
    with pytest.raises(ConfigError, match=r"kv_memory_bytes: found 1048576; wanted at least \d+, for a context of 128"):
        fit(LLAMA_1B, CPU, GIB, kv_memory_bytes=1 << 20)


def test_an_engine_of_a_128k_model_starts_on_default_settings(tmp_path, monkeypatch, caplog):
    (tmp_path / "config.json").write_text(json.dumps(TINY_128K))
    monkeypatch.setattr("playhead.engine.memory.usable_bytes", lambda config, device: 64 << 20)
    monkeypatch.setattr("playhead.engine.memory.CPU_KV_BYTES", 1 << 20)
    with LLM(str(tmp_path), load_format="dummy") as llm:
        assert 20_000 < llm.config.max_model_len < 131_072
        assert len(llm.generate([[1, 2, 3]])[0].outputs[0].token_ids) == 16
    assert len([record for record in caplog.records if "context" in record.message]) == 1


def test_a_context_that_cannot_fit_is_refused_before_weights_are_loaded(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_1B))

    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("playhead.engine.build.load_weights", refuse)
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM(str(tmp_path), load_format="dummy", max_model_len=131_072, kv_memory_bytes=1 << 24)


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded():
    """1.5 billion parameters in float32 take 5.58 GiB."""
    with pytest.raises(ConfigError, match=r"2.00 GiB are free, and the weights alone take 5\.58 GiB"):
        fit_beside_weights(described(LLAMA_1B), EngineConfig(), CPU, 2 * GIB)
    memory = fit_beside_weights(described(LLAMA_1B), EngineConfig(), CPU, 8 * GIB)
    left = 8 * GIB - memory.weight_bytes
    assert replace(memory, weight_bytes=0) == fit(LLAMA_1B, CPU, left)
