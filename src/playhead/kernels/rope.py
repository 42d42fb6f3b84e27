"""What happens to queries, keys and values between their projection and attention, in one pass.

Norm of q and k (or none), rotary embedding (or none), and the write of k and v into paged memory.

Shapes: T tokens, H query heads, K kv heads, D head dim of q and k, E head dim of v, W = D or all heads' dims together,
P positions, F rotated pairs (2F <= D), R = 2F, N pages of the layer's pool, S locations per page.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from playhead.bound_ops import Work
from playhead.kernels.norm import Floats, bind_normed, normalised
from playhead.kernels.op import register_bound_op


def rotated(x_THD: torch.Tensor, cos_TF: torch.Tensor, sin_TF: torch.Tensor, interleaved: bool) -> torch.Tensor:
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
    x_THD: torch.Tensor,
    weight_W: torch.Tensor | None,
    table_PR: torch.Tensor | None,
    positions_T: torch.Tensor,
    eps: float,
    unit_offset: bool,
    interleaved: bool,
) -> torch.Tensor:
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


def qk_rope_write_reference(
    q_THD: torch.Tensor,
    k_TKD: torch.Tensor,
    v_TKE: torch.Tensor,
    q_weight_W: torch.Tensor | None,
    k_weight_W: torch.Tensor | None,
    table_PR: torch.Tensor | None,
    positions_T: torch.Tensor,
    k_cache_NSKD: torch.Tensor,
    v_cache_NSKE: torch.Tensor,
    locs_T: torch.Tensor,
    eps: float,
    unit_offset: bool,
    interleaved: bool,
) -> None:
    """Norms and rotates q in place, and writes the normed, rotated k and the plain v to their locations.

    Nothing is written to the sink: the tokens there are nobody's, and may be anything that is no number.

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


def bind_qk_rope_write(
    q_THD: torch.Tensor,
    k_TKD: torch.Tensor,
    v_TKE: torch.Tensor,
    q_weight_W: torch.Tensor | None,
    k_weight_W: torch.Tensor | None,
    table_PR: torch.Tensor | None,
    positions_T: torch.Tensor,
    k_cache_NSKD: torch.Tensor,
    v_cache_NSKE: torch.Tensor,
    locs_T: torch.Tensor,
    eps: float,
    unit_offset: bool,
    interleaved: bool,
) -> Work:
    """The reference; for the usual case, which is float32 with all dims rotated in halves, q and k turned together."""
    num_heads, head_dim = q_THD.shape[1:]
    are_normed = q_weight_W is not None and k_weight_W is not None
    is_usual = (
        q_THD.dtype == k_cache_NSKD.dtype == v_cache_NSKE.dtype == torch.float32
        and table_PR is not None
        and table_PR.shape[1] == head_dim
        and table_PR.dtype == torch.float32
        and not interleaved
        and are_normed == (q_weight_W is not None or k_weight_W is not None)
        and all(w is None or (w.numel() == head_dim and w.dtype == torch.float32) for w in (q_weight_W, k_weight_W))
    )
    if not is_usual or not are_neighbours(q_THD, k_TKD):
        turning = (q_weight_W, k_weight_W, table_PR, positions_T)
        memory = (k_cache_NSKD, v_cache_NSKE, locs_T)
        rest = (*turning, *memory, eps, unit_offset, interleaved)
        return partial(qk_rope_write_reference, q_THD, k_TKD, v_TKE, *rest)
    assert table_PR is not None, "the usual case rotates"
    qk_shape = (q_THD.shape[0], num_heads + k_TKD.shape[1], head_dim)
    qk, turned = q_THD.as_strided(qk_shape, q_THD.stride()), torch.empty(qk_shape)  # q's heads, then k's
    norm = None
    if q_weight_W is not None and k_weight_W is not None:
        normed, weights = torch.empty(qk_shape), np.empty(qk_shape[1:], np.float32)
        q_weights, k_weights = q_weight_W.numpy(), k_weight_W.numpy()
        norm = bind_normed(qk.numpy(), weights, normed.numpy(), eps, unit_offset)
        qk = normed
    turn = bind_turn(qk, turned, table_PR, positions_T)
    q, v, q_turned, k_turned = (x.numpy() for x in (q_THD, v_TKE, turned[:, :num_heads], turned[:, num_heads:]))
    k_cache, v_cache = k_cache_NSKD.numpy(), v_cache_NSKE.numpy()
    locs = locs_T.numpy()

    def work() -> None:
        if norm is not None:
            weights[:num_heads], weights[num_heads:] = q_weights, k_weights
            norm()
        turn()
        np.copyto(q, q_turned)
        write_rows(locs, (k_cache, k_turned), (v_cache, v))

    return work


def bind_turn(qk: torch.Tensor, turned: torch.Tensor, table_PR: torch.Tensor, positions_T: torch.Tensor) -> Work:
    """Writes `turned`: every head of `qk`, [T, H + K, D], rotated in halves by its token's row of the table."""
    num_tokens, num_heads, head_dim = qk.shape
    halves_shape = (num_tokens, num_heads, 2, head_dim // 2)
    halves, turned_halves = qk.view(halves_shape), turned.view(halves_shape)
    (first, second), (turned_first, turned_second) = halves.unbind(2), turned_halves.unbind(2)
    cos_sin = torch.empty(num_tokens, 1, 2, head_dim // 2)
    rows, cos, sin = cos_sin.view(num_tokens, head_dim), cos_sin[:, :, :1], cos_sin[:, :, 1]

    def work() -> None:
        # By torch: numpy takes twice as long for factors that repeat along an axis in the middle.
        torch.index_select(table_PR, 0, positions_T, out=rows)
        torch.mul(halves, cos, out=turned_halves)
        turned_first.addcmul_(second, sin, value=-1)
        turned_second.addcmul_(first, sin)

    return work


def are_neighbours(q_THD: torch.Tensor, k_TKD: torch.Tensor) -> bool:
    """Whether k's heads follow q's in memory, as they do in a packed projection."""
    num_tokens, num_heads, head_dim = q_THD.shape
    together = q_THD.untyped_storage().data_ptr() == k_TKD.untyped_storage().data_ptr()
    follows = together and q_THD.storage_offset() + num_heads * head_dim == k_TKD.storage_offset()
    is_packed = q_THD.stride()[1:] == (head_dim, 1) == k_TKD.stride()[1:]
    return follows and is_packed and (q_THD.stride(0) == k_TKD.stride(0) or num_tokens == 1)


def write_rows(locs: Floats, *caches_rows: tuple[Floats, Floats]) -> None:
    """In every cache one row [K, D] per location but the sink's, which -1 is too.

    With pages of one location, which is how decode sees memory, nothing is divided.
    """
    # Without the comparison, -1 would be the last offset of the last page: somebody's token.
    is_live = locs > 0
    live = slice(None) if is_live.all() else np.flatnonzero(is_live)
    page_size = caches_rows[0][0].shape[1]
    place: tuple[Floats, Floats | int] = (locs[live], 0) if page_size == 1 else np.divmod(locs[live], page_size)
    for cache, rows in caches_rows:
        cache[place] = rows[live]


def _cuda(*args: object) -> None:
    from playhead.kernels.triton.rope import launch_qk_rope_write

    launch_qk_rope_write(*args)  # type: ignore[arg-type]


qk_rope_write = register_bound_op(
    "qk_rope_write",
    reference=qk_rope_write_reference,
    bind=bind_qk_rope_write,
    cuda=_cuda,
    mutates=("q_THD", "k_cache_NSKD", "v_cache_NSKE"),
)
