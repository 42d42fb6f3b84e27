"""What tells one family of models from another, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from playhead.layers.spec import NormKind, QKNorm, StoredAs
from playhead.models.config import ConfigReader
from playhead.models.spec import Placement

WINDOW_LAYER, FULL_LAYER = "sliding_attention", "full_attention"


LayerTypes = Callable[[ConfigReader, int], list[str]]
RopeOn = Callable[[ConfigReader, Sequence[int | None]], list[bool]]
"""Whether each layer rotates, from the config and the layers' windows."""

Switch = bool | str
"""A constant of the family, or the config key that says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a config that leaves them out.

    Without `kv_heads` every head has its own keys and values; without `head_dim` the heads share the hidden size.
    """

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    context: int

    @property
    def by_key(self) -> dict[str, int | None]:
        """The sizes under the keys that configs have for them."""
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
        }


def rope_everywhere(config: ConfigReader, windows: Sequence[int | None]) -> list[bool]:
    return [True] * len(windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A declarative mapping from one `model_type` to the decoder's words.

    A family reads the keys it declares and no others: transformers ignores the rest, and so must we.

    `sizes` and `defaults` are the values the family's authors assume for keys a config leaves out. `required` are
    options the decoder has one answer to. `aliases` are second names of keys; where a config has both, the alias wins.
    `text_key` names the part of the config that describes the decoder.

    The decoder's tensors start with one of `weight_prefixes`, and its head has one of `head_names`. Checkpoints that
    were saved without a head have no prefix, and their head is the embedding: Qwen3-Embedding is one. Tensors under
    `ignored_prefixes` belong to other parts. `names` are the parts of a layer that the family's checkpoints call
    otherwise than `NAMES` in checkpoint/pieces.py does.
    """

    model_type: str
    architectures: tuple[str, ...]
    sizes: Sizes
    layer_types: LayerTypes | None = None
    """The family's pattern of window and full layers. Without one every layer is full, whatever a config says."""
    reads_layer_types: bool = True
    """Whether a config's `layer_types` come before the family's own pattern."""
    has_window_switch: bool = False
    """Whether `use_sliding_window` decides if there are windows at all."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    required: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    text_key: str | None = None
    weight_prefixes: tuple[str, ...] = ("model.", "")
    head_names: tuple[str, ...] = ("lm_head.weight",)
    ignored_prefixes: tuple[str, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quant_methods: Mapping[str, StoredAs] = field(default_factory=dict)
    """What `quantization_config.quant_method` may be, and how linear maps are then stored. Others are refused."""

    norm: NormKind = NormKind.RMS
    norm_eps_key: str = "rms_norm_eps"
    placement: Placement = Placement.PRE
    qk_norm: QKNorm = QKNorm.NONE
    qkv_bias: Switch = "attention_bias"
    output_bias: Switch = "attention_bias"
    mlp_bias: Switch = False
    activation_key: str = "hidden_act"
    activation_aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of activations by which this family means others."""
    has_sinks: bool = False
    has_experts: bool = False

    scale_key: str | None = None
    """Attention is scaled by this key's value to the power of `scale_power`; None means the head dim's value."""
    scale_power: float = -0.5
    attention_softcap_key: str | None = None
    final_softcap_key: str | None = None
    has_scaled_embedding: bool = False
    """Whether embeddings are multiplied by the root of the hidden size, rounded to the weights' dtype."""
    embed_scale_key: str | None = None
    residual_scale_key: str | None = None
    """Each block's output is multiplied by this key's value before it is added to the residual."""
    logit_scale_key: str | None = None
    logit_divisor_key: str | None = None
    overflows_float16: bool = False
    """Whether activations of the published checkpoints leave float16's range."""

    rope_theta: float = 10_000.0
    default_rope: Mapping[str, object] = field(default_factory=dict)
    """The rope parameters of a config that has none."""
    has_rope_per_layer_type: bool = False
    """Whether window and full layers have a rope table each. `rope_scaling` then concerns full layers alone."""
    window_rope_theta_key: str | None = None
    window_rope_theta: float = 10_000.0
    rope_on: RopeOn = rope_everywhere
    rope_types: tuple[str, ...] | None = None
    """The rope types that the family's reference reads; None means all that this decoder has."""
    has_partial_rope: bool = False
    """Whether `partial_rotary_factor` says how much of a head rotates. Others rotate whole heads."""
    has_interleaved_rope: bool = False


def all_windowed(config: ConfigReader, num_layers: int) -> list[str]:
    """Every layer has the window the config names, or none if it names none."""
    return [WINDOW_LAYER if config.has("sliding_window") else FULL_LAYER] * num_layers


def windowed_from_max_window_layers(config: ConfigReader, num_layers: int) -> list[str]:
    """Qwen: layers from `max_window_layers` on, if windows are switched on at all."""
    if not config.flag("use_sliding_window") or not config.has("sliding_window"):
        return [FULL_LAYER] * num_layers
    first = config.size("max_window_layers")
    return [WINDOW_LAYER if i >= first else FULL_LAYER for i in range(num_layers)]


def full_every(period: int, *, key: str | None = None) -> LayerTypes:
    """Every `period`-th layer is full; 6 gives SSSSSF. A config may name another period by `key`."""

    def layer_types(config: ConfigReader, num_layers: int) -> list[str]:
        every = period if key is None else config.size_or(key, period)
        return [WINDOW_LAYER if (i + 1) % every else FULL_LAYER for i in range(num_layers)]

    return layer_types


def rope_in_window_layers(config: ConfigReader, windows: Sequence[int | None]) -> list[bool]:
    return [window is not None for window in windows]


def rope_in_window_layers_if_any(config: ConfigReader, windows: Sequence[int | None]) -> list[bool]:
    """Window layers, or all layers of a config without a window."""
    return rope_in_window_layers(config, windows) if config.has("sliding_window") else rope_everywhere(config, windows)


def rope_by_list(key: str, *, period_key: str) -> RopeOn:
    """The layers for which a list says 1. A config without the list has no rope in every so-many-th layer."""

    def rope_on(config: ConfigReader, windows: Sequence[int | None]) -> list[bool]:
        listed, num_layers = config.bits_or_none(key), len(windows)
        if listed is None:
            return [(i + 1) % config.size(period_key) != 0 for i in range(num_layers)]
        if config.is_sound and len(listed) < num_layers:
            config.refuse(key, f"{len(listed)} entries", [f"{num_layers}, one per layer"])
        return [*listed, *[True] * num_layers][:num_layers]

    return rope_on
