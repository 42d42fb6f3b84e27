"""A GGUF file as a checkpoint: its metadata as a config, its tensors under the hub's names.

Shapes: H heads, F half a head dim, I inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from playhead.models.errors import UnsupportedModelError
from playhead.models.gguf_file import GgufFile
from playhead.models.sources import TensorInfo

ARCHITECTURES = ("llama", "qwen2", "qwen3")

# Config key <- metadata key under the architecture's name.
CONFIG_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER_TENSOR = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
TENSOR = re.compile(r"(\w+)\.(weight|bias)")


def config_from_gguf(file: GgufFile) -> dict[str, object]:
    """The config.json this file would have had. Scaled rope is refused: its form here is not the hub's."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError("general.architecture", architecture, ARCHITECTURES)
    scaling = file.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModelError(f"{architecture}.rope.scaling.type", scaling, ["none"])
    config: dict[str, object] = {"model_type": architecture}
    for key, metadata_key in CONFIG_KEYS.items():
        value = file.metadata.get(f"{architecture}.{metadata_key}")
        if value is not None:
            config[key] = value
    embedding = file.tensors.get("token_embd.weight")
    config["vocab_size"] = embedding.shape[0] if embedding else len(file.metadata.get("tokenizer.ggml.tokens", ()))
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    return config


class GgufWeights:
    """The file's tensors, dequantised when read, named and laid out as on the hub."""

    def __init__(self, file: GgufFile, config: Mapping[str, Any], label: str) -> None:
        self.label, self._file = label, file
        self._theirs = {hub_name(name): name for name in file.tensors}
        # Llama's converter reorders q and k so that rope pairs neighbours; the others' leave them.
        heads, is_llama = config["num_attention_heads"], config["model_type"] == "llama"
        self._paired_heads = {"q_proj": heads, "k_proj": config.get("num_key_value_heads", heads)} if is_llama else {}
        self.tensors: Mapping[str, TensorInfo] = {
            ours: TensorInfo(
                shape=file.tensors[theirs].shape, dtype=torch.float32, num_bytes=file.tensors[theirs].num_bytes
            )
            for ours, theirs in self._theirs.items()
        }

    def read(self, name: str) -> torch.Tensor:
        tensor = self._file.read(self._theirs[name])
        heads = self._paired_heads.get(name.split(".")[-2])
        return tensor if heads is None else neighbours_to_halves(tensor, heads)

    def copy_to(self, name: str, target: torch.Tensor) -> None:
        target.copy_(self.read(name))


def hub_name(name: str) -> str:
    """The hub's name of a tensor; an unknown one keeps its own, and the loader reports it as unexpected."""
    if layer := LAYER_TENSOR.fullmatch(name):
        index, part, kind = layer.groups()
        return f"model.layers.{index}.{LAYER_NAMES[part]}.{kind}" if part in LAYER_NAMES else name
    if tensor := TENSOR.fullmatch(name):
        part, kind = tensor.groups()
        return f"{NAMES[part]}.{kind}" if part in NAMES else name
    return name


def neighbours_to_halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Within each head, rows 0 2 4 .. then 1 3 5 ..: rope then pairs row i with row i + half."""
    by_pair_HF2I = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return by_pair_HF2I.transpose(1, 2).reshape(rows.shape)
