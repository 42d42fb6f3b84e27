"""The matmul in a fixed order, interpreted: right, and the same bits for a row in any step."""

from __future__ import annotations

import pytest
import torch

from playhead.kernels.ordered import matmul_in_order
from playhead.kernels.triton import ordered_matmul
from playhead.kernels.triton.ordered_matmul import (
    MatmulTiles,
    can_be_described,
    chunk_of,
    launch_matmul_in_order,
    matmul_tiles,
)

SMALL = MatmulTiles(block_m=16, block_n=16, block_k=16, num_warps=4, num_stages=2)
NUM_OUTPUTS = 37


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(x_TI, chunk=None) -> torch.Tensor:
    weight_OI = numbers(NUM_OUTPUTS, x_TI.shape[1], seed=1)
    out_TO = torch.full((len(x_TI), NUM_OUTPUTS), float("nan"))
    launch_matmul_in_order(x_TI, weight_OI, None, out_TO, 1.0, False, tiles=SMALL, chunk=chunk)
    return out_TO


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("chunk", [None, 32], ids=["one chunk", "chunks"])
@pytest.mark.parametrize(("num_rows", "num_inputs", "has_bias"), [(1, 48, True), (19, 70, False), (3, 64, True)])
def test_kernel_agrees_with_reference(num_rows, num_inputs, has_bias, chunk, adds):
    x_TI, weight_OI = numbers(num_rows, num_inputs), numbers(NUM_OUTPUTS, num_inputs, seed=1)
    bias_O = numbers(NUM_OUTPUTS, seed=2) if has_bias else None
    found = numbers(num_rows, NUM_OUTPUTS, seed=3) if adds else torch.full((num_rows, NUM_OUTPUTS), float("nan"))
    wanted = found.clone()
    matmul_in_order.reference(x_TI, weight_OI, bias_O, wanted, 0.5, adds)
    launch_matmul_in_order(x_TI, weight_OI, bias_O, found, 0.5, adds, tiles=SMALL, chunk=chunk)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_row_has_the_same_bits_alone_and_among_others():
    x_TI = numbers(40, 70)
    together = product(x_TI)
    assert torch.equal(product(x_TI[17:18]), together[17:18])
    assert torch.equal(product(x_TI.flip(0)).flip(0), together)


def test_chunks_have_the_same_bits_in_one_program_and_in_programs_of_their_own(monkeypatch):
    """Steps of few rows share a row's chunks among programs, steps of many do not."""
    x_TI = numbers(20, 70)
    apart = product(x_TI, chunk=32)
    monkeypatch.setattr(ordered_matmul, "PARTS_UP_TO", 0)
    assert torch.equal(product(x_TI, chunk=32), apart)
    assert not torch.equal(product(x_TI), apart), "chunks are another order, so the comparison says something"


def test_blocks_that_the_copy_engine_fetches_make_the_same_product(monkeypatch):
    """More rows than a step of few has: descriptors instead of addresses, also past the last row, output and input."""
    monkeypatch.setattr(ordered_matmul, "FEW_ROWS", 8)
    monkeypatch.setattr(ordered_matmul, "BY_TMA", (SMALL,))
    x_TI, weight_OI = numbers(21, 72).half(), numbers(NUM_OUTPUTS, 72, seed=1).half()
    out_TO = torch.full((21, NUM_OUTPUTS), float("nan")).half()
    launch_matmul_in_order(x_TI, weight_OI, None, out_TO, 1.0, False)
    torch.testing.assert_close(out_TO.float(), x_TI.float() @ weight_OI.float().t(), atol=2e-2, rtol=2e-2)


def test_tiles_follow_the_number_of_rows_and_outputs():
    assert matmul_tiles(1, 1152, 1)[0].block_n < matmul_tiles(1, 13824, 1)[0].block_n
    assert [matmul_tiles(rows, 13824, 1)[0].block_m for rows in (64, 128, 256)] == [64, 64, 128]
    assert matmul_tiles(256, 1152, 1)[0].block_n < matmul_tiles(256, 1152, 6)[0].block_n
    assert matmul_tiles(2048, 1152, 1)[0].block_m == 128


def test_rows_that_begin_anywhere_are_not_given_to_the_copy_engine():
    assert can_be_described(torch.empty(4, 64, dtype=torch.bfloat16))
    assert not can_be_described(torch.empty(4, 36, dtype=torch.bfloat16))
    assert not can_be_described(torch.empty(4, 64, dtype=torch.bfloat16)[:, 1:])


@pytest.mark.parametrize(
    ("num_outputs", "num_inputs", "chunk"),
    [
        (1152, 6912, 1024),
        (2048, 8192, 2048),
        (2560, 10240, 3456),
        (1152, 4096, 4096),
        (8448, 8192, 8192),
        (64, 5000, 128),
    ],
    ids=["Gemma-3-1B", "Llama-3.2-1B", "Gemma-3-4B", "a row that is not long", "enough outputs", "few outputs"],
)
def test_long_rows_are_cut_by_the_matrix_alone(num_outputs, num_inputs, chunk):
    assert chunk_of(num_outputs, num_inputs) == chunk
