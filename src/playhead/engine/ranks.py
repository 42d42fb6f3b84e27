"""The ranks of an engine: what they can share, and how they are started beside the first one's loading."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch

from playhead.engine.config import EngineConfig
from playhead.errors import ConfigError
from playhead.layers.shard import WHOLE, Shard
from playhead.layers.spec import MlpSpec, MoeSpec, QKNorm, StoredAs
from playhead.models.load import ModelDescription
from playhead.models.spec import ModelSpec
from playhead.parallel.leader import RankLeader, Ranks
from playhead.step.worker import Worker, WorkerConfig
from playhead.types import Mode


def first_shard(config: EngineConfig) -> Shard:
    """The first rank's part of a model; all of it where there is one rank."""
    if config.tensor_parallel_size == 1:
        return WHOLE
    return Shard(rank=0, num_ranks=config.tensor_parallel_size, mode=config.tp_mode, is_grouped=True)


def check_ranks(config: EngineConfig, spec: ModelSpec, device: torch.device) -> None:
    """Refuse a number of ranks that cannot share this model, or that this machine has no devices for."""
    num_ranks = config.tensor_parallel_size
    if num_ranks == 1:
        return
    first = device.index or 0
    if device.type == "cuda" and first + num_ranks > torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise refused(num_ranks, f"this machine has {count} GPUs, and the first rank's is number {first}")
    if config.graph_mode is Mode.PIECEWISE:
        raise refused(num_ranks, "graph_mode='piecewise' compiles each rank by itself. Take 'full' or 'breakable'")
    if spec.stored_as is not StoredAs.PLAIN:
        raise refused(num_ranks, "a .gguf file is not divided among ranks. Take a safetensors checkpoint")
    for layer in spec.layers:
        attention = layer.attention
        if attention.qk_norm is QKNorm.FULL:
            raise refused(
                num_ranks, f"{spec.family} norms all query heads together, and each rank has only some of them"
            )
        if attention.num_kv_heads % num_ranks and num_ranks % attention.num_kv_heads:
            raise refused(num_ranks, f"{attention.num_kv_heads} KV heads cannot be divided among so many ranks")
        if not first_shard(config).is_exact and attention.num_heads % num_ranks:
            raise refused(num_ranks, f"{attention.num_heads} query heads cannot be divided among so many ranks")
        if isinstance(layer.mlp, MoeSpec) and layer.mlp.num_experts % num_ranks:
            raise refused(num_ranks, f"{layer.mlp.num_experts} experts cannot be divided among so many ranks")
    last = Shard(rank=num_ranks - 1, num_ranks=num_ranks, mode=config.tp_mode)
    columns = [layer.mlp.size for layer in spec.layers if isinstance(layer.mlp, MlpSpec)]
    for size in (spec.vocab_size, spec.hidden_size, *columns):
        if not last.size(size):
            raise refused(num_ranks, f"shares of {size} columns leave the last rank with none")


def refused(num_ranks: int, why: str) -> ConfigError:
    return ConfigError(f"tensor_parallel_size: found {num_ranks}; {why}. Choose another number, or leave it out.")


@contextmanager
def other_ranks(
    config: EngineConfig, description: ModelDescription, sizes: WorkerConfig, where: tuple[torch.device, torch.dtype]
) -> Iterator[Ranks | None]:
    """The processes of the other ranks, which load their parts meanwhile. An error in here ends them."""
    if config.tensor_parallel_size == 1:
        yield None
        return
    device, dtype = where
    ranks = Ranks(config.tensor_parallel_size)
    try:
        ranks.begin(
            {
                "path": str(description.path),
                "load_format": config.load_format,
                "num_ranks": config.tensor_parallel_size,
                "mode": config.tp_mode,
                "num_threads": torch.get_num_threads(),
                "device": str(device),
                "dtype": str(dtype),
                "worker": asdict(sizes),
            }
        )
        yield ranks
    except BaseException:
        ranks.close()
        raise


def lead(worker: Worker, ranks: Ranks | None) -> None:
    """Meet the other ranks; from now on the worker's steps are theirs too. They end with the worker."""
    if ranks is None:
        return
    ranks.join(worker.device)
    worker.leader = RankLeader(ranks)
    weakref.finalize(worker, ranks.close)
