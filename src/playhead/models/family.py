"""What tells one family of models from another, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from playhead.layers.spec import NormKind, QKNorm
from playhead.models.config import MAX_LAYERS, ConfigReader
from playhead.models.errors import UnsupportedModelError
from playhead.models.spec import Placement

WINDOW_LAYER, FULL_LAYER = "sliding_attention", "full_attention"


class RopeOn(Enum):
    """Which layers rotate: all, those with a window, or those with a window unless the config names none."""

    ALL = "all"
    WINDOWED = "windowed"
    WINDOWED_IF_NAMED = "windowed_if_named"


LayerTypes = Callable[[ConfigReader, int], list[str]]
Switch = bool | str
"""A constant of the family, or the config key that says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A declarative mapping from one `model_type` to the decoder's words.

    `defaults` are the values the family's authors assume for keys a config leaves out; `required` are options the
    decoder has one answer to. `text_key` names the part of the config that describes the decoder, and
    `weight_prefixes` what its tensors' names may start with; tensors under `ignored_prefixes` belong to other parts.
    """

    model_type: str
    architectures: tuple[str, ...]
    layer_types: LayerTypes
    defaults: Mapping[str, object] = field(default_factory=dict)
    required: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    text_key: str | None = None
    weight_prefixes: tuple[str, ...] = ("model.",)
    head_name: str = "lm_head.weight"
    ignored_prefixes: tuple[str, ...] = ()

    norm: NormKind = NormKind.RMS
    norm_eps_key: str = "rms_norm_eps"
    placement: Placement = Placement.PRE
    qk_norm: QKNorm = QKNorm.NONE
    qkv_bias: Switch = "attention_bias"
    output_bias: Switch = "attention_bias"
    mlp_bias: Switch = False
    activation_key: str = "hidden_act"
    has_sinks: bool = False
    has_experts: bool = False

    scale_key: str | None = None
    """Attention is scaled by this key's value ** -0.5; None means the head dim's."""
    has_scaled_embedding: bool = False
    has_logit_scale: bool = False

    rope_theta: float = 10_000.0
    window_rope_theta_key: str | None = None
    window_rope_theta: float | None = None
    scales_rope_on_full_only: bool = False
    rope_on: RopeOn = RopeOn.ALL
    has_interleaved_rope: bool = False


def all_full(config: ConfigReader, num_layers: int) -> list[str]:
    return [FULL_LAYER] * num_layers


def all_windowed(config: ConfigReader, num_layers: int) -> list[str]:
    """Every layer has the window the config names, or none if it names none."""
    return [WINDOW_LAYER if config.has("sliding_window") else FULL_LAYER] * num_layers


def windowed_from_max_window_layers(config: ConfigReader, num_layers: int) -> list[str]:
    """Qwen: layers from `max_window_layers` on, if windows are switched on at all."""
    if not config.flag("use_sliding_window") or not config.has("sliding_window"):
        return [FULL_LAYER] * num_layers
    first = config.value("max_window_layers")
    if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first <= MAX_LAYERS:
        raise UnsupportedModelError("max_window_layers", first, [f"an integer from 0 to {MAX_LAYERS}"])
    return [WINDOW_LAYER if i >= first else FULL_LAYER for i in range(num_layers)]


def full_every(period: int) -> LayerTypes:
    """Every `period`-th layer is full; 6 gives SSSSSF. A config may name another period, or spell the pattern out."""

    def layer_types(config: ConfigReader, num_layers: int) -> list[str]:
        if not config.has("sliding_window"):
            return [FULL_LAYER] * num_layers
        pattern = config.value("sliding_window_pattern")
        if isinstance(pattern, str):
            return _spelled_out(pattern, num_layers)
        every = config.size_or("sliding_window_pattern", period)
        return [WINDOW_LAYER if (i + 1) % every else FULL_LAYER for i in range(num_layers)]

    return layer_types


def _spelled_out(pattern: str, num_layers: int) -> list[str]:
    """'LLLG', repeated; the last layer is global whatever the pattern says."""
    if not pattern or set(pattern) - {"L", "G"}:
        raise UnsupportedModelError("sliding_window_pattern", pattern, ["an integer", "a string of L and G"])
    kinds = {"L": WINDOW_LAYER, "G": FULL_LAYER}
    return [kinds[pattern[i % len(pattern)]] for i in range(num_layers - 1)] + [FULL_LAYER]
