"""What an engine's settings become on a device: every value that was left open, and every size of the worker."""

from __future__ import annotations

from dataclasses import replace

import torch

from playhead.engine.config import ENGINE_SETTINGS, EngineConfig
from playhead.errors import ConfigError
from playhead.kv.plan import KVLimits
from playhead.layers.spec import MoeSpec
from playhead.models.build import family_named
from playhead.models.decoder import Decoder
from playhead.models.load import ModelDescription
from playhead.models.spec import ModelSpec
from playhead.step.worker import WorkerConfig
from playhead.types import LoadFormat

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(config: EngineConfig) -> torch.device:
    """The device asked for if this machine has it, or CUDA where there is one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if config.device == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(config.device)
    if device.type == "cuda" and (device.index or 0) >= count:
        here = ("auto", "cpu", *(("cuda",) if count else ()), *(f"cuda:{i}" for i in range(count)))
        raise ConfigError(f"device: found {config.device!r}; this machine has {', '.join(here)}. Choose one of them.")
    return device


def resolve_dtype(
    config: EngineConfig, device: torch.device, description: ModelDescription | None = None
) -> torch.dtype:
    """The dtype asked for, or the checkpoint's own where the device is fast in it.

    On a CPU that is float32: half precision is far slower there. On a GPU a float16 checkpoint stays float16, unless
    its family overflows in it. Every other checkpoint runs in bfloat16, float32 ones too, as in vLLM: they take half
    the memory and time, and bfloat16 has float32's range. GPUs without bfloat16 run in float16.
    """
    if config.dtype != "auto":
        return TORCH_DTYPES[config.dtype]
    if device.type != "cuda":
        return torch.float32
    if torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    if description is not None and description.stored_dtype is torch.float16:
        return torch.bfloat16 if family_named(description.spec.family).overflows_float16 else torch.float16
    return torch.bfloat16


def check_load_format(config: EngineConfig, description: ModelDescription) -> None:
    """Refuse a model in files of another kind than was asked for."""
    found = LoadFormat.SAFETENSORS if description.gguf is None else LoadFormat.GGUF
    if config.load_format not in (LoadFormat.AUTO, LoadFormat.DUMMY, found):
        raise ConfigError(
            f"load_format: found {config.load_format.value!r}, and {description.path.name} is {found.value}; wanted "
            f"auto or {found.value}. Leave load_format out: files say what they are."
        )


def check_batch_invariant(config: EngineConfig, spec: ModelSpec) -> None:
    """Refuse the setting for a model whose sums have no fixed order yet."""
    if config.batch_invariant and any(isinstance(layer.mlp, MoeSpec) for layer in spec.layers):
        raise ConfigError(
            f"batch_invariant: {spec.family} has experts, and their matmul adds up in an order that depends on the "
            "batch. Leave batch_invariant out for this model."
        )


def on_device(config: EngineConfig, device: torch.device) -> EngineConfig:
    """The configuration with the device's own value for every setting that was left open and has one."""
    open_ones = [one for one in ENGINE_SETTINGS if one.setting.auto and one.value_of(config) is None]
    return replace(config, **{one.name: one.setting.auto[device.type].value for one in open_ones})


def kv_limits(description: ModelDescription, config: EngineConfig, device: torch.device) -> KVLimits:
    """What the scheduler promises, with the model's own context where none was asked for."""
    longest = description.spec.max_context_tokens
    context = longest if config.max_model_len is None else config.max_model_len
    if not 1 <= context <= longest:
        raise ConfigError(f"max_model_len: found {context}; wanted 1 to {longest}, what the model has. Lower it.")
    usual = on_device(config, device)
    assert usual.max_num_seqs is not None, "every device has its sizes"
    assert usual.max_num_batched_tokens is not None, "every device has its sizes"
    return KVLimits(
        max_context_tokens=context,
        max_running=usual.max_num_seqs,
        chunk_tokens=usual.max_num_batched_tokens,
        num_steps_in_flight=2 if usual.overlap else 1,
    )


def resolved(config: EngineConfig, worker: WorkerConfig, decoder: Decoder) -> EngineConfig:
    """The configuration with every open value replaced by what a worker was made with."""
    return replace(
        config,
        device=str(decoder.embedding_VM.device),
        dtype=str(decoder.dtype).removeprefix("torch."),
        max_model_len=worker.limits.max_context_tokens,
        max_num_seqs=worker.limits.max_running,
        max_num_batched_tokens=worker.limits.chunk_tokens,
        kv_memory_bytes=worker.kv_memory_bytes,
        graph_mode=worker.token_mode,
        overlap=worker.limits.num_steps_in_flight > 1,
        strict_ledger=worker.strict_ledger,
    )
