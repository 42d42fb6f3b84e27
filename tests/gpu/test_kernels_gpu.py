"""The small kernels in bf16 on the GPU, against their references in float32. Error norms are printed."""

from __future__ import annotations

import pytest
import torch

from playhead.kernels.activation import ACTIVATIONS, gated_activation, gated_activation_reference
from playhead.kernels.embedding import embed, embed_reference, softcap_, softcap_reference
from playhead.kernels.norm import (
    add_rms_norm,
    add_rms_norm_reference,
    norm_add_,
    norm_add_reference,
    rms_norm,
    rms_norm_reference,
)
from playhead.kernels.rope import qk_rope_write, qk_rope_write_reference
from tests.unit.attention.scenes import relative_error

ERROR_BOUND = 4e-3  # one rounding to bf16


def random(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


def in_float32(values):
    return [v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]


def check(name, found, wanted, capsys):
    error = relative_error(found, wanted)
    with capsys.disabled():
        print(f"\n{name:<44} error norm {error:.2e}", end="")
    assert error < ERROR_BOUND


@pytest.mark.parametrize("width", [640, 1152, 2560, 5376])
@pytest.mark.parametrize("num_rows", [1, 130])
@pytest.mark.parametrize("centred", [False, True])
def test_rms_norm(width, num_rows, centred, capsys):
    call = (random(num_rows, width + 64)[:, :width], random(width, seed=1), 1e-6, not centred, centred)
    check(
        f"rms_norm {num_rows} x {width} centred={centred}",
        rms_norm(*call),
        rms_norm_reference(*in_float32(call)),
        capsys,
    )


@pytest.mark.parametrize("norm_x", [False, True])
def test_add_rms_norm(norm_x, capsys):
    x, residual, weight = random(130, 1152), random(130, 1152, seed=1), random(1152, seed=2)
    call = (x, residual, weight, random(1152, seed=3) if norm_x else None, 1e-6, True)
    reference = in_float32(call)
    found, wanted = add_rms_norm(*call), add_rms_norm_reference(*reference)
    check(f"add_rms_norm norm_x={norm_x}", found, wanted, capsys)
    check(f"add_rms_norm norm_x={norm_x} residual", residual, reference[1], capsys)


def test_norm_add(capsys):
    x, residual, weight = random(130, 4096), random(130, 4096, seed=1), random(4096, seed=2)
    reference = in_float32((x, residual, weight))
    norm_add_(x, residual, weight, 1e-6, False)
    norm_add_reference(*reference, 1e-6, False)
    check("norm_add_", residual, reference[1], capsys)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_activation(activation, capsys):
    call = (random(130, 2 * 6912), activation, 1.702, 7.0)
    check(
        f"gated_activation {activation}", gated_activation(*call), gated_activation_reference(*in_float32(call)), capsys
    )


def test_embed(capsys):
    table = random(1000, 1152)
    ids = torch.arange(0, 1000, 7, device="cuda")
    check("embed", embed(ids, table, 34.0), embed_reference(ids, table.float(), 34.0), capsys)


def test_softcap(capsys):
    logits = 50 * random(4, 262144, dtype=torch.float32)
    wanted = logits.clone()
    softcap_reference(wanted, 30.0)
    softcap_(logits, 30.0)
    check("softcap", logits, wanted, capsys)


@pytest.mark.parametrize(
    ("heads", "dims", "page_size", "mapped"),
    [((4, 1), (256, 256, 128), 16, True), ((32, 8), (64, 64, 32), 1, False), ((64, 4), (192, 128, 32), 16, True)],
    ids=["gemma-1b", "llama-1b", "mimo partial"],
)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_qk_rope_write(heads, dims, page_size, mapped, interleaved, together, capsys):
    (num_heads, num_kv_heads), (k_dim, v_dim, num_pairs) = heads, dims
    num_tokens, num_pages = 200, 400 // page_size + 1
    widths = (num_heads * k_dim, num_kv_heads * k_dim, num_kv_heads * v_dim)
    q, k, v = random(num_tokens, sum(widths)).split(widths, dim=-1)
    angles = random(num_tokens, num_pairs, seed=1, dtype=torch.float32)
    locs = (torch.randperm(380, generator=torch.Generator().manual_seed(2))[:num_tokens] + page_size).int().cuda()
    mapping = torch.arange(num_pages * page_size, dtype=torch.int32, device="cuda").flip(0) if mapped else None
    caches = [
        torch.zeros(num_pages, page_size, num_kv_heads, dim, dtype=torch.bfloat16, device="cuda") for dim in dims[:2]
    ]
    call = (
        q.view(num_tokens, num_heads, k_dim),
        k.view(num_tokens, num_kv_heads, k_dim),
        v.view(num_tokens, num_kv_heads, v_dim),
        random(widths[0] if together else k_dim, seed=3),
        random(widths[1] if together else k_dim, seed=4),
        torch.cat((angles.cos(), angles.sin()), dim=1),
        torch.randperm(num_tokens, generator=torch.Generator().manual_seed(5)).int().cuda(),
        *caches,
        locs,
        mapping,
        1e-6,
        True,
        interleaved,
    )
    reference = [v.clone() if isinstance(v, torch.Tensor) else v for v in in_float32(call)]
    qk_rope_write(*call)
    qk_rope_write_reference(*reference)
    for what, position in (("q", 0), ("k", 7), ("v", 8)):
        check(f"qk_rope_write {heads} interleaved={interleaved} {what}", call[position], reference[position], capsys)
