"""Four-bit experts: the numbers, and a whole gpt-oss checkpoint loaded from them."""

from __future__ import annotations

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from playhead.models.build import spec_from_config
from playhead.models.checkpoint.fill import load_decoder
from playhead.models.checkpoint.mxfp4 import dequantise_mxfp4
from playhead.models.checkpoint.sources import InMemoryTensors
from playhead.models.dense_context import DenseSequence
from tests.parity.oracle import CASES, TINY, reference, relative_error, step, their_logits


def random_packed(num_experts, num_outputs, num_inputs, seed):
    generator = torch.Generator().manual_seed(seed)
    blocks = (num_experts, num_outputs, num_inputs // 32, 16)
    packed = torch.randint(0, 256, blocks, dtype=torch.uint8, generator=generator)
    return packed, torch.randint(121, 126, blocks[:3], dtype=torch.uint8, generator=generator)


def test_every_byte_and_scale_means_what_the_reference_reads():
    blocks = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 1, 16)
    for scale in (0, 1, 100, 127, 140, 254):
        scales = torch.full((1, 16, 1), scale, dtype=torch.uint8)
        wanted = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).mT
        assert torch.equal(dequantise_mxfp4(blocks, scales, torch.float32), wanted)


def test_one_byte_by_hand():
    """0x2F: low half 15 is -6, high half 2 is 1; scale 128 doubles both."""
    values = dequantise_mxfp4(torch.full((1, 1, 16), 0x2F, dtype=torch.uint8), torch.tensor([[128]]), torch.float32)
    assert values[0, :4].tolist() == [-12.0, 2.0, -12.0, 2.0]


def test_a_quantised_checkpoint_computes_what_its_dequantised_weights_do():
    """Sizes in whole blocks of 32; the reference gets the same experts through its own dequantisation."""
    case = next(case for case in CASES if case.name == "gpt_oss")
    case = type(case)(case.name, case.config_class, {**case.options, "hidden_size": 64, "intermediate_size": 32})
    model = reference(case)
    tensors = dict(model.state_dict())
    for layer in range(TINY["num_hidden_layers"]):
        experts = f"model.layers.{layer}.mlp.experts."
        for name, outputs, inputs in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
            packed = random_packed(6, outputs, inputs, seed=layer)
            model.get_parameter(experts + name).data.copy_(convert_moe_packed_tensors(*packed, dtype=torch.float32))
            del tensors[experts + name]
            tensors[f"{experts}{name}_blocks"], tensors[f"{experts}{name}_scales"] = packed
    config = {**model.config.to_dict(), "quantization_config": {"quant_method": "mxfp4"}}
    decoder = load_decoder(
        spec_from_config(config),
        InMemoryTensors(tensors),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    prompt = list(range(3, 23))
    (found,) = step(decoder, [DenseSequence()], [prompt])
    assert relative_error(found, their_logits(model, prompt)) < 1e-4
