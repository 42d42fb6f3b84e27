"""Linear maps, and the seam behind which a checkpoint's weight format lives."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from playhead.layers.blocks import WEIGHT_FORMATS
from playhead.layers.experts import Experts
from playhead.layers.linear import PlainLinear, PlainWeights
from playhead.layers.shard import WHOLE, Shard
from playhead.layers.spec import StoredAs
from playhead.layers.vocabulary import Vocabulary
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.decoder import Decoder
from playhead.models.dense_context import DenseContext, DenseSequence
from tests.unit.models.tiny import CONFIG

CPU = torch.device("cpu")


def random_map(*, has_bias, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = PlainWeights(dtype=torch.float32, device=CPU).linear(6, 4, has_bias=has_bias, scale=scale)
    for parameter in made.parameters():
        parameter.normal_(generator=generator)
    return made, torch.randn(3, 6, generator=generator)


def product(made, x_TI):
    bias = 0 if made.bias is None else made.bias
    return made.scale * (x_TI @ made.weight.T + bias)


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_scale_multiplies_product_and_bias_in_the_one_matmul(has_bias, scale):
    made, x_TI = random_map(has_bias=has_bias, scale=scale)
    torch.testing.assert_close(made(x_TI), product(made, x_TI))
    torch.testing.assert_close(made(x_TI, torch.full((3, 4), float("nan"))), product(made, x_TI))
    torch.testing.assert_close(made.add_to(torch.ones(3, 4), x_TI), 1 + product(made, x_TI))
    recording, _ = record(TapeBackend(), lambda: made(x_TI))
    assert recording.num_nodes == 1


def test_finished_weights_are_the_same_numbers_stored_by_input_on_a_cpu():
    made, x_TI = random_map(has_bias=False)
    before, wanted = made.weight.clone(), made(x_TI)
    PlainWeights(dtype=torch.float32, device=CPU).finish_loading(made)
    assert torch.equal(made.weight, before)
    assert made.weight.t().is_contiguous()
    torch.testing.assert_close(made(x_TI), wanted)


def test_a_tied_head_is_the_embedding_after_loading_too():
    decoder = dummy_decoder(spec_from_config(CONFIG), dtype=torch.float32, device=CPU)
    assert decoder.lm_head.weight is decoder.embedding_VM
    assert decoder.embedding_VM.t().is_contiguous()
    assert "lm_head.weight" not in dict(decoder.named_parameters())


class SignedBytes(nn.Module):
    """A map whose matrix is bytes and a scale per output."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.bytes_OI = nn.Parameter(torch.empty(num_outputs, num_inputs, dtype=torch.int8), requires_grad=False)
        self.scales_O = nn.Parameter(torch.empty(num_outputs), requires_grad=False)

    def forward(self, x_TI, out_TO=None):
        return torch.mm(x_TI, (self.bytes_OI * self.scales_O[:, None]).t(), out=out_TO)

    def add_to(self, sum_TO, x_TI):
        return sum_TO.add_(self(x_TI))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteWeights:
    """A format as tomorrow's checkpoints have it: other parameters, another matmul, work left for the end of a load."""

    dtype: torch.dtype
    device: torch.device
    finished: list[nn.Module]
    shard: Shard = WHOLE

    def linear(self, num_inputs, num_outputs, *, has_bias, scale=1.0):
        return SignedBytes(num_inputs, num_outputs)

    def linear_back(self, num_inputs, num_outputs, *, num_units, has_bias, scale):
        return self.linear(num_inputs, num_outputs, has_bias=has_bias, scale=scale)

    def vocabulary(self, num_ids):
        return Vocabulary(num_ids)

    def experts(self, count):
        return Experts(count)

    def linear_over(self, weight_OI):
        return PlainLinear(weight_OI)

    def finish_loading(self, decoder):
        self.finished.extend(module for module in decoder.modules() if isinstance(module, SignedBytes))


def test_another_format_serves_every_map_of_a_decoder():
    """The decoder with bytes computes what the plain one does with the same numbers."""
    weights = ByteWeights(dtype=torch.float32, device=CPU, finished=[])
    plain = dummy_decoder(spec_from_config(CONFIG), dtype=torch.float32, device=CPU)
    stored = Decoder(plain.spec, weights)
    twins = dict(plain.named_modules())
    for name, module in stored.named_modules():
        if isinstance(module, SignedBytes):
            weight_OI = twins[name].weight
            module.scales_O.copy_(weight_OI.abs().amax(1) / 127)
            module.bytes_OI.copy_((weight_OI / module.scales_O[:, None]).round())
            weight_OI.copy_(module.bytes_OI * module.scales_O[:, None])
    stored.load_state_dict(
        {name: x for name, x in plain.state_dict().items() if name in stored.state_dict()}, strict=False
    )
    weights.finish_loading(stored)
    assert len(weights.finished) == 4 * CONFIG["num_hidden_layers"]

    def logits(decoder):
        ctx = DenseContext(decoder, [DenseSequence()], [9])
        return decoder.head(decoder.layers(decoder.embed(torch.arange(9)), ctx))

    torch.testing.assert_close(logits(stored), logits(plain))


def test_every_kind_of_storage_has_a_format():
    assert WEIGHT_FORMATS.keys() == set(StoredAs)
