"""Each norm against its formula."""

from __future__ import annotations

import pytest
import torch

from playhead.layers.norm import Norm
from playhead.layers.spec import NormKind, NormSpec

EPS = 1e-3


def norm(kind, weight, dtype=torch.float32):
    made = Norm(NormSpec(kind=kind, eps=EPS), len(weight), dtype=dtype, device=torch.device("cpu"))
    made.weight.copy_(weight)
    return made


@pytest.fixture
def rows():
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(0)) * 4 + 1


def test_rms_divides_by_the_root_mean_square(rows):
    weight = torch.linspace(-1, 2, 8)
    wanted = rows / (rows.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
    torch.testing.assert_close(norm(NormKind.RMS, weight)(rows), wanted)


def test_rms1p_with_a_weight_of_zero_is_plain_rms(rows):
    torch.testing.assert_close(norm(NormKind.RMS1P, torch.zeros(8))(rows), norm(NormKind.RMS, torch.ones(8))(rows))


def test_layernorm_is_torchs_without_a_bias(rows):
    weight = torch.linspace(-1, 2, 8)
    wanted = torch.nn.functional.layer_norm(rows, (8,), weight, eps=EPS)
    torch.testing.assert_close(norm(NormKind.LAYERNORM, weight)(rows), wanted)


def test_half_floats_are_normalised_in_float32():
    """The square of 300 is beyond float16."""
    x_NM = torch.full((1, 8), 300.0, dtype=torch.float16)
    made = norm(NormKind.RMS, torch.ones(8), dtype=torch.float16)(x_NM)
    assert made.dtype == torch.float16
    assert made[0, 0] == pytest.approx(1.0, abs=1e-3)
