"""The product whose weights come through a ring, on a GPU: against float32, and the same bits whatever else happens."""

from __future__ import annotations

import pytest
import torch

from playhead.kernels.projection import project_gated
from playhead.kernels.triton.projection_tiles import RingTiles, gated_tiles
from tests.gpu.test_kernels_gpu import check, random

SHAPES = {
    "Gemma-3-1B": (13824, 1152),
    "Gemma-3-4B": (20480, 2560),
    "Llama-3.2-1B": (16384, 2048),
    "Qwen3-0.6B": (6144, 1024),
    "as many blocks as places": (6144, 896),
}
ROWS = (1, 2, 5, 8, 9, 16, 17, 31, 32, 33, 64)


def call(model, num_rows, dtype=torch.bfloat16):
    """Rows of a wider tensor and a matrix, which take the ring unless the rules say otherwise."""
    num_outputs, num_inputs = SHAPES[model]
    x = random(num_rows, num_inputs + 16, seed=num_rows, dtype=dtype)[:, :num_inputs]
    return x, 0.03 * random(num_outputs, num_inputs, seed=1, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("model", SHAPES)
def test_the_ring_agrees_with_float32(model, dtype, capsys):
    num_rings = 0
    for num_rows in ROWS:
        x, weight = call(model, num_rows, dtype)
        num_rings += isinstance(gated_tiles(x, weight, None), RingTiles)
        wanted = project_gated.reference(x.float(), weight.float(), None, "gelu_tanh")
        check(f"ring {model} {num_rows} {dtype}", project_gated(x, weight, None, "gelu_tanh"), wanted, capsys)
    assert num_rings >= 7


@pytest.mark.parametrize("num_rows", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("model", ["Gemma-3-1B", "Gemma-3-4B"])
def test_many_calls_give_the_same_bits_beside_other_work(model, num_rows):
    """Copies that come late, because another stream keeps the memory busy, change nothing."""
    x, weight = call(model, num_rows)
    first, beside = project_gated(x, weight, None, "silu"), torch.cuda.Stream()
    busy = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    for _ in range(20):
        with torch.cuda.stream(beside):
            busy.add_(1)
        assert torch.equal(project_gated(x, weight, None, "silu"), first)
    torch.cuda.synchronize()


@pytest.mark.parametrize("num_rows", [8, 16, 32, 64])
def test_equal_rows_give_equal_results_whatever_stands_beside_them(num_rows):
    x, weight = call("Llama-3.2-1B", num_rows)
    x[-1] = x[0]
    outs = []
    for factor in (1, -3):
        x[1:-1] *= factor
        out = project_gated(x, weight, None, "silu")
        outs += [out[0], out[-1]]
    assert all(torch.equal(out, outs[0]) for out in outs)
