"""SmolLM 3: Llama without rope in the layers a list names, every fourth by default. Those may have a window."""

from __future__ import annotations

from dataclasses import replace

from playhead.models.config import ConfigReader
from playhead.models.families.llama import LLAMA
from playhead.models.family import FULL_LAYER, WINDOW_LAYER, all_full, rope_by_list

rope_on = rope_by_list("no_rope_layers", period_key="no_rope_layer_interval")


def windows_without_rope(config: ConfigReader, num_layers: int) -> list[str]:
    if not config.flag("use_sliding_window") or not config.has("sliding_window"):
        return all_full(config, num_layers)
    return [FULL_LAYER if rotates else WINDOW_LAYER for rotates in rope_on(config, [None] * num_layers)]


SMOLLM3 = replace(
    LLAMA,
    model_type="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    layer_types=windows_without_rope,
    reads_layer_types=True,
    defaults={
        **LLAMA.defaults,
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": True,
    },
    rope_theta=2_000_000.0,
    rope_on=rope_on,
)
