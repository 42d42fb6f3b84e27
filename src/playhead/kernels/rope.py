"""What happens to queries, keys and values between their projection and attention, in one pass.

Norm of q and k (or none), rotary embedding (or none), and the write of k and v into paged memory.

Shapes: T tokens, X = all heads of q, k and v, H query heads, K kv heads, D head dim of q and k, E head dim of v, W = D
or all heads' dims together, P positions, F rotated pairs (2F <= D), R = 2F, N pages of the layer's pool, S locations
per page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from playhead.kernels.norm import normalised
from playhead.kernels.op import op


def split_heads(qkv_TX: Tensor, num_kv_heads: int, k_dim: int, v_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """q_THD, k_TKD and v_TKE: views of the packed projection.

    One call of torch for each: a good part of what capturing a layer takes are such calls.
    """
    (num_tokens, width), (stride, _), start = qkv_TX.shape, qkv_TX.stride(), qkv_TX.storage_offset()
    k_start = width - num_kv_heads * (k_dim + v_dim)
    v_start = k_start + num_kv_heads * k_dim
    return (
        qkv_TX.as_strided((num_tokens, k_start // k_dim, k_dim), (stride, k_dim, 1), start),
        qkv_TX.as_strided((num_tokens, num_kv_heads, k_dim), (stride, k_dim, 1), start + k_start),
        qkv_TX.as_strided((num_tokens, num_kv_heads, v_dim), (stride, v_dim, 1), start + v_start),
    )


def on_packed(turn: Callable[..., None], qkv_TX: Tensor, *turning: Any, caches: Sequence[Tensor]) -> Tensor:
    """A packed projection's queries after `turn`, which is `qk_rope_write` or does the same, has rotated them in place
    and written keys and values. `turning` is what a call of `write_and_decode` has between its output and its caches.
    """
    *tensors, locs_T, eps, unit_offset, interleaved = turning
    k_cache_NSKD, v_cache_NSKE = caches
    (num_kv_heads, k_head_dim), v_head_dim = k_cache_NSKD.shape[2:], v_cache_NSKE.shape[3]
    q_THD, *heads = split_heads(qkv_TX, num_kv_heads, k_head_dim, v_head_dim)
    turn(q_THD, *heads, *tensors, *caches, locs_T, eps, unit_offset, interleaved)
    return q_THD


def rotated(x_THD: Tensor, cos_TF: Tensor, sin_TF: Tensor, interleaved: bool) -> Tensor:
    """Each pair of the first 2F dims turned by its angle, in float32; the dims after them pass through.

    A pair is (i, i + F), or (2i, 2i + 1) with `interleaved`.
    """
    num_pairs = cos_TF.shape[-1]
    wide_THD = x_THD.float()
    cos_T1F, sin_T1F = cos_TF[:, None].float(), sin_TF[:, None].float()
    first = slice(0, 2 * num_pairs, 2) if interleaved else slice(0, num_pairs)
    second = slice(1, 2 * num_pairs, 2) if interleaved else slice(num_pairs, 2 * num_pairs)
    a_THF, b_THF = wide_THD[..., first], wide_THD[..., second]
    out_THD = wide_THD.clone()
    out_THD[..., first] = a_THF * cos_T1F - b_THF * sin_T1F
    out_THD[..., second] = b_THF * cos_T1F + a_THF * sin_T1F
    return out_THD


def turned_heads(
    x_THD: Tensor, weight_W: Tensor | None, table_PR: Tensor | None, positions_T: Tensor,
    eps: float, unit_offset: bool, interleaved: bool,
) -> Tensor:  # fmt: skip
    """Heads as attention wants them: normed, then rotated, rounded once.

    A weight of D numbers norms every head by itself, one of H * D all heads of a token together; None norms nothing.
    A row of the table is the F cosines of a position, then its F sines; None rotates nothing.
    """
    wide_THD = x_THD
    if weight_W is not None:
        rows = x_THD if weight_W.numel() == x_THD.shape[2] else x_THD.flatten(1)
        wide_THD = normalised(rows, weight_W, eps, unit_offset).view(x_THD.shape)
    if table_PR is not None:
        cos_TF, sin_TF = table_PR[positions_T].chunk(2, dim=-1)
        wide_THD = rotated(wide_THD, cos_TF, sin_TF, interleaved)
    return wide_THD.to(x_THD.dtype)


@op(
    mutates=("q_THD", "k_cache_NSKD", "v_cache_NSKE"),
    bind="cpu.rope:bind_qk_rope_write",
    cuda="triton.rope:launch_qk_rope_write",
)
def qk_rope_write(
    q_THD: Tensor, k_TKD: Tensor, v_TKE: Tensor,
    q_weight_W: Tensor | None, k_weight_W: Tensor | None, table_PR: Tensor | None, positions_T: Tensor,
    k_cache_NSKD: Tensor, v_cache_NSKE: Tensor, locs_T: Tensor,
    eps: float, unit_offset: bool, interleaved: bool,
) -> None:  # fmt: skip
    """Norms and rotates q in place, and writes the normed, rotated k and the plain v to their locations.

    Nothing is written to the sink: tokens at the sink belong to no request, and may be NaN or infinite.

    Weights and table are those of `turned_heads`. `locs_T` are locations of the layer's own group; -1 is the sink, as 0
    is. k itself is left alone: attention reads the cache. Everything between the load and the store is float32, so q
    and k are rounded once.
    """
    turning = (table_PR, positions_T, eps, unit_offset, interleaved)
    if q_weight_W is not None or table_PR is not None:
        q_THD.copy_(turned_heads(q_THD, q_weight_W, *turning))
    page_size = k_cache_NSKD.shape[1]
    locs = locs_T.long()
    live = (locs > 0).nonzero().view(-1)
    page, slot = locs[live] // page_size, locs[live] % page_size
    k_cache_NSKD[page, slot] = turned_heads(k_TKD, k_weight_W, *turning)[live]
    v_cache_NSKE[page, slot] = v_TKE[live]
