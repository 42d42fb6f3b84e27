"""GLM 4: four norms per layer, one tensor for gate and up, interleaved rope on half of each head."""

from __future__ import annotations

from playhead.models.family import Family, all_full
from playhead.models.spec import Placement

GLM4 = Family(
    model_type="glm4",
    architectures=("Glm4ForCausalLM",),
    layer_types=all_full,
    reads_layer_types=False,
    defaults={
        "vocab_size": 151_552,
        "hidden_size": 4096,
        "intermediate_size": 13_696,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1.5625e-7,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
    names={
        "mlp.gate_up": ("mlp.gate_up_proj",),
        "post_attention_norm": ("post_self_attn_layernorm",),
        "pre_mlp_norm": ("post_attention_layernorm",),
        "post_mlp_norm": ("post_mlp_layernorm",),
    },
    placement=Placement.SANDWICH,
    output_bias=False,
    overflows_float16=True,
    has_partial_rope=True,
    has_interleaved_rope=True,
)
