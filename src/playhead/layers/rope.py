"""Rotary position embedding.

Shapes: T tokens, H heads, D head dim, R rotary dim, F = R / 2 frequencies.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from playhead.layers.spec import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling


class Rope(nn.Module):
    """Turns positions into cos and sin once per forward; all layers with the same spec share them."""

    def __init__(self, spec: RopeSpec, *, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        self.attention_factor = spec.scaling.attention_factor if isinstance(spec.scaling, YarnScaling) else 1.0
        self.inv_freq_F: torch.Tensor
        self.register_buffer("inv_freq_F", inverse_frequencies(spec).to(device), persistent=False)

    def forward(self, positions_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # float32 on purpose, and kept so: in bfloat16 position 257 is position 256.
        angles_TF = positions_T.float()[:, None] * self.inv_freq_F
        return angles_TF.cos() * self.attention_factor, angles_TF.sin() * self.attention_factor


def inverse_frequencies(spec: RopeSpec) -> torch.Tensor:
    """Radians per position for each pair of dims, scaling included: 1 for the first pair, 1 / theta^(1 - 2/R) last."""
    exponents_F = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim
    inv_freq_F = 1.0 / spec.theta**exponents_F
    match spec.scaling:
        case None:
            return inv_freq_F
        case LinearScaling(factor=factor):
            return inv_freq_F / factor
        case Llama3Scaling() as scaling:
            return _llama3(inv_freq_F, scaling)
        case YarnScaling() as scaling:
            return _yarn(inv_freq_F, spec, scaling)


def _llama3(inv_freq_F: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    # How many turns a frequency makes over the original context decides: few turns are stretched, many are kept.
    turns_F = scaling.original_context * inv_freq_F / (2 * math.pi)
    kept_F = (turns_F - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept_F = kept_F.clamp(0.0, 1.0)
    return inv_freq_F * (kept_F + (1.0 - kept_F) / scaling.factor)


def _yarn(inv_freq_F: torch.Tensor, spec: RopeSpec, scaling: YarnScaling) -> torch.Tensor:
    def dim_with_turns(num_turns: float) -> float:
        wavelengths = scaling.original_context / (num_turns * 2 * math.pi)
        return spec.rotary_dim * math.log(wavelengths) / (2 * math.log(spec.theta))

    low, high = dim_with_turns(scaling.beta_fast), dim_with_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    high = high if high > low else low + 0.001  # a ramp of no width would divide by zero
    stretched_F = ((torch.arange(len(inv_freq_F), dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return inv_freq_F * (1.0 - stretched_F + stretched_F / scaling.factor)


def rotate(x_THD: torch.Tensor, cos_TF: torch.Tensor, sin_TF: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """Each pair of the first 2F dims turned by its angle, in float32; the dims after them pass through."""
    rotary_dim = 2 * cos_TF.shape[-1]
    turned_THR = x_THD[..., :rotary_dim].float()
    cos_T1F, sin_T1F = cos_TF[:, None], sin_TF[:, None]
    if interleaved:
        a_THF, b_THF = turned_THR[..., 0::2], turned_THR[..., 1::2]
    else:
        a_THF, b_THF = turned_THR.chunk(2, dim=-1)
    new_a_THF = a_THF * cos_T1F - b_THF * sin_T1F
    new_b_THF = b_THF * cos_T1F + a_THF * sin_T1F
    if interleaved:
        turned_THR = torch.stack((new_a_THF, new_b_THF), dim=-1).flatten(-2)
    else:
        turned_THR = torch.cat((new_a_THF, new_b_THF), dim=-1)
    rotated_THR = turned_THR.to(x_THD.dtype)
    if rotary_dim == x_THD.shape[-1]:
        return rotated_THR
    return torch.cat((rotated_THR, x_THD[..., rotary_dim:]), dim=-1)
