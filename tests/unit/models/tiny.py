"""A checkpoint small enough to write in a test."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from playhead.models.build import family_named, spec_from_config
from playhead.models.checkpoint.pieces import pieces_of

CONFIG = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 64,
}


def random_tensors(config: dict[str, object], seed: int = 0) -> dict[str, torch.Tensor]:
    """What a checkpoint of this config holds."""
    generator = torch.Generator().manual_seed(seed)
    pieces = pieces_of(spec_from_config(config), family_named(config["model_type"]), ())
    return {name: torch.randn(shape, generator=generator) * 0.1 for piece in pieces for name, shape in piece.sources}


def write_checkpoint(
    directory: Path, config: dict[str, object], tensors: dict[str, torch.Tensor], num_shards: int = 1
) -> Path:
    """config.json and weights, in one file or in several with an index."""
    (directory / "config.json").write_text(json.dumps(config))
    if num_shards == 1:
        save_file(tensors, directory / "model.safetensors")
        return directory
    weight_map = {}
    names = list(tensors)
    for i in range(num_shards):
        file_name = f"model-{i + 1:05}-of-{num_shards:05}.safetensors"
        shard = names[i::num_shards]
        save_file({name: tensors[name] for name in shard}, directory / file_name)
        weight_map |= dict.fromkeys(shard, file_name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory
