"""Pieces cover every parameter, and each says how ranks may share it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from playhead.models.build import family_named, spec_from_config
from playhead.models.checkpoint.fill import load_decoder
from playhead.models.checkpoint.pieces import pieces_of
from playhead.models.checkpoint.sources import InMemoryTensors
from playhead.models.families import FAMILIES
from tests.unit.models.checkpoint.test_dummy import SMALL

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


def pieces(config):
    return pieces_of(spec_from_config(config), family_named(config["model_type"]), ())


def source_of(config):
    generator = torch.Generator().manual_seed(0)
    shapes = {name: shape for piece in pieces(config) for name, shape in piece.sources}
    return InMemoryTensors({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})


def test_every_row_of_every_parameter_has_one_piece(config):
    decoder = load_decoder(spec_from_config(config), source_of(config), dtype=torch.float32, device=CPU)
    rows = Counter()
    for piece in pieces(config):
        size = decoder.get_parameter(piece.target).shape[0]
        first, count = piece.rows or (0, size)
        rows.update((piece.target, row) for row in range(first, first + count))
    assert rows == Counter(
        (name, row) for name, parameter in decoder.named_parameters() for row in range(len(parameter))
    )


def test_every_parameter_says_along_which_axis_it_may_be_split(config):
    for piece in pieces(config):
        name = ".".join(piece.target.split(".")[-2:])
        if name in ("q_norm.weight", "k_norm.weight"):  # of the whole projection, or of each head
            assert piece.split_axis == (0 if config["model_type"].startswith("olmo") else None)
        else:
            assert piece.split_axis == AXES[name], piece.target


def test_the_parts_of_two_ranks_are_the_whole(config):
    source = source_of(config)
    for piece in pieces(config):
        for name, _ in piece.sources:
            whole = source.read(name, piece.part())
            halves = [source.read(name, piece.part(rank, 2)) for rank in range(2)]
            if piece.split_axis is None:
                assert all(torch.equal(half, whole) for half in halves)
            else:
                assert halves[0].shape[piece.split_axis] * 2 == whole.shape[piece.split_axis], piece.target
                assert torch.equal(torch.cat(halves, piece.split_axis), whole)
