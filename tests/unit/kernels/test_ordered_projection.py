"""Products in order of few rows, by the kernel that streams weights: interpreted, against their references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from playhead.kernels.elementwise import UNCLAMPED, gated_activation
from playhead.kernels.ordered import gate_in_order, project_normed_in_order
from playhead.kernels.triton import ordered_projection, projection_tiles
from playhead.kernels.triton.norm import launch_add
from playhead.kernels.triton.ordered_projection import launch_gate_in_order, launch_project_normed_in_order
from playhead.kernels.triton.projection import launch_tiles
from playhead.kernels.triton.projection_tiles import StreamedTiles
from playhead.testing.order_checkers import tiles_in_order

STREAMED = StreamedTiles(block_r=4, block_n=16, block_k=16, num_stages=2)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_tiles_of_any_number_of_rows_keep_the_order_of_the_matrix():
    """Nothing is multiplied out of turn, and chunks are those of `matmul_in_order`, in whole blocks."""
    assert tiles_in_order() == []


def test_long_rows_have_chunks_and_others_programs_that_take_them_whole():
    short, long = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((1536, 1152), (1152, 6912)))
    for num_rows in (1, 8, 64, 256):
        of_short, of_long = (weight.new_empty((num_rows, weight.shape[1])) for weight in (short, long))
        assert ordered_projection.tiles_in_order(of_short, short) is not None
        assert ordered_projection.tiles_of_chunks(of_short, short) is None
        assert ordered_projection.tiles_in_order(of_long, long) is None
        assert ordered_projection.tiles_of_chunks(of_long, long).num_splits == 7


def test_shares_are_the_chunks_that_the_tiles_name():
    x, weight = numbers(3, 80), numbers(22, 80, seed=1)
    parts = torch.full((3, 3, 22), float("nan"))
    launch_tiles(replace(STREAMED, num_splits=3, share=32), parts, x, weight, None, in_order=True)
    for i, part in enumerate(parts):
        inputs = slice(32 * i, 32 * i + 32)
        torch.testing.assert_close(part, x[:, inputs] @ weight[:, inputs].t())


def test_a_gate_and_its_up_are_rounded_before_they_meet():
    x, weight = numbers(3, 80), numbers(22, 80, seed=1)
    stored = (x @ weight.t()).half()
    wanted = gated_activation.reference(stored, "silu", *UNCLAMPED)
    found, unrounded = torch.empty(3, 11).half(), torch.empty(3, 11).half()
    launch_tiles(STREAMED, found, x, weight, None, activation="silu", in_order=True)
    launch_tiles(STREAMED, unrounded, x, weight, None, activation="silu")
    assert (found != wanted).sum() <= 1, "the interpreter's sums may round to the other side once"
    assert (unrounded != wanted).sum() > 5


@pytest.mark.parametrize("norm_x", [False, True])
def test_the_norm_behind_chunks_gives_the_bits_of_their_rounded_sum(norm_x):
    sums, residual, norms = numbers(7, 3, 80), numbers(3, 80, seed=1).half(), numbers(2, 80, seed=2).half()
    rest = (residual, norms[0], norms[1] if norm_x else None, 1e-6, True, False)
    whole = sums[0].clone()
    for chunk in sums[1:]:
        whole += chunk
    found, wanted, unrounded = ([torch.empty(3, 80).half() for _ in range(2)] for _ in range(3))
    launch_add(*found, sums, *rest, in_order=True)
    launch_add(*wanted, whole.half(), *rest, in_order=True)
    launch_add(*unrounded, sums, *rest)
    for a, b, c in zip(found, wanted, unrounded, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(c, b)


@pytest.mark.parametrize("most_rows", [projection_tiles.MOST_ROWS, 2], ids=["few rows", "many"])
@pytest.mark.parametrize("activation", [None, "gelu_tanh"])
def test_ops_agree_with_their_references(most_rows, activation, monkeypatch):
    """Half precision has kernels for few rows. The first product is long enough for chunks."""
    monkeypatch.setattr(projection_tiles, "MOST_ROWS", most_rows)
    num_rows = 3
    x, first, residual = (0.1 * numbers(*shape).half() for shape in ((num_rows, 4224), (32, 4224), (num_rows, 32)))
    norms, weight = 0.1 * numbers(2, 32).half(), 0.1 * numbers(48, 32, seed=1).half()
    call = (x, first, None, 1.0, residual, *norms, 1e-6, True, False, weight, None, activation)
    found, wanted = (torch.full((num_rows, 48 if activation is None else 24), float("nan")).half() for _ in range(2))
    total = launch_project_normed_in_order(found, *call)
    torch.testing.assert_close(total, project_normed_in_order.reference(wanted, *call), atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(found, wanted, atol=4e-3, rtol=4e-3)
    if activation is not None:
        gated = launch_gate_in_order(residual, weight, None, activation)
        torch.testing.assert_close(
            gated, gate_in_order.reference(residual, weight, None, activation), atol=4e-3, rtol=4e-3
        )
