"""The layers as a GPU runs them, a product fused with the sum and the norm around it: the ops' references, on a CPU."""

from __future__ import annotations

import pytest
import torch

from playhead.graph.breaks import InlineScope
from playhead.layers.linear import PlainLinear, order_sums
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from tests.unit.models.test_decoder_capture import CONFIGS, SIZES, forward, inputs_of, live_of
from tests.unit.models.test_layer_ops import HEADS, OpNames

FUSED = {"gemma3": 4, "llama": 4, "granite": 4, "gpt_oss": 1, "olmo3": 1, "cohere2": 0}
"""Sums behind products in two layers (four of them), the last one in front of the final norm. Experts are no product,
OLMo norms no sum but the last, and what stands between Cohere's layers has three readers.
"""


def decoder_of(name):
    config = CONFIGS.get(name, {"model_type": name, **SIZES, **HEADS, "sliding_window": 4, "residual_multiplier": 0.5})
    decoder = dummy_decoder(spec_from_config(config), dtype=torch.float32, device=torch.device("cpu"))
    decoder.reach(64)
    generator = torch.Generator().manual_seed(1)
    for parameter in decoder.parameters():
        parameter.normal_(0.0, 0.3, generator=generator)
    return decoder


@pytest.mark.parametrize("in_order", [False, True], ids=["any order", "in order"])
@pytest.mark.parametrize("name", FUSED)
def test_fused_products_give_the_logits_of_single_ops(name, in_order, monkeypatch):
    decoder, inputs = decoder_of(name), inputs_of(0)
    if in_order:
        order_sums(decoder)
    wanted = forward(decoder, inputs, InlineScope(live_of(decoder, inputs)))
    monkeypatch.setattr(PlainLinear, "is_fused_on", lambda self, x_TI: True)
    log = OpNames()
    with log, torch.no_grad():
        found = forward(decoder, inputs, InlineScope(live_of(decoder, inputs)))
    assert log.names.count("project_normed_in_order" if in_order else "project_normed") == FUSED[name]
    assert log.names.count("project_normed" if in_order else "project_normed_in_order") == 0
    assert not in_order or not {"project", "project_gated", "mm"} & set(log.names)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
