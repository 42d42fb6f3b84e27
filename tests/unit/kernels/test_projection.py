"""Kernels that multiply few rows by a matrix, interpreted, against their references.

`PLAYHEAD_KERNELS=full` has the tiles of every map of four models multiply: `make test-kernels`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product

import pytest
import torch

from bench.projections import MODELS, rule_for
from playhead.graph.shapes import bucket_sizes
from playhead.kernels.norm import add_rms_norm
from playhead.kernels.projection import project, project_gated, project_normed
from playhead.kernels.triton.norm import launch_add
from playhead.kernels.triton.projection import launch_project_normed, launch_tiles
from playhead.kernels.triton.projection_tiles import (
    FittedTiles,
    HeldTiles,
    RingTiles,
    RowTiles,
    StreamedTiles,
    gated_tiles,
    most_rows,
    num_shares,
    split_tiles,
    tiles_for,
)
from playhead.models.build import spec_from_config
from playhead.models.spec import MlpSpec
from playhead.testing.tile_room import PROGRAM_BYTES, shared_bytes
from tests.unit.kernels.public_models import PUBLIC_MODELS

ROW = RowTiles(block_n=4, block_k=128, num_warps=4, starts_early=True)
HELD = HeldTiles(block_r=8, block_n=16, block_k=32, rest=16, parts=2)
STREAMED = StreamedTiles(block_r=4, block_n=16, block_k=32, num_stages=2)
FITTED = FittedTiles(block_r=8, block_n=16, rest=8, block_k=16, num_stages=2, num_warps=4)
CASES = {
    "row": (1, ROW),
    "row with a rest": (1, replace(ROW, block_k=64, rest=32)),
    "held": (3, HELD),
    "streamed": (5, STREAMED),
    "streamed, half of it held": (5, replace(STREAMED, block_k=16, held=32)),
    "streamed, nearly all held": (5, replace(STREAMED, held=64)),
    "streamed, more held than there is": (5, replace(STREAMED, held=128)),
}
MANY = [size for size in bucket_sizes(256) if size > 32]
MAPS = ("qkv", "o", "gate-up", "down")
IS_CAMPAIGN = os.environ.get("PLAYHEAD_KERNELS") == "full"
A_FEW_PRODUCTS = [
    ("gemma-3-4b", "qkv", 8),
    ("gemma-3-4b", "gate-up", 72),
    ("qwen3-0.6b", "qkv", 48),
    ("qwen3-0.6b", "qkv", 144),
    ("qwen3-0.6b", "gate-up", 72),
    ("qwen3-0.6b", "down", 144),
]
BY_NAME = pytest.mark.parametrize(("num_rows", "tiles"), CASES.values(), ids=CASES)


def call(num_rows, num_inputs=80, num_outputs=22, seed=0):
    """A row, a matrix and a bias whose sizes fill no tile."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, num_inputs + 16, generator=rng)[:, :num_inputs]
    weight = 0.1 * torch.randn(num_outputs, num_inputs, generator=rng)
    return x, weight, torch.randn(num_outputs, generator=rng)


@BY_NAME
@pytest.mark.parametrize(("has_bias", "scale", "adds"), [(False, 1.0, False), (True, 0.5, False), (True, 0.25, True)])
def test_project_agrees_with_reference(num_rows, tiles, has_bias, scale, adds):
    x, weight, bias = call(num_rows)
    rest = (x, weight, bias if has_bias else None, scale, adds)
    found = torch.ones(num_rows, 22) if adds else torch.full((num_rows, 22), float("nan"))
    wanted = found.clone()
    launch_tiles(tiles, found, *rest[:3], scale=scale, adds=adds)
    project.reference(wanted, *rest)
    torch.testing.assert_close(found, wanted)


@BY_NAME
@pytest.mark.parametrize(("activation", "has_bias"), [("silu", False), ("gelu_tanh", True)])
def test_project_gated_agrees_with_reference(num_rows, tiles, activation, has_bias):
    x, weight, bias = call(num_rows)
    rest = (x, weight, bias if has_bias else None)
    found = torch.full((num_rows, 11), float("nan"))
    launch_tiles(tiles, found, *rest, activation=activation)
    torch.testing.assert_close(found, project_gated.reference(*rest, activation))


@pytest.mark.parametrize(
    "tiles",
    [
        replace(HELD, block_k=16, rest=0, num_splits=3),
        replace(STREAMED, num_splits=2),
        replace(STREAMED, num_splits=5),
        replace(STREAMED, block_k=16, num_splits=2, held=32),
        replace(STREAMED, block_k=16, num_splits=2, held=8),
        replace(STREAMED, num_splits=5, held=64),
    ],
    ids=[
        "held",
        "streamed",
        "more splits than blocks",
        "a share is held",
        "half a block is held",
        "shares shorter than what is held",
    ],
)
def test_parts_of_a_product_add_up_to_it(tiles):
    x, weight, _ = call(3)
    parts, wanted = torch.full((tiles.num_splits, 3, 22), float("nan")), torch.empty(3, 22)
    launch_tiles(tiles, parts, x, weight, None)
    project.reference(wanted, x, weight, None, 1.0, False)
    torch.testing.assert_close(parts.sum(0), wanted)


@pytest.mark.parametrize(
    "tiles", [replace(HELD, num_splits=3), replace(STREAMED, num_splits=3)], ids=["held", "streamed"]
)
def test_parts_are_not_written_behind_the_room_there_is(tiles):
    x, weight, _ = call(3)
    for shape in ((3, 22), (2, 3, 22)):
        with pytest.raises(AssertionError, match="wanted it for 3"):
            launch_tiles(tiles, torch.empty(shape), x, weight, None)
    with pytest.raises(AssertionError, match="wanted it for 1"):
        launch_tiles(replace(tiles, num_splits=1), torch.empty(3, 3, 22), x, weight, None)


@pytest.mark.parametrize(("num_rows", "num_outputs"), [(1, 48), (5, 44), (8, 30), (3, 100)])
def test_fitted_programs_gate_all_rows_and_outputs(num_rows, num_outputs):
    """24 gates and ups a program: two whole programs, a part of the rest, less than one, and five."""
    x, weight, _ = call(num_rows, num_outputs=num_outputs)
    found = torch.full((num_rows, num_outputs // 2), float("nan"))
    launch_tiles(FITTED, found, x, weight, None, activation="gelu_tanh")
    torch.testing.assert_close(found, project_gated.reference(x, weight, None, "gelu_tanh"))


def test_fitted_programs_gate_and_no_more():
    x, weight, bias = call(3, num_outputs=48)
    for one, activation in ((bias, "silu"), (None, None)):
        with pytest.raises(AssertionError, match="they gate, and no more"):
            launch_tiles(FITTED, torch.empty(3, 24), x, weight, one, activation=activation)
    with pytest.raises(AssertionError, match="found 72 inputs; wanted whole blocks of 16"):
        launch_tiles(FITTED, torch.empty(3, 24), x[:, :72], weight[:, :72], None, activation="silu")


def test_a_map_that_three_programs_an_sm_would_share_is_fitted_to_one_each():
    """Gate-up of Gemma-3-4B, at 65 to 128 rows; Llama-3.2-1B's is 128 programs of 128 as it is."""
    x, weight, bias = meta(72, 2560), meta(20_480, 2560), meta(20_480)
    kinds = [type(gated_tiles(meta(num_rows, 2560), weight, None)) for num_rows in (64, 72, 128, 144)]
    assert kinds == [StreamedTiles, FittedTiles, FittedTiles, type(None)]
    assert isinstance(gated_tiles(x, weight, bias), StreamedTiles)
    assert isinstance(gated_tiles(meta(72, 2048), meta(16_384, 2048), None), StreamedTiles)
    assert isinstance(gated_tiles(meta(72, 2568)[:, 8:], weight, None), FittedTiles)  # rows may start anywhere


@pytest.mark.parametrize(
    "tiles", [ROW, HELD, FITTED, RingTiles(block_r=8, places=2, row_places=2, asked=16, holds=False)]
)
def test_rows_that_no_program_would_take_are_refused(tiles):
    x, weight, _ = call(most_rows(tiles) + 1)
    with pytest.raises(AssertionError, match="rows; wanted at most"):
        launch_tiles(tiles, torch.empty(len(x), 22), x, weight, None)


@pytest.mark.parametrize("kind", [(False, False), (True, False), (False, True)], ids=["rms", "rms1p", "layernorm"])
@pytest.mark.parametrize(("norm_x", "activation"), [(False, None), (True, None), (True, "silu")])
def test_a_product_of_a_normed_sum_agrees_with_reference(kind, norm_x, activation):
    x, weight, bias = call(1)
    rng = torch.Generator().manual_seed(1)
    residual, norm, x_norm = (torch.randn(shape, generator=rng) for shape in ((1, 80), (80,), (80,)))
    before = residual.clone()
    found, wanted = (torch.full((1, 22 if activation is None else 11), float("nan")) for _ in range(2))
    total = torch.full((1, 80), float("nan"))
    rest = (norm, x_norm if norm_x else None, 1e-6, *kind)
    launch_tiles(ROW, found, x, weight, bias, activation=activation, total_TI=total, norm=(residual, *rest))
    call_of_op = (x, None, None, 1.0, residual, *rest, weight, bias, activation, 0)
    wanted_total = project_normed.reference(wanted, *call_of_op)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(total, wanted_total)
    found.fill_(float("nan"))
    torch.testing.assert_close(launch_project_normed(found, *call_of_op), wanted_total)
    torch.testing.assert_close(found, wanted)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_without_a_second_matrix_the_normed_sum_itself_is_written(num_rows):
    x, first, _ = call(num_rows)
    rng = torch.Generator().manual_seed(1)
    residual, norm, x_norm = (torch.randn(shape, generator=rng) for shape in ((num_rows, 22), (22,), (22,)))
    found, wanted = torch.full((num_rows, 22), float("nan")), torch.full((num_rows, 22), float("nan"))
    call_of_op = (x, first, None, 1.0, residual, norm, x_norm, 1e-6, True, False, None, None, None, 0)
    torch.testing.assert_close(
        launch_project_normed(found, *call_of_op), project_normed.reference(wanted, *call_of_op), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_long_shares_of_few_rows_have_more_on_their_way():
    """Down of Llama-3.2-1B and of Gemma-3-4B, eight rows. Shares of Gemma-3-1B have fewer than eight blocks."""
    found = {}
    for num_rows, num_outputs, num_inputs in ((8, 2048, 8192), (8, 2560, 10240), (8, 1152, 6912), (32, 2048, 8192)):
        tiles = split_tiles(meta(num_rows, num_inputs), meta(num_outputs, num_inputs))
        found[num_rows, num_outputs] = tiles.num_stages
    assert found == {(8, 2048): 6, (8, 2560): 6, (8, 1152): 4, (32, 2048): 4}


@pytest.mark.parametrize("num_parts", [1, 2, 7])
@pytest.mark.parametrize("norm_x", [False, True])
def test_the_norm_behind_a_product_adds_up_its_parts(num_parts, norm_x):
    rng = torch.Generator().manual_seed(num_parts)
    parts, residual, norms = (torch.randn(shape, generator=rng) for shape in ((num_parts, 3, 80), (3, 80), (2, 80)))
    rest = (norms[0], norms[1] if norm_x else None, 1e-6, True, False)
    wanted_total = residual.clone()
    wanted = add_rms_norm.reference(parts.sum(0), wanted_total, *rest)
    total, found = (torch.full((3, 80), float("nan")) for _ in range(2))
    launch_add(total, found, parts, residual, *rest)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(total, wanted_total)


def test_what_the_cpu_runs_agrees_with_reference():
    x, weight, bias = call(3)
    found, wanted = torch.ones(3, 22), torch.ones(3, 22)
    project(found, x, weight, bias, 0.5, True)
    project.reference(wanted, x, weight, bias, 0.5, True)
    assert torch.equal(found, wanted)
    assert torch.equal(project_gated(x, weight, bias, "silu"), project_gated.reference(x, weight, bias, "silu"))


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "num_inputs", "dtype"),
    [
        (257, 1536, 1152, torch.bfloat16),
        (192, 16_384, 2048, torch.bfloat16),
        (256, 20_480, 2560, torch.bfloat16),
        (33, 3072, 2048, torch.bfloat16),
        (129, 4096, 2560, torch.bfloat16),
        (8, 2560, 10_240, torch.bfloat16),
        (1, 262_144, 1152, torch.bfloat16),
        (1, 1536, 1153, torch.bfloat16),
        (1, 1536, 32_768, torch.bfloat16),
        (1, 1536, 1152, torch.float32),
    ],
    ids=[
        "very many rows",
        "many rows of a large map, but not nearly 256",
        "256 rows of a larger map",
        "queries of long rows",
        "queries of many long rows",
        "many inputs",
        "a head",
        "rows that start anywhere",
        "more inputs than registers",
        "float32",
    ],
)
def test_other_products_are_left_to_the_blas_library(num_rows, num_outputs, num_inputs, dtype):
    x, weight = meta(num_rows, num_inputs, dtype=dtype), meta(num_outputs, num_inputs, dtype=dtype)
    assert tiles_for(x, weight) is None
    assert tiles_for(meta(1, 1152), meta(1536, 1152)) is not None


@pytest.mark.parametrize(
    ("num_outputs", "num_inputs"), [(1152, 1024), (1152, 6912), (2560, 10_240), (1024, 3072), (32, 4096)]
)
@pytest.mark.parametrize("num_rows", [2, 8, 9, 32, 33, 128, 129, 256])
def test_programs_that_share_inputs_cover_them_all(num_rows, num_outputs, num_inputs):
    tiles = split_tiles(meta(num_rows, num_inputs), meta(num_outputs, num_inputs))
    if tiles is None:
        assert num_rows > 128  # which the BLAS library multiplies by large maps
        assert num_outputs > 1536
    elif isinstance(tiles, HeldTiles):
        assert tiles.num_splits * tiles.parts * tiles.block_k >= num_inputs
    else:
        assert 1 < tiles.num_splits * tiles.block_k <= num_inputs  # each has a block at least


@pytest.mark.parametrize("model", PUBLIC_MODELS)
def test_every_program_of_a_public_models_products_fits_a_multiprocessor(model):
    """Of all sizes that steps are captured for, on one GPU and on each of several."""
    spec = spec_from_config(PUBLIC_MODELS[model])
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    for num_ranks in (1, 2, 4, 8):
        queries = attention.num_heads * attention.v_head_dim // num_ranks
        shapes = {"qkv": (sum(attention.qkv_sizes) // num_ranks, spec.hidden_size), "o": (spec.hidden_size, queries)}
        if isinstance(mlp, MlpSpec):
            shapes["gate-up"] = 2 * mlp.size // num_ranks, spec.hidden_size
            shapes["down"] = spec.hidden_size, mlp.size // num_ranks
        for name, (num_outputs, num_inputs) in shapes.items():
            for num_rows in bucket_sizes(256):
                tiles = rule_for(name, meta(num_rows, num_inputs), meta(num_outputs, num_inputs))
                if isinstance(tiles, HeldTiles | StreamedTiles | FittedTiles):
                    assert shared_bytes(tiles) <= PROGRAM_BYTES, (num_ranks, name, num_rows, tiles)


def test_projections_of_short_rows_are_ours_at_all_sizes():
    """Qwen3-0.6B's queries, keys and values: 1,024 inputs. Llama-3.2-1B's have 2,048."""
    ours = {
        num_inputs: [tiles_for(meta(num_rows, num_inputs), meta(4096, num_inputs)) is not None for num_rows in MANY]
        for num_inputs in (1024, 2048)
    }
    assert ours == {1024: [True] * len(MANY), 2048: [False] * len(MANY)}


@pytest.mark.parametrize(
    ("num_outputs", "num_inputs", "block_n"),
    [(1536, 1152, 16), (4096, 2560, 32), (3072, 2048, 16), (4096, 1024, 16), (4608, 3584, 16)],
    ids=["gemma-3-1b", "gemma-3-4b", "llama-3.2-1b", "qwen3-0.6b", "qwen2.5-7b"],
)
def test_programs_that_hold_many_inputs_all_run_at_once_if_they_fit(num_outputs, num_inputs, block_n):
    tiles = tiles_for(meta(8, num_inputs), meta(num_outputs, num_inputs))
    assert (type(tiles), tiles.block_n) == (HeldTiles, block_n)


@pytest.mark.parametrize("num_rows", [72, 128])
def test_a_wide_map_of_few_programs_is_cut_into_more(num_rows):
    """Gate-up of Qwen3-0.6B: 96 programs, where 132 fit. Those of Gemma-3-1B would not all run at once."""
    cuts = {
        num_outputs: tiles_for(meta(num_rows, 1024), meta(num_outputs, 1024)).block_n for num_outputs in (6144, 13_824)
    }
    assert cuts == {6144: 64, 13_824: 128}


@pytest.mark.parametrize("num_rows", [144, 256])
def test_many_rows_share_inputs_by_one_wave_of_programs(num_rows):
    """o and down of Qwen3-0.6B and of Gemma-3-1B: 4 times 16 and 18 tiles of outputs."""
    found = {}
    for num_outputs, num_inputs in ((1024, 2048), (1024, 3072), (1152, 1024)):
        tiles = split_tiles(meta(num_rows, num_inputs), meta(num_outputs, num_inputs))
        found[num_outputs, num_inputs] = (tiles.block_r, tiles.num_splits)
    assert found == {(1024, 2048): (64, 2), (1024, 3072): (64, 2), (1152, 1024): (128, 4)}


@pytest.mark.parametrize(
    ("model", "name", "num_rows"), list(product(MODELS, MAPS, (1, 8, 16, *MANY))) if IS_CAMPAIGN else A_FEW_PRODUCTS
)
def test_tiles_of_a_model_multiply_all_its_rows_and_inputs(model, name, num_rows):
    """A few of the outputs, interpreted."""
    shape = MODELS[model].shapes[name]
    tiles = rule_for(name, meta(num_rows, shape[1]), meta(*shape))
    if tiles is None or isinstance(tiles, RingTiles):
        pytest.skip("the BLAS library's, or of a ring, which Triton's interpreter does not know")
    x, weight, _ = call(num_rows, shape[1], 2 * tiles.block_n - (8 if tiles.block_n > 8 else 0))
    activation = "silu" if name == "gate-up" else None
    wanted = x @ weight.t()
    if activation:
        gate, up = wanted.chunk(2, -1)
        wanted = torch.nn.functional.silu(gate) * up
    num_parts = num_shares(tiles)
    out = torch.full((num_parts, *wanted.shape), float("nan"))
    launch_tiles(tiles, out if num_parts > 1 else out[0], x, weight, None, activation=activation)
    torch.testing.assert_close(out.sum(0), wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("num_inputs", [16, 1024, 1152, 1296, 2560, 3072, 6912, 10_240, 16_384])
def test_a_program_of_one_row_has_all_inputs_and_few_empty_lanes(num_inputs):
    tiles = tiles_for(meta(1, num_inputs), meta(1536, num_inputs))
    num_lanes = tiles.block_k + tiles.rest
    assert num_inputs <= num_lanes < max(2 * num_inputs, 1025)
    assert tiles.rest == 0 or num_lanes <= 1.25 * num_inputs


@pytest.mark.parametrize("num_inputs", [16, 512, 1024, 1152, 1536, 2048, 2560, 3072, 4080])
def test_a_program_that_holds_its_weights_holds_all_of_them(num_inputs):
    tiles = tiles_for(meta(8, num_inputs), meta(1536, num_inputs))
    assert tiles.parts * (tiles.block_k + tiles.rest) >= num_inputs
    assert tiles.num_splits == 1
