"""Weights without a checkpoint."""

from __future__ import annotations

import pytest
import torch

from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.dense_context import DenseContext, DenseSequence
from playhead.models.families import FAMILIES

CPU = torch.device("cpu")
SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "sliding_window": 8,
}


@pytest.mark.parametrize("family", [family.model_type for family in FAMILIES if family.text_key is None])
def test_dummy_weights_give_finite_logits(family):
    decoder = dummy_decoder(spec_from_config({"model_type": family, **SMALL}), dtype=torch.float32, device=CPU)
    ctx = DenseContext(decoder, [DenseSequence()], [20])
    logits = decoder.head(decoder.layers(decoder.embed(torch.arange(20)), ctx))
    assert bool(torch.isfinite(logits).all())
    assert float(logits.std()) > 0


def test_the_same_seed_gives_the_same_weights():
    spec = spec_from_config({"model_type": "llama", **SMALL})
    first, again = (dummy_decoder(spec, dtype=torch.float32, device=CPU, seed=3) for _ in range(2))
    other = dummy_decoder(spec, dtype=torch.float32, device=CPU, seed=4)
    assert torch.equal(first.embedding_VM, again.embedding_VM)
    assert not torch.equal(first.embedding_VM, other.embedding_VM)
