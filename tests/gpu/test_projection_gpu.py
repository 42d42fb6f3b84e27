"""Products of few rows on the GPU, against float64, at the shapes of published models. Error norms are printed."""

from __future__ import annotations

import pytest
import torch

from playhead.kernels.projection import project, project_gated, project_normed
from playhead.kernels.triton.projection import launch_tiles
from playhead.kernels.triton.projection_tiles import split_tiles
from tests.gpu.test_kernels_gpu import check, random

SHAPES = [
    (1536, 1152),
    (1152, 1024),
    (13824, 1152),
    (1152, 6912),
    (6144, 1024),
    (2048, 2048),
    (1024, 2048),
    (2048, 8192),
    (20480, 2560),
    (2560, 10240),
    (96, 512),
]
ROWS = [1, 2, 3, 8, 9, 16, 17, 32, 50, 64, 100, 128, 129, 200, 256, 257]


@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_project(num_outputs, num_inputs, capsys):
    weight = random(num_outputs, num_inputs)
    for num_rows in ROWS:
        x = random(num_rows, num_inputs + 16, seed=num_rows)[:, :num_inputs]
        out = torch.full((num_rows, num_outputs), float("nan"), dtype=x.dtype, device="cuda")
        wanted = x.double() @ weight.double().t()
        project(out, x, weight, None, 1.0, False)
        check(f"project {num_rows} x {num_inputs} -> {num_outputs}", out, wanted, capsys)
        tiles = split_tiles(x, weight)
        if tiles is not None and tiles.num_splits > 1:
            parts = torch.full((tiles.num_splits, num_rows, num_outputs), float("nan"), device="cuda")
            launch_tiles(tiles, parts, x, weight, None)
            check(f"parts {num_rows} x {num_inputs} -> {num_outputs}", parts.double().sum(0), wanted, capsys)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("num_rows", [1, 5, 40])
def test_a_bias_and_a_scale_are_applied_and_the_product_is_added(num_rows, dtype, capsys):
    x, weight, bias = (
        random(*shape, seed=i, dtype=dtype) for i, shape in enumerate(((num_rows, 1152), (96, 1152), (96,)))
    )
    for bias_or_none, scale, adds in ((bias, 1.0, False), (None, 0.5, False), (bias, 0.25, True), (None, 1.0, True)):
        out = torch.full((num_rows, 96), 2.0 if adds else float("nan"), dtype=dtype, device="cuda")
        wanted = out.double().nan_to_num()
        project.reference(wanted, x, weight, bias_or_none, scale, adds)
        project(out, x, weight, bias_or_none, scale, adds)
        check(f"project {dtype} {scale=} {adds=}", out, wanted, capsys)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("num_rows", [1, 2, 8, 16, 40, 72, 128, 200, 256])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(13824, 1152), (16384, 2048), (20480, 2560)])
def test_project_gated(num_outputs, num_inputs, num_rows, activation, capsys):
    x, weight = random(num_rows, num_inputs), 0.03 * random(num_outputs, num_inputs, seed=1)
    bias = random(num_outputs, seed=2)
    for bias_or_none in (None, bias):
        wanted = project_gated.reference(x.float(), weight.float(), bias_or_none, activation)
        check(f"gated {num_rows} {activation}", project_gated(x, weight, bias_or_none, activation), wanted, capsys)


@pytest.mark.parametrize("num_rows", [2, 8, 16, 32, 100, 128, 200, 256])
def test_equal_rows_give_equal_results_whatever_stands_beside_them(num_rows):
    shapes = ((1536, 1152), (13824, 1152), (16384, 2048))  # which kernels of ours multiply
    for matrix in (random(*shape, seed=i) for i, shape in enumerate(shapes)):
        x = random(num_rows, matrix.shape[1], seed=2)
        x[-1] = x[0]
        outs = []
        for other in (x, torch.where(torch.arange(num_rows, device="cuda")[:, None] % (num_rows - 1) == 0, x, -3 * x)):
            out = torch.empty(num_rows, matrix.shape[0], dtype=x.dtype, device="cuda")
            project(out, other.contiguous(), matrix, None, 1.0, False)
            outs += [out[0], out[-1]]
        assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize("num_rows", [2, 8, 16, 32, 100, 128, 200, 256])
def test_equal_rows_give_equal_sums_whatever_stands_beside_them(num_rows):
    """Of a product that is made in parts, too."""
    down, qkv, norm = 0.03 * random(1152, 6912), 0.03 * random(1536, 1152, seed=1), random(1152, seed=2)
    x, residual = random(num_rows, 6912, seed=3), random(num_rows, 1152, seed=4)
    x[-1], residual[-1] = x[0], residual[0]
    outs = []
    for factor in (1, -3):
        x[1:-1] *= factor
        out = torch.empty(num_rows, 1536, dtype=x.dtype, device="cuda")
        total = project_normed(out, x, down, None, 1.0, residual, norm, norm, 1e-6, True, False, qkv, None, None, 0)
        outs += [torch.cat((row[0], sum_[0])) for row, sum_ in ((out, total), (out.flip(0), total.flip(0)))]
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize("num_rows", [1, 2, 8, 16, 32, 100, 128, 200])
@pytest.mark.parametrize(
    ("num_inputs", "norm_x", "activation"),
    [(1024, False, None), (6912, True, None), (1024, False, "silu"), (1024, True, "gelu_tanh")],
)
def test_project_normed(num_rows, num_inputs, norm_x, activation, capsys):
    x, residual = random(num_rows, num_inputs), random(num_rows, 1152, seed=1)
    first = 0.03 * random(1152, num_inputs, seed=5)
    norm, x_norm = random(1152, seed=2), random(1152, seed=3) if norm_x else None
    weight = 0.03 * random(3072, 1152, seed=4)
    out = torch.full((num_rows, 3072 if activation is None else 1536), float("nan"), dtype=x.dtype, device="cuda")
    wanted = out.float()
    before = residual.clone()
    tensors = (x, first, None, 1.0, residual, norm, x_norm, 1e-6, True, False, weight, None, activation, 0)
    total = project_normed(out, *tensors)
    wide = [one.float() if isinstance(one, torch.Tensor) else one for one in tensors]
    wanted_total = project_normed.reference(wanted, *wide)
    check(f"normed {num_rows} {norm_x=} {activation}", out, wanted, capsys, bound=8e-3)  # the sum is rounded as well
    check(f"normed {num_rows} {norm_x=} sum", total, wanted_total, capsys)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("num_rows", [1, 2, 8, 32, 128, 256, 300])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1152, 6912), (2048, 8192), (2560, 10240)])
def test_the_last_product_and_the_norm_behind_it(num_rows, num_outputs, num_inputs, capsys):
    """Without a second product: behind the last layer."""
    x, residual = random(num_rows, num_inputs), random(num_rows, num_outputs, seed=1)
    first, norm = 0.03 * random(num_outputs, num_inputs, seed=5), random(num_outputs, seed=2)
    out = torch.full((num_rows, num_outputs), float("nan"), dtype=x.dtype, device="cuda")
    tensors = (x, first, None, 1.0, residual, norm, None, 1e-6, True, False, None, None, None, 0)
    total, wanted = project_normed(out, *tensors), out.float()
    wanted_total = project_normed.reference(wanted, *(t.float() if torch.is_tensor(t) else t for t in tensors))
    check(f"last {num_rows} x {num_inputs}", out, wanted, capsys, bound=8e-3)
    check(f"last {num_rows} x {num_inputs} sum", total, wanted_total, capsys)


def test_dependent_launches_in_a_graph_give_what_launches_one_by_one_give():
    """Every kernel of the chain reads what the kernel before it wrote; one that does not wait reads old numbers."""
    weights = [0.03 * random(1152, 1152, seed=i) for i in range(24)]
    norm = random(1152)
    for num_rows in (1, 8):
        x, residual = random(num_rows, 1152, seed=30), random(num_rows, 1152, seed=31)
        room = torch.empty_like(x)

        def chain(wait, x=x, residual=residual, room=room):
            h, total = x, residual
            for weight in weights:
                out = torch.empty_like(h)
                total = project_normed(
                    out, h, weight, None, 1.0, total, norm, norm, 1e-6, True, False, weight, None, None, 0
                )
                wait()
                h = torch.empty_like(h)
                project(h, out, weight, None, 1.0, False)
                wait()
            room.copy_(h)

        chain(torch.cuda.synchronize)
        wanted = room.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain(lambda: None)
        for _ in range(50):
            room.fill_(float("nan"))
            graph.replay()
            assert torch.equal(room, wanted)
