"""Tiles that are measured in whole steps: which are tried, and where they take the place of the rules'."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from triton.runtime.errors import OutOfResources

from bench import workload
from bench.scorecard import MODELS, Model
from bench.tile_variants import program_variants, variants, wide_cuts
from bench.tiles import (
    FEWEST,
    DecodeSteps,
    StepUs,
    capture_again,
    chosen,
    counts_splits,
    cut_as,
    measure,
    shapes_of,
    split_as,
)
from playhead.graph.runner import GraphRunner
from playhead.kernels.projection import project
from playhead.kernels.triton import decode, projection
from playhead.kernels.triton.projection_tiles import HeldTiles, RingTiles, RowTiles, StreamedTiles
from playhead.testing.tiny_worker import TINY_GEMMA3, tiny_worker
from playhead.types import Mode

KINDS = {("gate-up", 1): RingTiles, ("qkv", 1): RowTiles, ("o", 8): HeldTiles, ("down", 32): StreamedTiles}


def meta(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


@pytest.mark.parametrize("model", MODELS)
def test_maps_of_a_model_have_the_shapes_of_its_weights(model):
    shapes = shapes_of(model)
    assert shapes["o"][0] == shapes["down"][0] == shapes["qkv"][1] == shapes["gate-up"][1]
    assert shapes["gate-up"][0] == 2 * shapes["down"][1]


@pytest.mark.parametrize(("name", "num_rows"), KINDS)
def test_variants_differ_from_the_rule_and_stay_of_its_kind(name, num_rows):
    shape = shapes_of("gemma3-1b")[name]
    tiles = chosen(name, num_rows, shape)
    found = variants(tiles, shape[1])
    assert isinstance(tiles, KINDS[name, num_rows])
    assert found
    assert all(type(other) is type(tiles) for other in found)
    assert len({tiles, *found}) == 1 + len(found)


def test_rings_of_more_blocks_than_there_are_are_not_tried():
    tiles = chosen("gate-up", 8, (13824, 1152))
    assert max(other.places + other.holds for other in variants(tiles, 1152)) == 8
    assert max(other.places + other.holds for other in variants(tiles, 7 * 128)) == 7


def test_held_variants_that_leave_inputs_out_are_not_tried():
    tiles = HeldTiles(block_r=8, block_n=16, block_k=256)
    assert variants(tiles, 1024)
    assert not variants(tiles, 1025)


def test_a_product_is_cut_as_asked_and_others_are_not():
    tiles = replace(chosen("down", 32, (1152, 6912)), num_stages=2)
    with cut_as(tiles, 32, (1152, 6912)):
        assert projection.split_tiles(meta(32, 6912), meta(1152, 6912)) is tiles
        assert projection.split_tiles(meta(16, 6912), meta(1152, 6912)) not in (None, tiles)
        assert projection.split_tiles(meta(32, 1024), meta(1152, 1024)) not in (None, tiles)
    assert projection.split_tiles(meta(32, 6912), meta(1152, 6912)) not in (None, tiles)


def test_a_gated_product_is_cut_as_asked_whatever_the_rule_is():
    rings, shape = replace(chosen("gate-up", 8, (13824, 1152)), asked=16), (13824, 1152)
    streamed = StreamedTiles(block_r=8, block_n=64, block_k=128, num_stages=3)
    for tiles in (rings, streamed):
        with cut_as(tiles, 8, shape):
            assert projection.gated_tiles(meta(8, 1152), meta(*shape), None) is tiles
            assert projection.gated_tiles(meta(8, 2048), meta(16384, 2048), None) not in (None, tiles)


def test_products_that_nobody_adds_up_stay_whole():
    """Qwen3-0.6B's down of 32 rows can be either: in parts inside the model, whole behind its last layer."""
    shape = shapes_of("qwen3-0.6b")["down"]
    in_parts = replace(chosen("down", 32, shape), num_splits=3)
    whole = replace(in_parts, num_splits=1)
    x, weight = meta(32, shape[1]), meta(*shape)
    with cut_as(in_parts, 32, shape):
        assert projection.split_tiles(x, weight) is in_parts
        assert projection.tiles_for(x, weight).num_splits == 1
    with cut_as(whole, 32, shape):
        assert projection.tiles_for(x, weight) is projection.split_tiles(x, weight) is whole


def test_variants_of_streamed_tiles_give_the_same_product():
    """Interpreted, in small: whatever is held and however often the inputs are shared, all are added once."""
    rng = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 96, generator=rng), 0.1 * torch.randn(32, 96, generator=rng)
    wanted = torch.empty(3, 32)
    project.reference(wanted, x, weight, None, 1.0, False)
    tiles = StreamedTiles(block_r=4, block_n=16, block_k=16, num_stages=2, num_splits=3)
    for other in {replace(tiles, held=one.held, num_splits=one.num_splits) for one in variants(tiles, 96)}:
        parts = torch.full((other.num_splits, 3, 32), float("nan"))
        projection.launch_tiles(other, parts, x, weight, None)
        torch.testing.assert_close(parts.sum(0), wanted)


def test_splits_are_as_asked_where_the_rule_counts_them():
    """Eight requests of Gemma-3-1B; parts as small as Llama's have as many splits as there are."""
    wanted = decode.keys_per_split(8, 32, 1024)._replace(few=6), decode.keys_per_split(8, 32, 256)
    with split_as(6):
        assert (decode.keys_per_split(8, 32, 1024), decode.keys_per_split(8, 32, 256)) == wanted


def test_wide_cuts_fill_a_device_and_fit_it():
    """Qkv of Llama-3.2-1B, which the BLAS library makes at 128 rows, and down, whose inputs are shared."""
    shapes = shapes_of("llama3.2-1b")
    whole, shared = (list(wide_cuts(name, 128, shapes[name])) for name in ("qkv", "down"))
    assert chosen("qkv", 128, shapes["qkv"]) is None
    assert {tiles.num_splits for tiles in whole} == {1}
    assert {tiles.num_splits for tiles in shared} > {2, 4}
    for name, cuts in (("qkv", whole), ("down", shared)):
        for tiles in cuts:
            assert (tiles.block_r + tiles.block_n) * tiles.block_k * 2 * tiles.num_stages <= 227 * 1024
            num_programs = -(-shapes[name][0] // tiles.block_n) * -(-128 // tiles.block_r) * tiles.num_splits
            assert 79 <= num_programs <= 3 * 132


def test_a_product_of_the_blas_library_is_cut_as_asked():
    shape = shapes_of("llama3.2-1b")["qkv"]
    tiles = next(wide_cuts("qkv", 128, shape))
    with cut_as(tiles, 128, shape):
        assert projection.tiles_for(meta(128, shape[1]), meta(*shape)) is tiles
    assert projection.tiles_for(meta(128, shape[1]), meta(*shape)) is None


def test_programs_of_attention_fit_a_multiprocessor():
    """Keys and values of 64 dims in bfloat16, as Llama-3.2-1B's."""
    usual = decode.decode_tiles(64, 64, num_programs=2048)
    found = program_variants(usual, 256)
    assert usual not in found
    assert len(set(found)) == len(found) > 20
    for one in found:
        assert one.programs_per_sm * one.block_j * 256 * one.num_stages <= 228 * 1024
        assert one.programs_per_sm * one.num_warps <= 32


def test_splits_are_varied_where_the_rule_counts_them():
    found = [(model, batch) for model in MODELS for batch in (1, 8, 32) if counts_splits(model, batch)]
    wide = [("gemma3-1b", 8), ("gemma3-1b", 32), ("gemma3-4b", 1), ("gemma3-4b", 8), ("gemma3-4b", 32)]
    assert found == wide


def test_a_step_has_a_mean_and_medians_by_length():
    assert StepUs.of([1.0, 2.0, 9.0, 4.0, 5.0, 6.0, 7.0, 8.0, 3.0, 100.0]) == (14.5, (2.0, 5.0, 7.5))


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A tiny model on the tape, with few tokens: what is varied changes nothing there."""
    config = {**TINY_GEMMA3, "vocab_size": workload.ID_HIGH, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setitem(MODELS, "tiny", Model(title="tiny", folder=str(tmp_path)))
    monkeypatch.setattr(workload, "DECODE_NEW", 8)
    with DecodeSteps("tiny") as steps:
        yield steps


def test_every_figure_has_a_capture_of_its_own(tiny):
    runner = tiny.worker.decode
    captured = []
    for _ in range(2):
        tiny.us(2)
        captured.append(runner.captured[2])
    assert captured[0] is not captured[1]


def test_sizes_that_no_step_is_captured_for_are_refused():
    worker = tiny_worker(Mode.FULL)
    worker.decode.capture_bucket(2)
    with pytest.raises(ValueError, match=r"found 3; .* \[2\]"):
        capture_again(worker, 3)


def test_every_variant_has_a_line(tiny, monkeypatch, capsys):
    """Those that do not fit a device too."""
    shape = shapes_of("tiny")["qkv"]
    others = variants(chosen("qkv", 2, shape), shape[1])
    tiny.us(2)

    def refused(*_: object) -> None:
        raise OutOfResources(300_000, 232_448, "shared memory")

    for capture in (GraphRunner.capture_bucket, refused):
        monkeypatch.setattr(GraphRunner, "capture_bucket", capture)
        measure(tiny, "tiny", 2, "qkv")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 2 * len(others) > 2
    assert all(line["us"] > 0 and len(line["thirds"]) == 3 for line in lines[: len(others)])
    assert all("shared memory" in line["does_not_fit"] for line in lines[len(others) :])


def test_cuts_hold_while_a_step_is_captured(tiny, monkeypatch, capsys):
    """Wide ones and attention's programs too: a capture sees the tiles of its own line."""
    seen, capture = [], GraphRunner.capture_bucket
    small = decode.DecodeTiles(block_j=16, num_warps=1, num_stages=2)

    def look(self, size):
        shape = shapes_of("tiny")["qkv"]
        seen.append((projection.tiles_for(meta(2, shape[1]), meta(*shape)), decode.decode_tiles(64, 64)))
        return capture(self, size)

    tiny.us(2)
    monkeypatch.setattr(GraphRunner, "capture_bucket", look)
    monkeypatch.setattr(
        "bench.tiles.wide_cuts", lambda *_: [StreamedTiles(block_r=2, block_n=8, block_k=8, num_stages=2)]
    )
    monkeypatch.setattr("bench.tiles.program_variants", lambda *_: [small])
    for name in ("qkv", "programs"):
        measure(tiny, "tiny", 2, name, is_wide=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(seen)
    assert (seen[-2][0].block_n, lines[-2]["block_n"]) == (8, 8)
    assert (seen[-1][1].block_j, lines[-1]["block_j"]) == (16, 16)


def test_a_figure_needs_steps_without_prompts():
    with pytest.raises(ValueError, match="found 2 steps without prompts"):
        StepUs.of([1.0, 2.0])


def test_splits_have_a_line_each(tiny, monkeypatch, capsys):
    monkeypatch.setattr("bench.tiles.counts_splits", lambda model, batch: True)
    measure(tiny, "tiny", 2, "keys")
    assert [json.loads(line)["few"] for line in capsys.readouterr().out.splitlines()] == list(FEWEST)
