"""GLM 4: four norms per layer, one tensor for gate and up, interleaved rope on half of each head."""

from __future__ import annotations

from playhead.models.family import Family, Sizes
from playhead.models.spec import Placement

GLM4 = Family(
    model_type="glm4",
    architectures=("Glm4ForCausalLM",),
    sizes=Sizes(
        vocab=151_552, hidden=4096, intermediate=13_696, layers=40, heads=32, kv_heads=2, head_dim=128, context=131_072
    ),
    defaults={"hidden_act": "silu", "rms_norm_eps": 1.5625e-7, "attention_bias": True, "partial_rotary_factor": 0.5},
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
