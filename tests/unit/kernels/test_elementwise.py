"""Activation, embedding and logit cap kernels, interpreted, against their references."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from playhead.errors import ConfigError
from playhead.kernels.elementwise import ACTIVATIONS, embed, gated_activation, softcap_
from playhead.kernels.triton.activation import launch_gated_activation
from playhead.kernels.triton.embedding import launch_embed, launch_softcap


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [5, 1030])
def test_gated_activation_agrees_with_reference(activation, width):
    gate_up = 2 * torch.randn(2, 2 * width, generator=torch.Generator().manual_seed(width))
    found = launch_gated_activation(gate_up, activation, 1.702, 7.0)
    torch.testing.assert_close(found, gated_activation(gate_up, activation, 1.702, 7.0), atol=1e-5, rtol=1e-5)


def test_clamped_swiglu_is_flat_beyond_its_limit():
    far, at = torch.tensor([[50.0, 50.0]]), torch.tensor([[7.0, 7.0]])
    assert torch.equal(*(gated_activation(gate_up, "clamped_swiglu", 1.702, 7.0) for gate_up in (far, at)))


@pytest.mark.parametrize("function", [gated_activation, launch_gated_activation])
def test_an_unknown_activation_is_refused_with_the_known_ones(function):
    with pytest.raises(ConfigError, match=r"found 'relu'; wanted one of .*gelu_tanh"):
        function(torch.zeros(1, 4), "relu", 1.702, 7.0)


@pytest.mark.parametrize("scale", [1.0, 33.75])
def test_embed_agrees_with_reference(scale):
    table = torch.randn(9, 1030, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([3, 8, 0])
    for run in (embed, launch_embed):
        torch.testing.assert_close(run(ids, table, scale), F.embedding(ids, table) * scale)


def test_softcap_agrees_with_reference_and_stays_inside_the_cap():
    logits = 100 * torch.randn(2, 1030, generator=torch.Generator().manual_seed(0))
    found, expected = logits.clone(), logits.clone()
    launch_softcap(found, 30.0)
    softcap_(expected, 30.0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert found.abs().max() <= 30.0
