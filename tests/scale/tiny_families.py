"""Tiny checkpoints of several families, with what ranks can get wrong: few KV heads, biases, sinks, experts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from playhead.models.build import spec_from_config
from tests.unit.models.tiny import random_tensors, write_checkpoint

SIZES = {
    "vocab_size": 200,
    "hidden_size": 128,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
WINDOWED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64}
FAMILIES: Mapping[str, Mapping[str, object]] = {
    "llama": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 1},
    "phi3": {"model_type": "phi3", "num_key_value_heads": 4},
    "cohere2": {"model_type": "cohere2", **WINDOWED},
    "gpt_oss": {"model_type": "gpt_oss", **WINDOWED, **EXPERTS},
}


def write_family(name: str, directory: Path) -> str:
    """A checkpoint whose greedy tokens change from step to step; gives where it is."""
    config = {**SIZES, **FAMILIES[name]}
    spec_from_config(config)
    tensors = {key: 4 * values for key, values in random_tensors(config, seed=len(name)).items()}
    directory.mkdir()
    return str(write_checkpoint(directory, config, tensors))
