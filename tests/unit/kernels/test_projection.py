"""Kernels that multiply few rows by a matrix, interpreted, against their references."""

from __future__ import annotations

import pytest
import torch

from playhead.kernels.projection import project, project_gated, project_normed
from playhead.kernels.triton.projection import launch_tiles
from playhead.kernels.triton.projection_tiles import RowsTiles, RowTiles, tiles_for

ROW = RowTiles(block_n=4, block_k=128, num_warps=4, starts_next=True)
ROWS = RowsTiles(block_r=8, block_n=16, block_k=16, parts=2, num_stages=2)


def call(num_rows, num_inputs=80, num_outputs=22, seed=0):
    """A row, a matrix and a bias whose sizes fill no tile."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, num_inputs + 16, generator=rng)[:, :num_inputs]
    weight = 0.1 * torch.randn(num_outputs, num_inputs, generator=rng)
    return x, weight, torch.randn(num_outputs, generator=rng)


def tiles_of(num_rows):
    return ROW if num_rows == 1 else ROWS


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize(("has_bias", "scale", "adds"), [(False, 1.0, False), (True, 0.5, False), (True, 0.25, True)])
def test_project_agrees_with_reference(num_rows, has_bias, scale, adds):
    x, weight, bias = call(num_rows)
    rest = (x, weight, bias if has_bias else None, scale, adds)
    found = torch.ones(num_rows, 22) if adds else torch.full((num_rows, 22), float("nan"))
    wanted = found.clone()
    launch_tiles(tiles_of(num_rows), found, *rest[:3], scale=scale, adds=adds)
    project.reference(wanted, *rest)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_project_gated_agrees_with_reference(num_rows, activation, has_bias):
    x, weight, bias = call(num_rows)
    rest = (x, weight, bias if has_bias else None)
    found = torch.full((num_rows, 11), float("nan"))
    launch_tiles(tiles_of(num_rows), found, *rest, activation=activation)
    torch.testing.assert_close(found, project_gated.reference(*rest, activation))


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
    wanted_total = project_normed.reference(wanted, x, residual, *rest, weight, bias, activation)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(total, wanted_total)
    assert torch.equal(residual, before)


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
        (17, 1536, 1152, torch.bfloat16),
        (16, 2560, 10_240, torch.bfloat16),
        (1, 262_144, 1152, torch.bfloat16),
        (1, 1536, 1153, torch.bfloat16),
        (1, 1536, 32_768, torch.bfloat16),
        (1, 1536, 1152, torch.float32),
    ],
    ids=["many rows", "many inputs", "a head", "rows that start anywhere", "more inputs than registers", "float32"],
)
def test_other_products_are_left_to_the_blas_library(num_rows, num_outputs, num_inputs, dtype):
    x, weight = meta(num_rows, num_inputs, dtype=dtype), meta(num_outputs, num_inputs, dtype=dtype)
    assert tiles_for(x, weight) is None
    assert tiles_for(meta(1, 1152), meta(1536, 1152)) is not None
