"""Settings are checked when they are made, each by its name and range."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from playhead.engine.config import ENGINE_SETTINGS, SPELLINGS, EngineConfig, config_from
from playhead.engine.foreign import FOREIGN_SETTINGS
from playhead.engine.keywords import EngineKeywords
from playhead.engine.resolve import resolve_device, resolve_dtype
from playhead.errors import ConfigError
from playhead.models.build import spec_from_config
from playhead.models.load import ModelDescription
from playhead.types import TPMode

SIZES = [declared for declared in ENGINE_SETTINGS if declared.kind is int and declared.name != "seed"]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    "value", [0, -1, True, 1.0, float("nan"), "16", [16], 10**5000], ids=lambda value: str(type(value))
)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
def test_a_size_that_cannot_be_is_refused_with_its_range(size, value):
    wanted = f"an integer from {size.setting.low} to {size.setting.high}"
    if isinstance(value, str) and size.setting.parse is not None:
        wanted = "a number and its unit"
    with pytest.raises(ConfigError, match=f"{size.name}: found .*; wanted {wanted}"):
        EngineConfig(**{size.name: value})


@pytest.mark.parametrize(
    ("keywords", "wanted"),
    [
        ({"max_model_len": 64}, EngineConfig(max_model_len=64)),
        ({"context_length": 64}, EngineConfig(max_model_len=64)),
        ({"max_running_requests": 3, "block_size": 8}, EngineConfig(max_num_seqs=3, page_size=8)),
        ({"enforce_eager": True}, EngineConfig(graph_mode="eager")),
        ({"enforce_eager": False}, EngineConfig()),
        ({"disable_radix_cache": True}, EngineConfig(enable_prefix_caching=False)),
        ({"dtype": "half"}, EngineConfig(dtype="float16")),
        ({"dtype": torch.bfloat16}, EngineConfig(dtype="bfloat16")),
        ({"dtype": "float"}, EngineConfig(dtype=torch.float32)),
        ({"mem_fraction_static": 0.7}, EngineConfig(gpu_memory_utilization=0.7)),
        ({"random_seed": 3, "tokenizer_path": "x"}, EngineConfig(seed=3, tokenizer="x")),
        ({"async_scheduling": True, "kv_cache_memory_bytes": 64}, EngineConfig(overlap=True, kv_memory_bytes=64)),
        ({"tp": 2, "tp_mode": "fast"}, EngineConfig(tensor_parallel_size=2, tp_mode=TPMode.FAST)),
        ({"tp_size": 2}, EngineConfig(tensor_parallel_size=2)),
        ({"tensor_parallel_size": 1, "swap_space": 4, "trust_remote_code": False}, EngineConfig()),
        ({"quantization": None, "cpu_offload_gb": 0, "enable_chunked_prefill": True}, EngineConfig()),
        ({"hf_overrides": None, "disable_log_stats": True, "task": "generate"}, EngineConfig()),
        ({"enforce_eager": None, "enable_prefix_caching": None, "block_size": None}, EngineConfig()),
        ({"max_model_len": 64, "context_length": None}, EngineConfig(max_model_len=64)),
        ({"limit_mm_per_prompt": {"image": 0}, "hf_token": None, "pooler_config": None}, EngineConfig()),
    ],
)
def test_keywords_have_the_spellings_of_the_flags(keywords, wanted):
    assert config_from(None, keywords) == wanted


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"max_model_len": 64, "context_length": 32}, "max_model_len: found twice"),
        ({"enforce_eager": 1}, "enforce_eager: found 1; wanted True or False"),
        ({"context_lenght": 64}, "Did you mean context_length"),
        ({"tensor_paralel_size": 2}, "Did you mean tensor_parallel_size"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: found 2; wanted 1. Playhead has no"),
        ({"pipeline_parallel_size": True}, "pipeline_parallel_size: found True; wanted 1"),
        ({"tp_mode": "quick"}, "tp_mode: found 'quick'; wanted one of exact, fast"),
        ({"trust_remote_code": True}, "trust_remote_code: found True; wanted False. Playhead never runs code"),
        ({"quantization": "awq"}, "quantization: found 'awq'; wanted 'mxfp4' or 'gguf'"),
        ({"enable_lora": True}, "enable_lora: found True; wanted False. Playhead has no LoRA adapters"),
        ({"hf_token": "hf_abc"}, "hf_token: found a secret; wanted False. Set HF_TOKEN"),
        ({"enable_deterministic_inference": True}, "found True; wanted False. Set batch_invariant=True instead"),
        ({"limit_mm_per_prompt": {"image": 1}}, "Playhead runs the text part"),
        ({"rope_theta": 1e6}, "rope_theta: found 1000000.0. Playhead takes a model as its files say"),
    ],
)
def test_keywords_that_say_nothing_clear_are_refused(keywords, says):
    with pytest.raises(ConfigError, match=says):
        config_from(None, keywords)


def test_type_checkers_see_every_keyword():
    assert set(EngineKeywords.__annotations__) == {*SPELLINGS, *FOREIGN_SETTINGS}
    assert SPELLINGS.keys().isdisjoint(FOREIGN_SETTINGS)


def test_every_setting_that_cannot_be_had_says_why():
    for name, setting in FOREIGN_SETTINGS.items():
        setting.check(name, None)
        if setting.idle is not None:
            with pytest.raises(
                ConfigError, match=rf"^{name}: found {'a secret' if setting.is_secret else 'Ellipsis'}.*\. \w.*\.$"
            ):
                setting.check(name, ...)


def test_a_config_in_another_place_is_refused():
    with pytest.raises(ConfigError, match="config: found 'a tokenizer'; wanted an EngineConfig"):
        config_from("a tokenizer", {})


@pytest.mark.parametrize("value", [1, 0, "yes", None])
@pytest.mark.parametrize("name", ["skip_tokenizer_init", "enable_prefix_caching"])
def test_a_switch_is_true_or_false(name, value):
    with pytest.raises(ConfigError, match=f"{name}: found .*; wanted True or False"):
        EngineConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("overlap", 1),
        ("device", 0),
        ("device", "cuda:x"),
        ("device", "meta"),
        ("dtype", torch.int8),
        ("dtype", "f16"),
        ("seed", 1.0),
        ("seed", True),
        ("seed", 2**63),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.5),
        ("revision", 7),
        ("generation_config", "mine"),
        ("dtype", "int8"),
        ("page_size", None),
        ("load_format", ["dummy"]),
        ("graph_mode", 3),
    ],
)
def test_other_settings_of_the_wrong_kind_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name}: found"):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("field", fields(EngineConfig), ids=lambda field: field.name)
def test_no_setting_takes_anything_whatever(field):
    """A setting that is added later has a check too."""
    with pytest.raises(ConfigError, match=field.name):
        EngineConfig(**{field.name: object()})


def test_a_device_that_is_not_here_is_refused():
    with pytest.raises(ConfigError, match="device: found 'cuda:77'"):
        resolve_device(EngineConfig(device="cuda:77"))


def stored(model_type, **keys):
    config = {"model_type": model_type, **keys}
    return ModelDescription(path=Path("nowhere"), config=config, spec=spec_from_config(config))


@pytest.mark.parametrize(
    ("description", "wanted"),
    [
        (stored("llama", torch_dtype="float16"), torch.float16),
        (stored("llama", dtype="float16", torch_dtype="bfloat16"), torch.float16),
        (stored("llama", torch_dtype="bfloat16"), torch.bfloat16),
        (stored("llama", torch_dtype="float32"), torch.bfloat16),
        (stored("llama"), torch.bfloat16),
        (stored("llama", torch_dtype="int8"), torch.bfloat16),
        (stored("gemma2", torch_dtype="float16"), torch.bfloat16),
        (stored("gemma3", text_config={"torch_dtype": "bfloat16"}), torch.bfloat16),
    ],
)
def test_auto_follows_the_checkpoint_on_a_gpu(description, wanted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert resolve_dtype(EngineConfig(), CUDA, description) is wanted
    assert resolve_dtype(EngineConfig(), CPU, description) is torch.float32
    assert resolve_dtype(EngineConfig(dtype="float32"), CUDA, description) is torch.float32


def test_a_gpu_without_bfloat16_runs_in_float16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert resolve_dtype(EngineConfig(), CUDA, stored("llama", torch_dtype="bfloat16")) is torch.float16
