"""Each norm against its formula."""

from __future__ import annotations

import pytest
import torch

from playhead.layers.norm import Norm, Stream
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


def test_a_stream_without_an_output_is_its_residual(rows):
    residual, h = Stream(residual_TM=rows).normed(None)
    assert residual is rows
    assert h is rows


@pytest.mark.parametrize(
    ("output_kind", "next_kind"),
    [(None, NormKind.RMS), (NormKind.RMS, None), (NormKind.RMS, NormKind.RMS), (NormKind.RMS1P, NormKind.RMS)],
)
def test_a_stream_adds_its_output_and_then_norms(rows, output_kind, next_kind):
    """Norms of two kinds take two ops; the result is the same."""
    weight, output = torch.linspace(-1, 2, 8), rows.flip(0) - 2
    output_norm, next_norm = (None if kind is None else norm(kind, weight) for kind in (output_kind, next_kind))
    total = rows + (output if output_norm is None else output_norm(output))
    wanted = total if next_norm is None else next_norm(total)
    stream = Stream(residual_TM=rows.clone(), output=lambda: output, output_norm=output_norm)
    residual, h = stream.normed(next_norm)
    torch.testing.assert_close(residual, total)
    torch.testing.assert_close(h, wanted)
