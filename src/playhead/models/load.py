"""A model from a name: find its files, read what it is, load its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from playhead.models.build import spec_from_config
from playhead.models.checkpoint_dir import SafetensorsDirectory
from playhead.models.config import read_json
from playhead.models.decoder import Decoder
from playhead.models.fill import OnProgress, load_decoder
from playhead.models.gguf_file import GgufFile
from playhead.models.gguf_model import GgufWeights, config_from_gguf
from playhead.models.hub import resolve_model
from playhead.models.sources import TensorSource
from playhead.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What a checkpoint says it is. Cheap: no weight has been read, and memory can be planned from it."""

    path: Path
    config: dict[str, object]
    spec: ModelSpec


def describe_model(model: str, *, revision: str | None = None) -> ModelDescription:
    """The model behind a directory, a .gguf file or a hub id."""
    path = resolve_model(model, revision=revision)
    config = config_from_gguf(GgufFile(path)) if path.is_file() else read_json(path / "config.json")
    return ModelDescription(path=path, config=config, spec=spec_from_config(config))


def load_weights(
    description: ModelDescription,
    *,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: OnProgress | None = None,
) -> Decoder:
    """The decoder with the checkpoint's weights, or a `CheckpointError` and nothing."""
    return load_decoder(
        description.spec,
        _source(description),
        dtype=dtype,
        device=device,
        on_progress=on_progress,
    )


def _source(description: ModelDescription) -> TensorSource:
    path = description.path
    if path.is_dir():
        return SafetensorsDirectory(path)
    return GgufWeights(GgufFile(path), description.config, path.name)
