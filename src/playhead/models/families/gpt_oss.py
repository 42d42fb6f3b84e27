"""gpt-oss: experts in every layer, a sink logit per head, narrow windows in every other layer."""

from __future__ import annotations

from playhead.layers.spec import StoredAs
from playhead.models.family import Family, Sizes, full_every

GPT_OSS = Family(
    model_type="gpt_oss",
    architectures=("GptOssForCausalLM",),
    layer_types=full_every(2),
    sizes=Sizes(
        vocab=201_088, hidden=2880, intermediate=2880, layers=36, heads=64, kv_heads=8, head_dim=64, context=131_072
    ),
    defaults={
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    aliases={"num_experts": "num_local_experts"},
    default_rope={
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    # Experts alone are quantised, and they are dequantised when read.
    quant_methods={"mxfp4": StoredAs.PLAIN},
    has_sinks=True,
    has_experts=True,
    rope_theta=150_000.0,
)
