"""A GGUF file as a checkpoint: its metadata as a config, its tensors under the hub's names.

Shapes: H heads, F half a head dim, I inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from playhead.errors import UnsupportedModelError
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_keys import check_keys, require
from playhead.models.checkpoint.sources import Part, TensorInfo

ARCHITECTURES = ("llama", "qwen2", "qwen3")

# Config key <- metadata key under the architecture's name. Files must have all of these: the hub's defaults for absent
# keys are not llama.cpp's.
CONFIG_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
DEFAULT_THETA = 10_000.0
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
    """The config.json this file would have had, as llama.cpp reads its metadata."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError("general.architecture", architecture, ARCHITECTURES)
    check_keys(file.metadata, architecture)
    values = {
        key.removeprefix(f"{architecture}."): value
        for key, value in file.metadata.items()
        if key.startswith(f"{architecture}.")
    }
    if missing := [key for key in CONFIG_KEYS.values() if key not in values]:
        raise UnsupportedModelError(f"{architecture}.{missing[0]}", None, ["a number; llama.cpp requires this key"])
    config: dict[str, object] = {"model_type": architecture}
    config |= {key: values[metadata_key] for key, metadata_key in CONFIG_KEYS.items()}
    heads, hidden_size = values["attention.head_count"], values["embedding_length"]
    config["num_key_value_heads"] = values.get("attention.head_count_kv", heads)
    # Checked again as a config; here only so that dividing is possible.
    is_sized = isinstance(heads, int) and isinstance(hidden_size, int) and heads > 0
    config["head_dim"] = values.get("attention.key_length", hidden_size // heads if is_sized else None)
    config["rope_theta"] = values.get("rope.freq_base", DEFAULT_THETA)
    embedding = file.tensors.get("token_embd.weight")
    config["vocab_size"] = embedding.shape[0] if embedding else len(file.metadata.get("tokenizer.ggml.tokens", ()))
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["rope_scaling"] = rope_scaling(values, architecture)
    for key, wanted in (
        ("vocab_size", config["vocab_size"]),
        ("attention.value_length", config["head_dim"]),
        ("rope.dimension_count", config["head_dim"]),
    ):
        if key in values:
            require(f"{architecture}.{key}", values[key], (wanted,))
    window, context = values.get("attention.sliding_window", 0), values["context_length"]
    if not (window == 0 or (isinstance(window, int) and isinstance(context, int) and window >= context)):
        raise UnsupportedModelError(f"{architecture}.attention.sliding_window", window, [0])
    return config


def rope_scaling(values: Mapping[str, Any], architecture: str) -> dict[str, object] | None:
    """Scaled rope in the hub's words. llama.cpp takes a factor without a type for a linear one."""
    kind = values.get("rope.scaling.type", "linear")
    factor = values.get("rope.scaling.factor", values.get("rope.scale_linear", 0))
    if kind == "none":
        return None
    if kind == "linear":
        return None if factor in (0, 1) else {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedModelError(f"{architecture}.rope.scaling.type", kind, ["none", "linear", "yarn"])
    context = values.get("rope.scaling.original_context_length", values["context_length"])
    betas = {
        f"beta_{speed}": values[f"rope.scaling.yarn_beta_{speed}"]
        for speed in ("fast", "slow")
        if f"rope.scaling.yarn_beta_{speed}" in values
    }
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": context, **betas}


class GgufWeights:
    """The file's tensors, dequantised when read, named and laid out as on the hub."""

    def __init__(self, file: GgufFile, config: Mapping[str, Any], label: str) -> None:
        self.label, self._file = label, file
        self._theirs = {hub_name(name): name for name in file.tensors}
        # Llama's converter reorders q and k so that rope pairs neighbours; the others' leave them.
        heads, is_llama = config["num_attention_heads"], config["model_type"] == "llama"
        self._paired_heads = {"q_proj": heads, "k_proj": config["num_key_value_heads"]} if is_llama else {}
        self.tensors: Mapping[str, TensorInfo] = {
            ours: TensorInfo(
                shape=file.tensors[theirs].shape, dtype=torch.float32, num_bytes=file.tensors[theirs].num_bytes
            )
            for ours, theirs in self._theirs.items()
        }

    def read(self, name: str, part: Part | None = None) -> torch.Tensor:
        tensor = self._file.read(self._theirs[name])
        heads = self._paired_heads.get(name.split(".")[-2])
        whole = tensor if heads is None else neighbours_to_halves(tensor, heads)
        return whole if part is None else whole[part.index]


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
