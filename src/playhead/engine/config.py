"""What can be set about an engine, and what unset values become on a device."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from playhead.errors import ConfigError, shown
from playhead.graph.shapes import Mode
from playhead.kv.plan import KVLimits
from playhead.models.build import family_named
from playhead.models.config import MAX_SIZE
from playhead.models.decoder import Decoder
from playhead.models.load import LoadFormat, ModelDescription
from playhead.step.worker import WorkerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,2})?")

# What each size may be. The largest are far beyond any machine, and small enough that nothing overflows on the way to
# the check that knows this one.
SIZES: Mapping[str, tuple[int, int]] = {
    "max_model_len": (1, MAX_SIZE),
    "max_num_seqs": (1, 1 << 16),
    "max_num_batched_tokens": (1, 1 << 20),
    "kv_memory_bytes": (1, 1 << 50),
    "page_size": (1, 1 << 12),
    "ledger_audit_steps": (1, 1 << 31),
}


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
    ledger_audit_steps: int | None = None
    """Steps between two recounts of the whole account. By default as often as costs 1% of the time, and when the engine
    is idle. Counts are compared after every step in any case."""

    def __post_init__(self) -> None:
        # Words are taken for their members, as in LLM(load_format="dummy"). Frozen, so not by `=`.
        object.__setattr__(self, "load_format", member("load_format", LoadFormat, self.load_format))
        if self.graph_mode is not None:
            object.__setattr__(self, "graph_mode", member("graph_mode", Mode, self.graph_mode))
        check_size("page_size", self.page_size)
        check_size_or_none("ledger_audit_steps", self.ledger_audit_steps)
        check_size_or_none("max_model_len", self.max_model_len)
        check_size_or_none("max_num_seqs", self.max_num_seqs)
        check_size_or_none("max_num_batched_tokens", self.max_num_batched_tokens)
        check_size_or_none("kv_memory_bytes", self.kv_memory_bytes)
        check_flag("skip_tokenizer_init", self.skip_tokenizer_init)
        check_flag("enable_prefix_caching", self.enable_prefix_caching)
        check_flag_or_none("overlap", self.overlap)
        check_flag_or_none("strict_ledger", self.strict_ledger)
        if not isinstance(self.device, str) or not DEVICE.fullmatch(self.device):
            raise ConfigError(f"device: found {shown(self.device)}; wanted auto, cpu or cuda[:N]. Choose one.")
        if not isinstance(self.dtype, str) or self.dtype not in ("auto", *DTYPES):
            raise ConfigError(
                f"dtype: found {shown(self.dtype)}; wanted auto or one of {', '.join(DTYPES)}. Choose one."
            )


def check_size(name: str, value: object) -> None:
    """Refuse what is not a whole number in the setting's range. True is no number, and neither is 2.0 or "2"."""
    least, most = SIZES[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name}: found {shown(value)}; wanted a whole number from {least} to {most}.")


def check_size_or_none(name: str, value: object) -> None:
    if value is not None:
        check_size(name, value)


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: found {shown(value)}; wanted True or False.")


def check_flag_or_none(name: str, value: object) -> None:
    if value is not None:
        check_flag(name, value)


def member(name: str, kind: type[LoadFormat] | type[Mode], value: object) -> LoadFormat | Mode:
    """The member of an enumeration with this value."""
    if value not in [known.value for known in kind]:
        raise ConfigError(f"{name}: found {shown(value)}; wanted one of {', '.join(kind)}. Choose one.")
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
    """The device asked for if this machine has it, or CUDA where there is one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if config.device == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(config.device)
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"device: found {config.device!r}; this machine has {count} CUDA devices. Choose auto or cpu."
        )
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
        return DTYPES[config.dtype]
    if device.type != "cuda":
        return torch.float32
    if torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    if description is not None and description.stored_dtype is torch.float16:
        return torch.bfloat16 if family_named(description.spec.family).overflows_float16 else torch.float16
    return torch.bfloat16


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
