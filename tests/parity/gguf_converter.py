"""A transformers model as a GGUF file, written by the `gguf` package in the way llama.cpp's converter does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
KINDS = {bool: "add_bool", int: "add_uint32", float: "add_float32", str: "add_string", list: "add_array"}


def write_gguf(
    model: transformers.PreTrainedModel,
    path: Path,
    *,
    quantised: gguf.GGMLQuantizationType | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """The model in float32, its matrices packed as `quantised` says. `metadata` is written as it is."""
    config = model.config
    arch = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    write_sizes(writer, config)
    write_rope(writer, config)
    write_gemma(writer, config)
    for key, value in (metadata or {}).items():
        getattr(writer, KINDS[type(value)])(key, value)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        data = converted(name, tensor, config).float().numpy()
        if quantised is not None and data.ndim == 2:
            writer.add_tensor(theirs, gguf.quants.quantize(data, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(theirs, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_sizes(writer: gguf.GGUFWriter, config: transformers.PretrainedConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    if config.model_type == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)


def write_rope(writer: gguf.GGUFWriter, config: transformers.PretrainedConfig) -> None:
    rope = config.rope_parameters
    full = rope.get("full_attention", rope)
    if config.model_type != "gemma2" and config.model_type != "gemma":
        writer.add_rope_freq_base(full["rope_theta"])
    if config.model_type == "phi3":
        writer.add_rope_dimension_count(int(config.head_dim * full.get("partial_rotary_factor", 1.0)))
    elif config.model_type == "llama":
        writer.add_rope_dimension_count(config.head_dim)
    if full["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
    if full["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(full, config.head_dim).numpy())


def llama3_factors(rope: Mapping[str, Any], head_dim: int) -> torch.Tensor:
    """What each frequency is divided by: nothing for the fast ones, the factor for the slow ones, a blend between."""
    original = rope["original_max_position_embeddings"]
    slowest, fastest = original / rope["low_freq_factor"], original / rope["high_freq_factor"]
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        if wavelength < fastest:
            factors.append(1.0)
        elif wavelength > slowest:
            factors.append(rope["factor"])
        else:
            kept = (original / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - kept) / rope["factor"] + kept))
    return torch.tensor(factors, dtype=torch.float32)


def write_gemma(writer: gguf.GGUFWriter, config: transformers.PretrainedConfig) -> None:
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        if config.final_logit_softcapping is not None:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)


def converted(name: str, tensor: torch.Tensor, config: transformers.PretrainedConfig) -> torch.Tensor:
    """The converter adds Gemma's one to its norms, and reorders Llama's q and k so that rope turns neighbours."""
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
        num_heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = tensor.reshape(num_heads, 2, tensor.shape[0] // num_heads // 2, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    return tensor
