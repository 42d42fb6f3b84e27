"""A GGUF file as a checkpoint: its metadata as a config, its tensors under the hub's names.

Shapes: H heads, F half a head dim, I inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from playhead.errors import CheckpointError, UnsupportedModelError
from playhead.layers.blocks import Blocks
from playhead.layers.spec import FactorScaling, StoredAs
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.gguf_architectures import ARCHITECTURES, DEFAULT_THETA, GgufArchitecture, Metadata
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_keys import check_keys, require
from playhead.models.checkpoint.sources import Part, TensorInfo
from playhead.models.spec import LayerSpec, ModelSpec

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
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ROPE_FACTORS = "rope_freqs.weight"
REFUSED_TENSORS = ("rope_factors_long.weight", "rope_factors_short.weight")
"""Two rope tables for short and long contexts: a request that grows past the short one would need new keys."""
LAYER_TENSOR = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
TENSOR = re.compile(r"(\w+)\.(weight|bias)")


def architecture_of(file: GgufFile) -> tuple[str, GgufArchitecture]:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedModelError("general.architecture", name, ARCHITECTURES)
    return name, ARCHITECTURES[name]


def config_from_gguf(file: GgufFile) -> dict[str, object]:
    """The config.json this file would have had, as llama.cpp reads its metadata."""
    name, architecture = architecture_of(file)
    check_keys(file.metadata, name, also_read=architecture.keys)
    values = {key.removeprefix(f"{name}."): value for key, value in file.metadata.items() if key.startswith(f"{name}.")}
    metadata = Metadata(architecture=name, values=values)
    if missing := [key for key in CONFIG_KEYS.values() if key not in values]:
        raise UnsupportedModelError(f"{name}.{missing[0]}", None, ["a number; llama.cpp requires this key"])
    for tensor in REFUSED_TENSORS:
        if tensor in file.tensors:
            raise UnsupportedModelError(tensor, "longrope", ["a file without this tensor, of a model with one rope"])
    config: dict[str, object] = {"model_type": architecture.model_type}
    config |= {key: values[metadata_key] for key, metadata_key in CONFIG_KEYS.items()}
    config["num_key_value_heads"] = values.get("attention.head_count_kv", values["attention.head_count"])
    config["head_dim"] = metadata.head_dim
    config["rope_theta"] = values.get("rope.freq_base", DEFAULT_THETA)
    config["vocab_size"] = _vocab_size(file)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["rope_scaling"] = rope_scaling(values, name)
    for key, wanted in (("vocab_size", config["vocab_size"]), ("attention.value_length", config["head_dim"])):
        if key in values:
            require(f"{name}.{key}", values[key], (wanted,))
    return config | architecture.more_config(metadata)


def _vocab_size(file: GgufFile) -> int:
    """The rows of the embedding. Of a file without one, which is refused for that, the number of tokens."""
    if "token_embd.weight" in file.tensors:
        return file.tensors["token_embd.weight"].shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else 0


def spec_from_gguf(file: GgufFile, config: Mapping[str, object]) -> ModelSpec:
    """The decoder of a file's config, with the rope factors that only a tensor of the file has."""
    spec = replace(spec_from_config(config), stored_as=StoredAs.BLOCKS)
    _, architecture = architecture_of(file)
    if not architecture.has_rope_factors or ROPE_FACTORS not in file.tensors:
        return spec
    # Counted before it is read: a tensor by this name can have any size.
    shape, ropes = file.tensors[ROPE_FACTORS].shape, {layer.attention.rope for layer in spec.layers}
    if any(rope is None or rope.scaling is not None or shape != (rope.rotary_dim // 2,) for rope in ropes):
        wanted = "one factor for each pair of a head's dims, and no other scaling of rope"
        raise CheckpointError(ROPE_FACTORS, f"shape {list(shape)}", wanted, "Get the file again.")
    factors = file.read(ROPE_FACTORS).tolist()
    if not all(1e-6 < factor < 1e6 for factor in factors):
        raise CheckpointError(ROPE_FACTORS, "a factor that is no positive number", "divisors", "Get the file again.")
    return replace(spec, layers=tuple(_with_factors(layer, tuple(factors)) for layer in spec.layers))


def _with_factors(layer: LayerSpec, factors: tuple[float, ...]) -> LayerSpec:
    assert layer.attention.rope is not None, "a layer without rope was refused"
    rope = replace(layer.attention.rope, scaling=FactorScaling(factors=factors))
    return replace(layer, attention=replace(layer.attention, rope=rope))


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
        _, self._architecture = architecture_of(file)
        names = {name: hub_name(name, self._architecture.layer_names) for name in file.tensors}
        if self._architecture.has_rope_factors:
            names.pop(ROPE_FACTORS, None)  # part of the spec
        self._theirs = {ours: theirs for theirs, ours in names.items()}
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        self._paired_heads = heads if self._architecture.pairs_neighbours else {}
        self.tensors: Mapping[str, TensorInfo] = {
            ours: TensorInfo(
                shape=file.tensors[theirs].shape, dtype=torch.float32, num_bytes=file.tensors[theirs].num_bytes
            )
            for ours, theirs in self._theirs.items()
        }

    def read(self, name: str, part: Part | None = None) -> torch.Tensor:
        theirs, heads = self._theirs[name], self._paired_heads.get(name.split(".")[-2])
        if heads is None and part is not None and part.axis == 0:
            return torch.from_numpy(self._file.read(theirs, slice(part.start, part.stop)))
        tensor = torch.from_numpy(self._file.read(theirs))
        if heads is not None:
            tensor = neighbours_to_halves(tensor, heads)
        elif self._architecture.adds_one_to_norms and name.endswith("norm.weight"):
            tensor = tensor - 1
        return tensor if part is None else tensor[part.index]

    def has_blocks(self, name: str) -> bool:
        """Whether the whole tensor is stored in blocks. Nothing is read."""
        return name in self._theirs and self._file.has_blocks(self._theirs[name])

    def blocks(self, name: str, part: Part | None = None) -> Blocks | None:
        theirs, heads = self._theirs[name], self._paired_heads.get(name.split(".")[-2])
        if part is not None and part.axis != 0:
            return None
        # Rows that go back to another order are all read: a part may be of any of them.
        wanted = None if part is None or heads is not None else slice(part.start, part.stop)
        unpacked = self._file.blocks(theirs, wanted)
        if unpacked is None:
            return None
        codes_OI, scales_OB, offsets_OB = map(torch.from_numpy, unpacked)
        found = Blocks(codes_OI=codes_OI, scales_OB=scales_OB, offsets_OB=offsets_OB)
        if heads is None:
            return found
        found = found.changed(lambda rows: neighbours_to_halves(rows, heads))
        return found if part is None else found.changed(lambda rows: rows[part.index])


def hub_name(name: str, layer_names: Mapping[str, str]) -> str:
    """The hub's name of a tensor; an unknown one keeps its own, and the loader reports it as unexpected."""
    if layer := LAYER_TENSOR.fullmatch(name):
        index, part, kind = layer.groups()
        return f"model.layers.{index}.{layer_names[part]}.{kind}" if part in layer_names else name
    if tensor := TENSOR.fullmatch(name):
        part, kind = tensor.groups()
        return f"{NAMES[part]}.{kind}" if part in NAMES else name
    return name


def neighbours_to_halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Within each head, rows 0 2 4 .. then 1 3 5 ..: rope then pairs row i with row i + half."""
    by_pair_HF2I = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return by_pair_HF2I.transpose(1, 2).reshape(rows.shape)
