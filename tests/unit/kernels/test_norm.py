"""RMS norm kernels, interpreted, against their references."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.kernels.norm import add_rms_norm, norm_add_, rms_norm
from playhead.kernels.triton.norm import launch_add_rms_norm, launch_norm_add, launch_rms_norm

WIDTHS = st.sampled_from((1, 7, 64, 300))


def rows(num_rows: int, width: int, seed: int) -> torch.Tensor:
    """Rows of a wider matrix, as a slice of a fused projection is."""
    return torch.randn(num_rows, width + 3, generator=torch.Generator().manual_seed(seed))[:, :width]


KINDS = st.sampled_from(((False, False), (True, False), (False, True)))  # unit_offset, centred


@settings(max_examples=10)
@given(num_rows=st.integers(1, 3), width=WIDTHS, kind=KINDS, seed=st.integers(0, 2**31))
def test_rms_norm_agrees_with_reference(num_rows, width, kind, seed):
    x, weight = rows(num_rows, width, seed), rows(1, width, seed + 1)[0].contiguous()
    torch.testing.assert_close(launch_rms_norm(x, weight, 1e-6, *kind), rms_norm.reference(x, weight, 1e-6, *kind))


@settings(max_examples=10)
@given(num_rows=st.integers(1, 3), width=WIDTHS, kind=KINDS, norm_x=st.booleans(), seed=st.integers(0, 2**31))
def test_add_rms_norm_agrees_with_reference(num_rows, width, kind, norm_x, seed):
    x, residual, weights = rows(num_rows, width, seed), rows(num_rows, width, seed + 1), rows(2, width, seed + 2)
    weight, x_weight = weights[0].contiguous(), weights[1].contiguous() if norm_x else None
    expected_residual = residual.clone()
    expected = add_rms_norm.reference(x, expected_residual, weight, x_weight, 1e-6, *kind)
    found = launch_add_rms_norm(x, residual, weight, x_weight, 1e-6, *kind)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(residual, expected_residual)


@settings(max_examples=10)
@given(num_rows=st.integers(1, 3), width=WIDTHS, kind=KINDS, seed=st.integers(0, 2**31))
def test_norm_add_agrees_with_reference(num_rows, width, kind, seed):
    x, residual, weight = rows(num_rows, width, seed), rows(num_rows, width, seed + 1), rows(1, width, seed + 2)[0]
    expected = residual.clone()
    norm_add_.reference(x, expected, weight.contiguous(), 1e-6, *kind)
    launch_norm_add(x, residual, weight.contiguous(), 1e-6, *kind)
    torch.testing.assert_close(residual, expected)


@settings(max_examples=30)
@given(
    width=WIDTHS,
    kind=KINDS,
    norm_x=st.booleans(),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    seed=st.integers(0, 2**31),
)
def test_what_the_cpu_runs_agrees_with_reference(width, kind, norm_x, dtype, seed):
    x, residual = rows(3, width, seed).to(dtype), rows(3, width, seed + 1).to(dtype)
    weight, x_weight = (row.contiguous().to(dtype) for row in rows(2, width, seed + 2))
    torch.testing.assert_close(rms_norm(x, weight, 1e-6, *kind), rms_norm.reference(x, weight, 1e-6, *kind))
    expected_residual = residual.clone()
    rest = (weight, x_weight if norm_x else None, 1e-6)
    found = add_rms_norm(x, residual, *rest, *kind)
    torch.testing.assert_close(found, add_rms_norm.reference(x, expected_residual, *rest, *kind))
    torch.testing.assert_close(residual, expected_residual)
    norm_add_(x, residual, weight, 1e-6, *kind)
    norm_add_.reference(x, expected_residual, weight, 1e-6, *kind)
    torch.testing.assert_close(residual, expected_residual)


@settings(max_examples=30)
@given(num_rows=st.integers(1, 40), width=st.sampled_from((1, 7, 64, 256, 300)), seed=st.integers(0, 2**31))
def test_a_row_is_normed_to_the_same_bits_in_any_batch(num_rows, width, seed):
    x, residual, weights = rows(num_rows, width, seed), rows(num_rows, width, seed + 1), rows(2, width, seed + 2)
    weight, x_weight = weights[0].contiguous(), weights[1].contiguous()
    alone = [
        add_rms_norm(x[i : i + 1], residual[i : i + 1].clone(), weight, x_weight, 1e-6, True, False)
        for i in range(num_rows)
    ]
    assert torch.equal(add_rms_norm(x, residual, weight, x_weight, 1e-6, True, False), torch.cat(alone))


def test_a_centred_norm_is_torchs_layer_norm():
    x, weight = rows(3, 64, 0) + 2, rows(1, 64, 1)[0].contiguous()
    wanted = torch.nn.functional.layer_norm(x, (64,), weight, eps=1e-6)
    torch.testing.assert_close(rms_norm.reference(x, weight, 1e-6, False, centred=True), wanted)


def test_the_sum_is_normed_as_it_was_stored():
    """The next block adds to the rounded residual; a norm of the unrounded sum would disagree with it."""
    x, residual = torch.full((1, 4), 1 / 3).bfloat16(), torch.full((1, 4), 100.0).bfloat16()
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0]).bfloat16()
    normed = add_rms_norm.reference(x, residual, weight, None, 1e-6, False, False)
    assert torch.equal(normed, rms_norm.reference(residual, weight, 1e-6, False, False))
