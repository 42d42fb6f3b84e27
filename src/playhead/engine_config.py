"""What can be set about an engine, and what unset values become on a device."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from playhead.env import wants_strict_ledger
from playhead.errors import ConfigError
from playhead.graph.shapes import Mode
from playhead.kv.plan import KVLimits
from playhead.models.load import LoadFormat, ModelDescription
from playhead.step.worker import AUDIT_EVERY_STEPS, WorkerConfig

CPU_KV_BYTES = 1 << 28
KV_SHARE_OF_FREE = 0.8  # the rest of a GPU's free memory is for graphs, activations and the CUDA context


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What can be set. What is left at None or "auto" follows from the model and the device.

    With `skip_tokenizer_init` prompts are token ids only and no text comes back; a model of `load_format="dummy"`
    without a tokenizer is used so too.
    """

    device: str = "auto"
    dtype: str = "auto"
    load_format: LoadFormat = LoadFormat.AUTO
    skip_tokenizer_init: bool = False
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_memory_bytes: int | None = None
    page_size: int = 16
    graph_mode: Mode | None = None
    """How steps over tokens are captured. By default full where our kernels run, breakable on a CPU."""
    enable_prefix_caching: bool = True
    overlap: bool | None = None
    """Launch a step before the last one is read. By default where the device is not the host."""
    strict_ledger: bool | None = None
    """Recount the account of KV pages after every step and raise at the first violation. By default only where
    PLAYHEAD_STRICT_LEDGER is set. Otherwise the requests that touch the pages end, and all others go on."""
    ledger_audit_steps: int = AUDIT_EVERY_STEPS
    """Steps between two recounts of the whole account. Its counts are compared after every step."""

    def __post_init__(self) -> None:
        # Words are taken for their members, as in LLM(load_format="dummy"). Frozen, so not by `=`.
        object.__setattr__(self, "load_format", member("load_format", LoadFormat, self.load_format))
        if self.graph_mode is not None:
            object.__setattr__(self, "graph_mode", member("graph_mode", Mode, self.graph_mode))


def member(name: str, kind: type[LoadFormat] | type[Mode], value: str) -> LoadFormat | Mode:
    """The member of an enumeration with this value."""
    if value not in [known.value for known in kind]:
        raise ConfigError(f"{name}: found {value!r}; wanted one of {', '.join(kind)}. Choose one.")
    return kind(value)


def config_from(config: EngineConfig | None, settings: Mapping[str, Any]) -> EngineConfig:
    """The configuration given as an object or as keywords, not as both."""
    names = [field.name for field in fields(EngineConfig)]
    for name in settings:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            fix = f"Did you mean {close[0]}?" if close else "Remove it."
            raise ConfigError(f"setting {name!r}: found no such setting; wanted one of {', '.join(names)}. {fix}")
    if config is not None and settings:
        raise ConfigError(
            f"settings: found a config object and {', '.join(settings)} beside it; wanted one of the two. "
            "Put them into the object."
        )
    return config or EngineConfig(**settings)


def resolve_device(config: EngineConfig) -> torch.device:
    """The device asked for, or CUDA where there is one."""
    if config.device != "auto":
        try:
            return torch.device(config.device)
        except RuntimeError:
            raise ConfigError(f"device: found {config.device!r}; wanted auto, cpu or cuda[:N]. Choose one.") from None
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resolve_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU; float32 on a CPU, where half precision is far slower."""
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if config.dtype not in names:
        raise ConfigError(f"dtype: found {config.dtype!r}; wanted auto or one of {', '.join(names)}. Choose one.")
    return names[config.dtype]


def resolve_mode(config: EngineConfig, device: torch.device) -> Mode:
    """One graph for a whole step on a GPU: every break costs the host a launch. On a CPU there is nothing to launch,
    and between segments attention finds its keys once for all layers instead of once for each.
    """
    if config.graph_mode is not None:
        return config.graph_mode
    return Mode.FULL if device.type == "cuda" else Mode.BREAKABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """How many requests run at once, and how many prompt tokens a step takes besides their tokens."""

    max_num_seqs: int
    max_num_batched_tokens: int


CPU_SIZES = StepSizes(max_num_seqs=16, max_num_batched_tokens=512)
CUDA_SIZES = StepSizes(max_num_seqs=256, max_num_batched_tokens=2048)


def resolve_sizes(config: EngineConfig, device: torch.device) -> StepSizes:
    """What was asked for, or sizes that keep the device busy without keeping anybody waiting.

    A GPU reads all weights for every decode step, whatever the batch: an H200 has about 200 operations of bfloat16
    for each byte it reads, so some 200 requests ride along almost free, and 256 is the bucket above. 2,048 prompt
    tokens fill its multiprocessors, and the requests that decode beside them wait for one such step at most. A CPU is
    busy with a few rows, and 512 tokens of a small model already take a second. Both GPU sizes are vLLM's.
    """
    usual = CUDA_SIZES if device.type == "cuda" else CPU_SIZES
    return StepSizes(
        max_num_seqs=usual.max_num_seqs if config.max_num_seqs is None else config.max_num_seqs,
        max_num_batched_tokens=(
            usual.max_num_batched_tokens if config.max_num_batched_tokens is None else config.max_num_batched_tokens
        ),
    )


def resolve_overlap(config: EngineConfig, device: torch.device) -> bool:
    """It pays where a device works while the host does."""
    return device.type != "cpu" if config.overlap is None else config.overlap


def kv_limits(description: ModelDescription, config: EngineConfig, device: torch.device) -> KVLimits:
    """What the scheduler promises, with the model's own context where none was asked for."""
    longest = description.spec.max_context_tokens
    context = longest if config.max_model_len is None else config.max_model_len
    if not 1 <= context <= longest:
        raise ConfigError(f"max_model_len: found {context}; wanted 1 to {longest}, what the model has. Lower it.")
    sizes = resolve_sizes(config, device)
    return KVLimits(
        max_context_tokens=context,
        max_running=sizes.max_num_seqs,
        chunk_tokens=sizes.max_num_batched_tokens,
        num_steps_in_flight=2 if resolve_overlap(config, device) else 1,
    )


def worker_config(description: ModelDescription, config: EngineConfig, device: torch.device) -> WorkerConfig:
    """Every size, with what was left open filled in."""
    kv_bytes = CPU_KV_BYTES if config.kv_memory_bytes is None else config.kv_memory_bytes
    if config.kv_memory_bytes is None and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kv_bytes = int(free * KV_SHARE_OF_FREE)
    return WorkerConfig(
        kv_memory_bytes=kv_bytes,
        limits=kv_limits(description, config, device),
        page_size=config.page_size,
        token_mode=resolve_mode(config, device),
        prefix_caching=config.enable_prefix_caching,
        strict_ledger=wants_strict_ledger() if config.strict_ledger is None else config.strict_ledger,
        audit_every_steps=config.ledger_audit_steps,
    )


def resolved(config: EngineConfig, worker: WorkerConfig, device: torch.device) -> EngineConfig:
    """The configuration with every open value replaced by what a worker was made with."""
    return replace(
        config,
        device=str(device),
        dtype=str(resolve_dtype(config, device)).removeprefix("torch."),
        max_model_len=worker.limits.max_context_tokens,
        max_num_seqs=worker.limits.max_running,
        max_num_batched_tokens=worker.limits.chunk_tokens,
        kv_memory_bytes=worker.kv_memory_bytes,
        graph_mode=worker.token_mode,
        overlap=worker.limits.num_steps_in_flight > 1,
        strict_ledger=worker.strict_ledger,
    )
