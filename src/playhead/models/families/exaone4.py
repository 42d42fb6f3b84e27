"""EXAONE 4: norms after the blocks, qk-norm per head, no rope in full layers where other layers have windows."""

from __future__ import annotations

from dataclasses import replace

from playhead.layers.spec import QKNorm
from playhead.models.config import ConfigReader
from playhead.models.families.llama import LLAMA
from playhead.models.family import FULL_LAYER, WINDOW_LAYER, full_every, rope_in_window_layers_if_any
from playhead.models.spec import Placement

PATTERN = "sliding_window_pattern"
by_period = full_every(4, key=PATTERN)


def exaone_layer_types(config: ConfigReader, num_layers: int) -> list[str]:
    """A period, or letters that repeat: 'LLLG'. After letters the last layer is full, whatever they say.

    A config without a window means full layers only.
    """
    if not config.has("sliding_window"):
        return [FULL_LAYER] * num_layers
    pattern = config.value(PATTERN)
    if not isinstance(pattern, str):
        return by_period(config, num_layers)
    kinds = {"L": WINDOW_LAYER, "G": FULL_LAYER}
    if not pattern or not set(pattern) <= kinds.keys():
        config.refuse(PATTERN, pattern, ["an integer", "a string of L and G"])
        return [FULL_LAYER] * num_layers
    return [kinds[pattern[i % len(pattern)]] for i in range(num_layers - 1)] + [FULL_LAYER]


EXAONE4 = replace(
    LLAMA,
    model_type="exaone4",
    architectures=("Exaone4ForCausalLM",),
    placement=Placement.POST,
    qk_norm=QKNorm.HEAD,
    layer_types=exaone_layer_types,
    sizes=replace(LLAMA.sizes, vocab=102_400, intermediate=16_384, kv_heads=32),
    defaults={**LLAMA.defaults, "rms_norm_eps": 1e-5, "sliding_window": 4096},
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    rope_on=rope_in_window_layers_if_any,
)
