"""Random weights of the real shapes, made where they are needed: for speed work and for tests without a checkpoint."""

from __future__ import annotations

import torch

from playhead.layers.blocks import WEIGHT_FORMATS
from playhead.layers.spec import NormKind
from playhead.models.decoder import Decoder
from playhead.models.spec import ModelSpec

# Small enough that sixty layers of residuals stay in float16, large enough that every layer shows in the logits.
STD = 0.02


def dummy_decoder(spec: ModelSpec, *, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Decoder:
    """A decoder with the same weights for the same seed, dtype and kind of device, and finite logits."""
    weights = WEIGHT_FORMATS[spec.stored_as](dtype=dtype, device=device)
    decoder = Decoder(spec, weights)
    generator = torch.Generator(device=device).manual_seed(seed)
    rms1p = spec.final_norm.kind is NormKind.RMS1P
    for name, parameter in decoder.named_parameters():
        if "norm" in name:
            parameter.fill_(0.0 if rms1p else 1.0)
        else:
            parameter.normal_(0.0, STD, generator=generator)
    weights.finish_loading(decoder)
    return decoder
