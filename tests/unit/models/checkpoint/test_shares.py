"""Ranks read their own slices and nothing else, and together they have the model."""

from __future__ import annotations

import pytest
import torch

from playhead.layers.shard import Shard
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.checkpoint.fill import load_decoder
from playhead.models.checkpoint.sources import InMemoryTensors
from playhead.types import TPMode
from tests.scale.tiny_families import FAMILIES, SIZES
from tests.unit.models.tiny import random_tensors

CPU = torch.device("cpu")


class CountedTensors(InMemoryTensors):
    """Tensors that count the numbers that are read of them."""

    num_read = 0

    def read(self, name, part=None):
        tensor = super().read(name, part)
        self.num_read += tensor.numel()
        return tensor


def ranks(num_ranks, mode):
    return [Shard(rank=rank, num_ranks=num_ranks, mode=mode, is_grouped=True) for rank in range(num_ranks)]


@pytest.mark.parametrize("mode", list(TPMode))
@pytest.mark.parametrize("name", FAMILIES)
def test_a_rank_reads_its_slices_and_nothing_else(name, mode):
    config = {**SIZES, **FAMILIES[name]}
    for shard in ranks(4, mode):
        source = CountedTensors(random_tensors(config))
        decoder = load_decoder(spec_from_config(config), source, dtype=torch.float32, device=CPU, shard=shard)
        assert source.num_read == sum(parameter.numel() for parameter in decoder.parameters())


@pytest.mark.parametrize("mode", list(TPMode))
def test_two_ranks_have_the_rows_of_the_whole_between_them(mode):
    """q, k and v one after the other on each rank; the bias of a sum over ranks on one."""
    config = {**SIZES, **FAMILIES["llama"]}
    spec, tensors = spec_from_config(config), InMemoryTensors(random_tensors(config))
    whole = load_decoder(spec, tensors, dtype=torch.float32, device=CPU)
    shares = [load_decoder(spec, tensors, dtype=torch.float32, device=CPU, shard=one) for one in ranks(2, mode)]
    qkv = whole.get_parameter("blocks.0.attention.qkv.weight")
    q, k, v = qkv.split([64, 32, 32])
    for i, share in enumerate(shares):
        wanted = torch.cat([q.chunk(2)[i], k.chunk(2)[i], v.chunk(2)[i]])
        assert torch.equal(share.get_parameter("blocks.0.attention.qkv.weight"), wanted)
    axis = 0 if mode is TPMode.EXACT else 1
    down = [share.get_parameter("blocks.1.mlp.down.weight") for share in shares]
    assert torch.equal(torch.cat(down, axis), whole.get_parameter("blocks.1.mlp.down.weight"))
    with_bias = ["blocks.1.mlp.down.bias" in dict(share.named_parameters()) for share in shares]
    assert with_bias == ([True, True] if mode is TPMode.EXACT else [True, False])


@pytest.mark.parametrize("mode", list(TPMode))
def test_dummy_weights_of_ranks_are_those_of_one(mode):
    spec = spec_from_config({**SIZES, **FAMILIES["gpt_oss"]})
    whole = dummy_decoder(spec, dtype=torch.float32, device=CPU)
    shares = [dummy_decoder(spec, dtype=torch.float32, device=CPU, shard=shard) for shard in ranks(2, mode)]
    for name in ("embedding_VM", "blocks.1.mlp.gate_up_XIM", "lm_head.weight", "blocks.0.attention.sinks_H"):
        parts = [share.get_parameter(name) for share in shares]
        assert torch.equal(torch.cat(parts), whole.get_parameter(name)), name
