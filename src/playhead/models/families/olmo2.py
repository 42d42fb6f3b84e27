"""OLMo 2: Llama with norms after the blocks and qk-norm over the whole projection."""

from __future__ import annotations

from dataclasses import replace

from playhead.layers.spec import QKNorm
from playhead.models.families.llama import LLAMA
from playhead.models.spec import Placement

OLMO2 = replace(
    LLAMA,
    model_type="olmo2",
    architectures=("Olmo2ForCausalLM",),
    sizes=replace(LLAMA.sizes, vocab=50_304),
    defaults={**LLAMA.defaults, "rms_norm_eps": 1e-5},
    mlp_bias=False,
    placement=Placement.POST,
    qk_norm=QKNorm.FULL,
)
