"""The architectures of GGUF files, as data: which keys each one obeys, and how its tensors are called on the hub.

What absent keys mean is what llama.cpp takes them to mean. Where llama.cpp fixes a value by the number of layers, so
does this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from playhead.errors import UnsupportedModelError
from playhead.models.config import MAX_LAYERS
from playhead.models.family import FULL_LAYER, WINDOW_LAYER

DEFAULT_THETA = 10_000.0
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
WINDOW_THETA = "rope.freq_base_swa"
ATTENTION_SOFTCAP, FINAL_SOFTCAP = "attn_logit_softcapping", "final_logit_softcapping"
ROTARY_DIM = "rope.dimension_count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The metadata under an architecture's name, by the rest of each key."""

    architecture: str
    values: Mapping[str, Any]

    def get(self, key: str, default: object = None) -> Any:
        return self.values.get(key, default)

    def size_or_none(self, key: str) -> int | None:
        """A positive whole number, or None where the key says anything else: the config check refuses that."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def refused(self, key: str, *wanted: object) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.architecture}.{key}", self.get(key), wanted)

    @property
    def head_dim(self) -> int | None:
        """The size of a head: said by the file, or the heads share the hidden size."""
        if "attention.key_length" in self.values:
            if (size := self.size_or_none("attention.key_length")) is None:
                raise self.refused("attention.key_length", "a whole number above 0")
            return size
        hidden_size, num_heads = self.size_or_none("embedding_length"), self.size_or_none("attention.head_count")
        return hidden_size // num_heads if hidden_size and num_heads else None

    @property
    def window(self) -> int | None:
        """The window, None without one. A window that holds the whole context is none."""
        window, context = self.get(WINDOW, 0), self.get("context_length")
        if isinstance(window, bool) or not isinstance(window, int):
            raise self.refused(WINDOW, "a whole number")
        return None if window == 0 or (isinstance(context, int) and window >= context) else window


MoreConfig = Callable[[Metadata], dict[str, object]]
"""The config keys of one family from a file's metadata."""

LAYER_NAMES: Mapping[str, str] = {
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
SANDWICH_NAMES = {
    **LAYER_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FUSED_NAMES = {**LAYER_NAMES, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArchitecture:
    """One architecture. `keys` are metadata keys that other architectures may not have.

    `layer_names` are the hub's names of a layer's tensors. Converters of some architectures change weights:
    `pairs_neighbours` if q and k are reordered so that rope turns neighbours, `adds_one_to_norms` if norms have the
    one in them that the hub's code adds. With `has_rope_factors` a file may bring a divisor for each rope frequency.
    """

    model_type: str
    more_config: MoreConfig
    keys: frozenset[str] = frozenset()
    layer_names: Mapping[str, str]
    pairs_neighbours: bool = False
    adds_one_to_norms: bool = False
    has_rope_factors: bool = False


def no_windows(metadata: Metadata) -> dict[str, object]:
    """Every layer sees everything, and whole heads rotate."""
    if metadata.window is not None:
        raise metadata.refused(WINDOW, 0)
    return whole_heads_rotate(metadata)


def whole_heads_rotate(metadata: Metadata) -> dict[str, object]:
    if ROTARY_DIM in metadata.values and metadata.get(ROTARY_DIM) != metadata.head_dim:
        raise metadata.refused(ROTARY_DIM, metadata.head_dim)
    return {}


def gemma2(metadata: Metadata) -> dict[str, object]:
    """Windows in every second layer, softcaps on attention and logits."""
    theta = metadata.get("rope.freq_base", DEFAULT_THETA)
    if metadata.get(WINDOW_THETA, theta) != theta:
        raise metadata.refused(WINDOW_THETA, theta)
    return {
        **whole_heads_rotate(metadata),
        "query_pre_attn_scalar": query_scalar(metadata, layers_of_the_largest=46),
        "sliding_window": metadata.get(WINDOW, 4096),
        "layer_types": layer_types(metadata, period=2),
        "attn_logit_softcapping": metadata.get(ATTENTION_SOFTCAP, 50.0),
        "final_logit_softcapping": metadata.get(FINAL_SOFTCAP, 30.0),
    }


def gemma3(metadata: Metadata) -> dict[str, object]:
    """Five window layers to one full layer, each kind with its own rope base; no windows where the file has none."""
    if metadata.get(ATTENTION_SOFTCAP, 0) != 0:
        raise metadata.refused(ATTENTION_SOFTCAP, 0)
    has_windows = metadata.get(WINDOW, 0) != 0
    return {
        **whole_heads_rotate(metadata),
        "query_pre_attn_scalar": query_scalar(metadata, layers_of_the_largest=62),
        "sliding_window": metadata.get(WINDOW) if has_windows else None,
        "layer_types": layer_types(metadata, period=6) if has_windows else layer_types(metadata, period=1),
        "rope_local_base_freq": metadata.get(WINDOW_THETA, DEFAULT_THETA),
        "final_logit_softcapping": metadata.get(FINAL_SOFTCAP) or None,
    }


def phi3(metadata: Metadata) -> dict[str, object]:
    """A window in every layer or in none, as the hub has it; rope on a part of each head.

    llama.cpp switches the window of this architecture off and says that answers get worse.
    """
    head_dim, rotary_dim = metadata.head_dim, metadata.size_or_none(ROTARY_DIM)
    config: dict[str, object] = {"sliding_window": metadata.window}
    if ROTARY_DIM not in metadata.values or head_dim is None:
        return config
    # A quotient rounded down would lose a dim when it is multiplied again.
    if rotary_dim is None or int(head_dim * (rotary_dim / head_dim)) != rotary_dim or rotary_dim > head_dim:
        raise metadata.refused(ROTARY_DIM, f"an even number up to {head_dim}")
    return {**config, "partial_rotary_factor": rotary_dim / head_dim}


def query_scalar(metadata: Metadata, *, layers_of_the_largest: int) -> int | None:
    """What queries are scaled by the root of: the head's size, but the largest model's width divided by its heads."""
    if metadata.get("block_count") != layers_of_the_largest:
        return metadata.head_dim
    hidden_size, num_heads = metadata.size_or_none("embedding_length"), metadata.size_or_none("attention.head_count")
    return hidden_size // num_heads if hidden_size and num_heads else None


def layer_types(metadata: Metadata, *, period: int) -> list[str] | None:
    """Each layer's type: listed by the file, or every so-many-th layer is full."""
    num_layers, pattern = metadata.size_or_none("block_count"), metadata.get(PATTERN, period)
    if num_layers is None or num_layers > MAX_LAYERS:
        return None  # refused as a number of layers
    if isinstance(pattern, list):
        if len(pattern) != num_layers or not all(isinstance(each, bool) for each in pattern):
            raise UnsupportedModelError(
                f"{metadata.architecture}.{PATTERN}", f"{len(pattern)} entries", [f"{num_layers} booleans"]
            )
        return [WINDOW_LAYER if has_window else FULL_LAYER for has_window in pattern]
    if isinstance(pattern, bool) or not isinstance(pattern, int) or not 1 <= pattern <= MAX_LAYERS:
        raise metadata.refused(PATTERN, "a whole number above 0", "a boolean for each layer")
    return [WINDOW_LAYER if (i + 1) % pattern else FULL_LAYER for i in range(num_layers)]


ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "llama": GgufArchitecture(
        model_type="llama",
        more_config=no_windows,
        layer_names=LAYER_NAMES,
        pairs_neighbours=True,
        has_rope_factors=True,
    ),
    "qwen2": GgufArchitecture(model_type="qwen2", more_config=no_windows, layer_names=LAYER_NAMES),
    "qwen3": GgufArchitecture(model_type="qwen3", more_config=no_windows, layer_names=LAYER_NAMES),
    "gemma": GgufArchitecture(
        model_type="gemma", more_config=no_windows, layer_names=LAYER_NAMES, adds_one_to_norms=True
    ),
    "gemma2": GgufArchitecture(
        model_type="gemma2",
        more_config=gemma2,
        keys=frozenset({PATTERN, WINDOW_THETA, ATTENTION_SOFTCAP, FINAL_SOFTCAP}),
        layer_names=SANDWICH_NAMES,
        adds_one_to_norms=True,
    ),
    "gemma3": GgufArchitecture(
        model_type="gemma3_text",
        more_config=gemma3,
        keys=frozenset({PATTERN, WINDOW_THETA, ATTENTION_SOFTCAP, FINAL_SOFTCAP}),
        layer_names=SANDWICH_NAMES,
        adds_one_to_norms=True,
    ),
    "phi3": GgufArchitecture(model_type="phi3", more_config=phi3, layer_names=FUSED_NAMES),
}
