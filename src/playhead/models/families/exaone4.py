"""EXAONE 4: norms after the blocks, qk-norm per head, no rope in full layers where other layers have windows."""

from __future__ import annotations

from playhead.layers.spec import QKNorm
from playhead.models.family import Family, RopeOn, full_every
from playhead.models.spec import Placement

EXAONE4 = Family(
    model_type="exaone4",
    architectures=("Exaone4ForCausalLM",),
    layer_types=full_every(4),
    defaults={
        "vocab_size": 102_400,
        "hidden_size": 4096,
        "intermediate_size": 16_384,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
    },
    placement=Placement.POST,
    qk_norm=QKNorm.HEAD,
    qkv_bias=False,
    output_bias=False,
    rope_on=RopeOn.WINDOWED_IF_NAMED,
)
