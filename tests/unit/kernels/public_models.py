"""Shapes of public models, as their configs give them, with two layers: one of each kind where there are two."""

from __future__ import annotations

from typing import Any, NamedTuple

SLIDING, FULL = "sliding_attention", "full_attention"
BOTH = {"layer_types": [SLIDING, FULL], "sliding_window": 4096}
TIED = {"tie_word_embeddings": True}
GEMMA2 = {"sliding_window": 4096, "query_pre_attn_scalar": 256}
GEMMA3 = {"sliding_window": 1024, "sliding_window_pattern": 2, "query_pre_attn_scalar": 256}
EXPERTS = {"layer_types": [SLIDING, FULL], "sliding_window": 128, "num_local_experts": 32, "num_experts_per_tok": 4}
NO_ROTATION = {"no_rope_layers": [1, 0]}


class Widths(NamedTuple):
    """A model's sizes, in the order of their names in a config.json."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int


def config(model_type: str, *widths: int, **others: Any) -> dict[str, Any]:
    """A config.json of two layers."""
    common = {"num_hidden_layers": 2, "max_position_embeddings": 131072}
    return {"model_type": model_type, **common, **Widths(*widths)._asdict(), **others}


def with_text(text: dict[str, Any]) -> dict[str, Any]:
    """A config.json whose text part this is."""
    return {"model_type": "gemma3", "text_config": text, "vision_config": {}}


PUBLIC_MODELS: dict[str, dict[str, Any]] = {
    "gemma-2b": config("gemma", 2048, 16384, 8, 1, 256, 256000),
    "gemma-7b": config("gemma", 3072, 24576, 16, 16, 256, 256000),
    "gemma-2-2b": config("gemma2", 2304, 9216, 8, 4, 256, 256000, **GEMMA2),
    "gemma-2-9b": config("gemma2", 3584, 14336, 16, 8, 256, 256000, **GEMMA2),
    "gemma-2-27b": config("gemma2", 4608, 36864, 32, 16, 128, 256000, **GEMMA2),
    "gemma-3-270m": config("gemma3_text", 640, 2048, 4, 1, 256, 262144, **GEMMA3),
    "gemma-3-1b": config("gemma3_text", 1152, 6912, 4, 1, 256, 262144, **GEMMA3),
    "gemma-3-4b": with_text(config("gemma3_text", 2560, 10240, 8, 4, 256, 262208, **GEMMA3)),
    "gemma-3-12b": with_text(config("gemma3_text", 3840, 15360, 16, 8, 256, 262208, **GEMMA3)),
    "gemma-3-27b": with_text(config("gemma3_text", 5376, 21504, 32, 16, 128, 262208, **GEMMA3)),
    "llama-3.2-1b": config("llama", 2048, 8192, 32, 8, 64, 128256, **TIED),
    "llama-3.2-3b": config("llama", 3072, 8192, 24, 8, 128, 128256, **TIED),
    "llama-3.1-8b": config("llama", 4096, 14336, 32, 8, 128, 128256),
    "llama-3.1-70b": config("llama", 8192, 28672, 64, 8, 128, 128256),
    "smollm2-135m": config("llama", 576, 1536, 9, 3, 64, 49152, **TIED),
    "smollm2-360m": config("llama", 960, 2560, 15, 5, 64, 49152, **TIED),
    "smollm2-1.7b": config("llama", 2048, 8192, 32, 32, 64, 49152, **TIED),
    "smollm3-3b": config("smollm3", 2048, 11008, 16, 4, 128, 128256, **TIED, **NO_ROTATION),
    "mistral-7b-v0.1": config("mistral", 4096, 14336, 32, 8, 128, 32000, sliding_window=4096),
    "ministral-8b": config("ministral", 4096, 12288, 32, 8, 128, 131072, **BOTH),
    "qwen2.5-0.5b": config("qwen2", 896, 4864, 14, 2, 64, 151936, **TIED),
    "qwen2.5-1.5b": config("qwen2", 1536, 8960, 12, 2, 128, 151936, **TIED),
    "qwen2.5-7b": config("qwen2", 3584, 18944, 28, 4, 128, 152064),
    "qwen3-0.6b": config("qwen3", 1024, 3072, 16, 8, 128, 151936, **TIED),
    "qwen3-1.7b": config("qwen3", 2048, 6144, 16, 8, 128, 151936, **TIED),
    "qwen3-4b": config("qwen3", 2560, 9728, 32, 8, 128, 151936, **TIED),
    "qwen3-8b": config("qwen3", 4096, 12288, 32, 8, 128, 151936),
    "qwen3-14b": config("qwen3", 5120, 17408, 40, 8, 128, 151936),
    "qwen3-32b": config("qwen3", 5120, 25600, 64, 8, 128, 151936),
    "gpt-oss-20b": config("gpt_oss", 2880, 2880, 64, 8, 64, 201088, **EXPERTS),
    "olmo-2-1b": config("olmo2", 2048, 8192, 16, 16, 128, 100352),
    "olmo-3-7b": config("olmo3", 4096, 11008, 32, 32, 128, 100278, **BOTH),
    "olmo-3-32b": config("olmo3", 5120, 27648, 40, 8, 128, 100278, **BOTH),
    "exaone-4-1.2b": config("exaone4", 2048, 4096, 32, 8, 64, 102400, **TIED, layer_types=[FULL] * 2),
    "exaone-4-32b": config("exaone4", 5120, 27392, 40, 8, 128, 102400, **BOTH),
    "command-r": config("cohere", 8192, 22528, 64, 64, 128, 256000),
    "command-r7b": config("cohere2", 4096, 14336, 32, 8, 128, 256000, **BOTH),
    "command-a": config("cohere2", 12288, 36864, 96, 8, 128, 256000, **BOTH),
    "glm-4-9b": config("glm4", 4096, 13696, 32, 2, 128, 151552),
    "granite-3-2b": config("granite", 2048, 8192, 32, 8, 64, 49155, **TIED),
    "granite-3-8b": config("granite", 4096, 12800, 32, 8, 128, 49155, **TIED),
    "phi-3-mini": config("phi3", 3072, 8192, 32, 32, 96, 32064, sliding_window=2047),
    "phi-4": config("phi3", 5120, 17920, 40, 10, 128, 100352),
}


def one_of_each_family() -> list[str]:
    """The first model of each family."""
    return list({one["model_type"]: name for name, one in reversed(PUBLIC_MODELS.items())}.values())
