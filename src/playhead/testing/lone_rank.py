"""An engine whose only rank meets itself: every collective of several ranks runs, and there is nobody to wait for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from playhead.engine.build import load_tokenizer
from playhead.engine.config import EngineConfig
from playhead.engine.engine import Engine
from playhead.engine.memory import worker_config
from playhead.engine.resolve import resolve_device, resolve_dtype
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.layers.shard import Shard
from playhead.models.load import describe_model, load_weights
from playhead.parallel import group
from playhead.step.build import build_worker
from playhead.types import LoadFormat, TPMode


@contextmanager
def group_of_one(device: torch.device) -> Iterator[None]:
    """A process group of this process alone: by NCCL on a GPU, by gloo on a CPU."""
    with tempfile.TemporaryDirectory() as directory:
        group.join(str(Path(directory) / "store"), rank=0, num_ranks=1, device=device)
        try:
            yield
        finally:
            group.leave()


def lone_engine(model: str, config: EngineConfig, mode: TPMode | None) -> Engine:
    """An engine of one rank that meets itself, inside `group_of_one`; with None, one that meets nobody."""
    device = resolve_device(config)
    config_only = config.load_format is LoadFormat.DUMMY
    description = describe_model(resolve_model_name(model), config_only=config_only)
    decoder = load_weights(
        description,
        dtype=resolve_dtype(config, device, description),
        device=device,
        load_format=config.load_format,
        shard=Shard() if mode is None else Shard(mode=mode, is_grouped=True),
    )
    worker = build_worker(decoder, worker_config(description, config, device))
    return Engine(worker, load_tokenizer(description, config), config=replace(config), name=model)
