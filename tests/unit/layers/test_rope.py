"""Rotations turn pairs by the angle of their position."""

from __future__ import annotations

import math

import pytest
import torch

from playhead.kernels.rope import turned_heads
from playhead.layers.rope import Rope, inverse_frequencies
from playhead.layers.spec import LinearScaling, RopeSpec, YarnScaling

CPU = torch.device("cpu")


def rotate(x_THD, spec, positions):
    table_PR = Rope(spec, 300, device=CPU).table_PR
    return turned_heads(x_THD, None, table_PR, torch.tensor(positions), 0.0, False, spec.interleaved)


@pytest.mark.parametrize(("interleaved", "pair"), [(False, (0, 2)), (True, (0, 1))])
def test_the_first_pair_turns_one_radian_per_position(interleaved, pair):
    x_THD = torch.zeros(1, 1, 4)
    x_THD[..., pair[0]] = 1.0
    spec = RopeSpec(theta=10_000.0, rotary_dim=4, interleaved=interleaved)
    turned = rotate(x_THD, spec, [3])[0, 0]
    assert turned[pair[0]] == pytest.approx(math.cos(3.0))
    assert turned[pair[1]] == pytest.approx(math.sin(3.0))


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_depend_on_distance_alone(interleaved):
    spec = RopeSpec(theta=100.0, rotary_dim=8, interleaved=interleaved)
    q, k = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(0))

    def score(q_position, k_position):
        turned_q = rotate(q, spec, [q_position])
        turned_k = rotate(k, spec, [k_position])
        return float((turned_q * turned_k).sum())

    assert score(17, 5) == pytest.approx(score(112, 100), rel=1e-3)


def test_dims_after_the_rotary_ones_pass_through():
    x_THD = torch.randn(2, 3, 8)
    turned = rotate(x_THD, RopeSpec(theta=10.0, rotary_dim=4), [1, 9])
    assert torch.equal(turned[..., 4:], x_THD[..., 4:])
    assert not torch.equal(turned[..., :4], x_THD[..., :4])


def test_linear_scaling_makes_positions_denser():
    plain, scaled = (
        RopeSpec(theta=1e4, rotary_dim=8),
        RopeSpec(theta=1e4, rotary_dim=8, scaling=LinearScaling(factor=4.0)),
    )
    assert torch.allclose(inverse_frequencies(plain), 4 * inverse_frequencies(scaled))


def test_a_yarn_ramp_of_no_width_is_finite():
    yarn = YarnScaling(
        factor=2.0, original_context=64, attention_factor=1.0, beta_fast=1.0, beta_slow=1.0, truncate=False
    )
    assert bool(torch.isfinite(inverse_frequencies(RopeSpec(theta=1e4, rotary_dim=8, scaling=yarn))).all())


def test_positions_keep_their_precision_in_half_floats():
    """257 and 256 are one number in bfloat16; their rotations must not be."""
    x_THD = torch.ones(2, 1, 4, dtype=torch.bfloat16)
    turned = rotate(x_THD, RopeSpec(theta=1e4, rotary_dim=4), [256, 257])
    assert turned.dtype == torch.bfloat16
    assert not torch.equal(turned[0], turned[1])
