"""SmolLM 3: Llama without rope in the layers a list names, every fourth by default. Those may have a window."""

from __future__ import annotations

from dataclasses import replace

from playhead.models.config import ConfigReader
from playhead.models.families.llama import LLAMA
from playhead.models.family import FULL_LAYER, WINDOW_LAYER, rope_by_list

rope_on = rope_by_list("no_rope_layers", period_key="no_rope_layer_interval")


def windows_without_rope(config: ConfigReader, num_layers: int) -> list[str]:
    if not config.flag("use_sliding_window") or not config.has("sliding_window"):
        return [FULL_LAYER] * num_layers
    return [FULL_LAYER if rotates else WINDOW_LAYER for rotates in rope_on(config, [None] * num_layers)]


SMOLLM3 = replace(
    LLAMA,
    model_type="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    layer_types=windows_without_rope,
    sizes=replace(LLAMA.sizes, vocab=128_256, hidden=2048, layers=36, heads=16, kv_heads=4, context=32_768),
    defaults={**LLAMA.defaults, "no_rope_layer_interval": 4, "tie_word_embeddings": True},
    rope_theta=2_000_000.0,
    rope_on=rope_on,
)
