"""Pieces cover every parameter, and each says how ranks may share it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from playhead.errors import CheckpointError
from playhead.layers.shard import WHOLE, Shard
from playhead.models.build import family_named, spec_from_config
from playhead.models.checkpoint.fill import load_decoder
from playhead.models.checkpoint.pieces import pieces_of
from playhead.models.checkpoint.sources import InMemoryTensors
from playhead.models.families import FAMILIES
from playhead.models.load import describe_model, load_weights
from playhead.types import TPMode
from tests.unit.models.checkpoint.test_dummy import SMALL
from tests.unit.models.tiny import random_tensors, write_checkpoint

CPU = torch.device("cpu")
BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
TEXT_FAMILIES = [family.model_type for family in FAMILIES if family.text_key is None]
# By the last two names of a parameter: 0 shares outputs, heads, words or experts, 1 inputs, None copies.
AXES = {
    "embedding_VM": 0,
    "lm_head.weight": 0,
    "qkv.weight": 0,
    "qkv.bias": 0,
    "out.weight": 1,
    "out.bias": None,
    "gate_up.weight": 0,
    "gate_up.bias": 0,
    "down.weight": 1,
    "down.bias": None,
    "attention.sinks_H": 0,
    "mlp.router_XM": None,
    "mlp.router_bias_X": None,
    "mlp.gate_up_XIM": 0,
    "mlp.gate_up_bias_XI": 0,
    "mlp.down_XMI": 0,
    "mlp.down_bias_XM": 0,
    "final_norm.weight": None,
    "pre_attention_norm.weight": None,
    "post_attention_norm.weight": None,
    "pre_mlp_norm.weight": None,
    "post_mlp_norm.weight": None,
}


@pytest.fixture(params=TEXT_FAMILIES)
def config(request):
    return {"model_type": request.param, **SMALL, **BIASED}


def pieces(config, shard=WHOLE):
    return pieces_of(spec_from_config(config), family_named(config["model_type"]), (), shard)


def test_every_row_of_every_parameter_has_one_piece(config):
    decoder = load_decoder(
        spec_from_config(config), InMemoryTensors(random_tensors(config)), dtype=torch.float32, device=CPU
    )
    rows = Counter()
    for piece in pieces(config):
        size = decoder.get_parameter(piece.target).shape[0]
        first, count = piece.rows or (0, size)
        rows.update((piece.target, row) for row in range(first, first + count))
    assert rows == Counter(
        (name, row) for name, parameter in decoder.named_parameters() for row in range(len(parameter))
    )


def test_files_of_every_family_load_and_every_byte_is_counted_once(config, tmp_path):
    tensors, seen = random_tensors(config), []
    description = describe_model(str(write_checkpoint(tmp_path, config, tensors, 2)))
    decoder = load_weights(description, dtype=torch.float32, device=CPU, on_progress=seen.append)
    wanted = load_decoder(description.spec, InMemoryTensors(tensors), dtype=torch.float32, device=CPU)
    for name, parameter in wanted.named_parameters():
        assert torch.equal(decoder.get_parameter(name), parameter), name
    assert seen[-1].num_bytes == seen[-1].total_bytes == sum(4 * tensor.numel() for tensor in tensors.values())


def test_a_fused_tensor_is_the_rows_of_its_parts(tmp_path):
    config = {"model_type": "phi3", **SMALL}
    tensors = random_tensors(config)
    decoder = load_decoder(spec_from_config(config), InMemoryTensors(tensors), dtype=torch.float32, device=CPU)
    fused = tensors["model.layers.2.self_attn.qkv_proj.weight"]
    assert torch.equal(decoder.get_parameter("blocks.2.attention.qkv.weight"), fused)
    parts = [piece for piece in pieces(config) if piece.target == "blocks.2.attention.qkv.weight"]
    second = [piece.part(Shard(rank=1, num_ranks=2)) for piece in parts]
    assert [(part.start, part.stop) for part in second] == [(32, 64), (80, 96), (112, 128)]


def test_every_parameter_says_along_which_axis_it_may_be_split(config):
    for piece in pieces(config):
        name = ".".join(piece.target.split(".")[-2:])
        if name in ("q_norm.weight", "k_norm.weight"):  # of the whole projection, or of each head
            assert piece.split_axis == (0 if config["model_type"].startswith("olmo") else None)
        else:
            assert piece.split_axis == AXES[name], piece.target


@pytest.mark.parametrize("mode", list(TPMode))
def test_the_parts_of_two_ranks_are_the_whole(config, mode):
    source = InMemoryTensors(random_tensors(config))
    for piece in pieces(config, Shard(num_ranks=2, mode=mode)):
        for name, _ in piece.sources:
            whole = source.read(name, piece.part())
            halves = [source.read(name, piece.part(Shard(rank=rank, num_ranks=2, mode=mode))) for rank in range(2)]
            if piece.split_axis is None:
                assert all(torch.equal(half, whole) for half in halves)
            else:
                assert all(half.shape[piece.split_axis] for half in halves), piece.target
                assert torch.equal(torch.cat(halves, piece.split_axis), whole)


MXFP4 = {
    "model_type": "gpt_oss",
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 1,
    "head_dim": 8,
}
MXFP4 |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 40}


def four_bit_tensors(spec):
    """A checkpoint with experts in four bits, of the shapes that are asked for."""
    pieces = pieces_of(spec, family_named("gpt_oss"), ["model.layers.0.mlp.experts.gate_up_proj_blocks"])
    kinds = {True: torch.uint8, False: torch.float32}
    return {name: torch.zeros(shape, dtype=kinds[one.is_mxfp4]) for one in pieces for name, shape in one.sources}


@pytest.mark.parametrize(("hidden_size", "size", "name"), [(48, 32, "gate_up"), (32, 48, "down"), (16, 16, "gate_up")])
def test_four_bit_experts_that_are_no_whole_blocks_are_refused(hidden_size, size, name):
    spec = spec_from_config({**MXFP4, "hidden_size": hidden_size, "intermediate_size": size})
    with pytest.raises(CheckpointError, match=rf"{name}_proj_blocks: rows of \d+ numbers; wanted whole blocks of 32"):
        four_bit_tensors(spec)


@pytest.mark.parametrize(("hidden_size", "size"), [(32, 32), (64, 32), (32, 96)])
def test_four_bit_experts_of_whole_blocks_are_filled(hidden_size, size):
    spec = spec_from_config({**MXFP4, "hidden_size": hidden_size, "intermediate_size": size})
    decoder = load_decoder(spec, InMemoryTensors(four_bit_tensors(spec)), dtype=torch.float32, device=CPU)
    assert not dict(decoder.named_parameters())["blocks.0.mlp.down_XMI"].any()
