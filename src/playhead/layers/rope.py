"""Rotary position embedding.

Shapes: P positions, R rotary dim, F = R / 2 frequencies.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from playhead.layers.spec import FactorScaling, LinearScaling, Llama3Scaling, RopeSpec, YarnScaling


class Rope(nn.Module):
    """The angles of every position a model has, made once. All layers with the same spec share them.

    A row of `table_PR` is the F cosines of a position, then its F sines: what a kernel that turns heads reads.
    """

    def __init__(self, spec: RopeSpec, num_positions: int, *, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        factor = spec.scaling.attention_factor if isinstance(spec.scaling, YarnScaling) else 1.0
        # float32 on purpose, and kept so: in bfloat16 position 257 is position 256.
        positions_P = torch.arange(num_positions, dtype=torch.float32, device=device)
        angles_PF = positions_P[:, None] * inverse_frequencies(spec).to(device)
        self.table_PR: torch.Tensor
        self.register_buffer("table_PR", torch.cat((angles_PF.cos(), angles_PF.sin()), 1) * factor, persistent=False)


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
        case FactorScaling(factors=factors):
            return inv_freq_F / torch.tensor(factors, dtype=torch.float32)


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
    # A ramp of no width would divide by zero. One that runs backwards stays: the reference has it so.
    high = high + 0.001 if high == low else high
    stretched_F = ((torch.arange(len(inv_freq_F), dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return inv_freq_F * (1.0 - stretched_F + stretched_F / scaling.factor)
