"""How much KV an engine takes and how long a context it serves: what was asked for, and what memory has room for."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from playhead.engine.config import GPU_SHARE, EngineConfig
from playhead.engine.host_memory import free_host_bytes
from playhead.engine.ranks import first_shard
from playhead.engine.resolve import kv_limits, on_device, resolve_dtype
from playhead.env import wants_strict_ledger
from playhead.errors import ConfigError
from playhead.kv.geometry import KVGeometry
from playhead.kv.plan import KVLimits, least_bytes, longest_context, most_running, most_useful_bytes, useful_bytes
from playhead.layers.parallel import weight_format
from playhead.layers.shard import WHOLE, Shard
from playhead.models.decoder import Decoder
from playhead.models.load import ModelDescription, num_block_bytes
from playhead.models.spec import ModelSpec
from playhead.settings import show_size
from playhead.step.forward import kv_geometry
from playhead.step.worker import WorkerConfig
from playhead.types import LoadFormat

LOG = logging.getLogger(__name__)

KV_SHARE = 0.9  # of what an engine may take beside its weights; the rest is for graphs, activations, the CUDA context
CPU_KV_BYTES = 1 << 28  # what a small model takes; others take what their requests can use
CPU_SHARE_OF_FREE = 0.5  # of a CPU's memory beside the weights: the machine has other things to do
MIN_CONTEXT_TOKENS = 128  # a shorter context would be of no use


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Sizes that fit, and a line about every one that is less than the model or the default would have it."""

    weight_bytes: int = 0
    kv_memory_bytes: int
    limits: KVLimits
    notes: tuple[str, ...] = ()


def worker_config(description: ModelDescription, config: EngineConfig, device: torch.device) -> WorkerConfig:
    """Every size of a worker. A size that was left open and had to give way to memory is logged."""
    memory = fit_beside_weights(description, config, device, usable_bytes(config, device))
    for note in memory.notes:
        LOG.warning("%s", note)
    mode = on_device(config, device).graph_mode
    assert mode is not None, "every device has its graph mode"
    return WorkerConfig(
        kv_memory_bytes=memory.kv_memory_bytes,
        limits=memory.limits,
        page_size=config.page_size,
        token_mode=mode,
        prefix_caching=config.enable_prefix_caching,
        strict_ledger=wants_strict_ledger() if config.strict_ledger is None else config.strict_ledger,
        batch_invariant=config.batch_invariant,
        audit_every_steps=config.ledger_audit_steps,
    )


def fit_beside_weights(
    description: ModelDescription, config: EngineConfig, device: torch.device, free: int
) -> EngineMemory:
    """The sizes of an engine that has `free` bytes for its weights and its KV. Nothing has been loaded yet."""
    dtype = resolve_dtype(config, device, description)
    weight_bytes = num_weight_bytes(description.spec, dtype, first_shard(config))
    if config.load_format is not LoadFormat.DUMMY:
        weight_bytes += num_block_bytes(description, dtype, device)
    if weight_bytes >= free:
        raise ConfigError(
            f"memory: {show_size(free)} are free, and the weights alone take {show_size(weight_bytes)} in {dtype}. "
            "Take a larger device or a smaller model."
        )
    return replace(fit_memory(description, config, device, free - weight_bytes), weight_bytes=weight_bytes)


def num_weight_bytes(spec: ModelSpec, dtype: torch.dtype, shard: Shard = WHOLE) -> int:
    """Bytes of all parameters of a rank, counted on a decoder that has no memory."""
    decoder = Decoder(spec, weight_format(spec.stored_as, dtype=dtype, device=torch.device("meta"), shard=shard))
    return sum(parameter.numel() * parameter.element_size() for parameter in decoder.parameters())


def fit_memory(description: ModelDescription, config: EngineConfig, device: torch.device, free: int) -> EngineMemory:
    """The sizes of an engine that has `free` bytes beside its weights.

    Settings that were left open give way; settings that were given and do not fit are refused.
    """
    limits, dtype = kv_limits(description, config, device), resolve_dtype(config, device, description)
    spec = description.spec.share(first_shard(config))
    geometry = kv_geometry(spec, page_size=config.page_size, dtype=dtype)
    kv_bytes = _kv_bytes(config, device, free, useful_bytes(geometry, limits))
    kv_bytes = min(kv_bytes, most_useful_bytes(geometry)) if config.kv_memory_bytes is None else kv_bytes
    notes: list[str] = []
    least_context, least_running = _least_context(limits, config), config.max_num_seqs or 1
    while config.max_num_batched_tokens is None and limits.chunk_tokens > 1:
        has_context = longest_context(kv_bytes, geometry, limits) >= least_context
        if has_context and most_running(kv_bytes, geometry, limits) >= least_running:
            break
        limits = replace(limits, chunk_tokens=limits.chunk_tokens // 2)
    limits = _with_context_that_fits(limits, config, geometry, kv_bytes, notes)
    if notes and config.max_num_batched_tokens is None:
        # Where memory holds one long request, a step with more tokens than it has would find no pages for them.
        limits = replace(limits, chunk_tokens=min(limits.chunk_tokens, limits.max_context_tokens))
    limits = _with_requests_that_fit(limits, config, geometry, kv_bytes, notes)
    return EngineMemory(kv_memory_bytes=kv_bytes, limits=limits, notes=tuple(notes))


def usable_bytes(config: EngineConfig, device: torch.device) -> int:
    """The device's memory that is not taken, and of a GPU no more than the engine's share."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # a dropped engine's memory is torch's until now, and the device counts it as taken
        return share_of_gpu(config, *torch.cuda.mem_get_info(device))
    return free_host_bytes() // config.tensor_parallel_size  # the ranks of a CPU share its memory


def share_of_gpu(config: EngineConfig, free: int, total: int) -> int:
    """What an engine may take of a GPU: the share that was asked for, or 90% as far as it is free.

    With `kv_memory_bytes` and no share given, all memory that is free may be taken.
    """
    share = config.gpu_memory_utilization
    if share is None:
        return free if config.kv_memory_bytes is not None else min(free, int(total * GPU_SHARE))
    if total * share > free:
        raise ConfigError(
            f"gpu_memory_utilization: found {share:g}, which is {show_size(int(total * share))} of this GPU's "
            f"{show_size(total)}, where {show_size(free)} are free. Lower it to {int(free / total * 100) / 100:g}, or "
            "end other programs on it."
        )
    return int(total * share)


def _kv_bytes(config: EngineConfig, device: torch.device, free: int, useful: int) -> int:
    """The bytes asked for; else most of a GPU, and of a CPU's memory what requests can use, up to a share of it.

    A CPU's KV takes memory as it is written, so bytes that no request uses cost nothing.
    """
    if config.kv_memory_bytes is not None:
        if config.kv_memory_bytes > free:
            raise ConfigError(
                f"kv_memory_bytes: found {config.kv_memory_bytes}; wanted at most {free}, what is free. Lower it."
            )
        return config.kv_memory_bytes
    if device.type == "cuda":
        return int(free * KV_SHARE)
    return min(max(CPU_KV_BYTES, useful), int(free * CPU_SHARE_OF_FREE))


def _least_context(limits: KVLimits, config: EngineConfig) -> int:
    """The context without which there is no engine: the one that was asked for, or else a short one."""
    wanted = limits.max_context_tokens
    return min(wanted, MIN_CONTEXT_TOKENS) if config.max_model_len is None else wanted


def _with_context_that_fits(
    limits: KVLimits, config: EngineConfig, geometry: KVGeometry, kv_bytes: int, notes: list[str]
) -> KVLimits:
    wanted, longest = limits.max_context_tokens, longest_context(kv_bytes, geometry, limits)
    if longest >= wanted:
        return limits
    needed = least_bytes(geometry, limits)
    if config.max_model_len is not None and longest:
        raise ConfigError(
            f"max_model_len: found {wanted}, which needs {needed} bytes of KV where there are {kv_bytes}. "
            f"Lower max_model_len to {longest}, or raise kv_memory_bytes to {needed}."
        )
    useful = _least_context(limits, config)
    if longest < useful:
        least = least_bytes(geometry, replace(limits, max_context_tokens=useful))
        raise ConfigError(
            f"kv_memory_bytes: found {kv_bytes}; wanted at least {least}, for a context of {useful} tokens. "
            "Raise kv_memory_bytes, lower max_num_batched_tokens, or take a smaller model."
        )
    longest -= longest % geometry.page_size if longest > geometry.page_size else 0
    notes.append(
        f"context {longest:,} instead of the model's {wanted:,}, which would take {show_size(needed)} of KV memory: "
        f"this machine gives {show_size(kv_bytes)}. Set max_model_len or kv_memory_bytes to choose."
    )
    return replace(limits, max_context_tokens=longest)


def _with_requests_that_fit(
    limits: KVLimits, config: EngineConfig, geometry: KVGeometry, kv_bytes: int, notes: list[str]
) -> KVLimits:
    most = most_running(kv_bytes, geometry, limits)
    if limits.max_running <= most:
        return limits
    if not most:
        raise ConfigError(
            f"kv_memory_bytes: found {kv_bytes}, where steps of {limits.chunk_tokens} tokens leave no page for a "
            "request. Raise kv_memory_bytes or lower max_num_batched_tokens."
        )
    if config.max_num_seqs is not None:
        raise ConfigError(
            f"max_num_seqs: found {limits.max_running}; wanted at most {most}: {kv_bytes} bytes of KV have no page for "
            "more. Lower max_num_seqs or max_num_batched_tokens, or raise kv_memory_bytes."
        )
    notes.append(
        f"max_num_seqs is {most} instead of {limits.max_running}: {kv_bytes} bytes of KV have no page for more. "
        "Set max_num_seqs or kv_memory_bytes to choose."
    )
    return replace(limits, max_running=most)
