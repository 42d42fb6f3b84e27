"""`qk_rope_write` of `rope.py` by numpy and torch.

Shapes: T tokens, H query heads, K kv heads, D head dim of q and k, P positions, R = D, the dims that are rotated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from playhead.kernels.cpu.arrays import Array, as_arrays
from playhead.kernels.cpu.norm import bind_normed
from playhead.kernels.op import Work


def bind_qk_rope_write(*call: Any) -> Work | None:
    """For the usual case, which is all dims rotated in halves: q and k turned together."""
    q_THD, k_TKD, v_TKE, q_weight_W, k_weight_W, table_PR, positions_T, *memory, eps, unit_offset, interleaved = call
    num_heads, head_dim = q_THD.shape[1:]
    is_rotated = table_PR is not None and table_PR.shape[1] == head_dim and not interleaved
    weights = [weight for weight in (q_weight_W, k_weight_W) if weight is not None]
    is_normed_by_head = len(weights) != 1 and all(weight.numel() == head_dim for weight in weights)
    if not is_rotated or not is_normed_by_head or not are_neighbours(q_THD, k_TKD):
        return None
    qk_shape = (q_THD.shape[0], num_heads + k_TKD.shape[1], head_dim)
    qk, turned = q_THD.as_strided(qk_shape, q_THD.stride()), torch.empty(qk_shape)  # q's heads, then k's
    norm = None
    if weights:
        normed, qk_weights = torch.empty(qk_shape), np.empty(qk_shape[1:], np.float32)
        q_weights, k_weights = as_arrays(weights)
        norm = bind_normed(qk.numpy(), qk_weights, normed.numpy(), eps, unit_offset)
        qk = normed
    turn = bind_turn(qk, turned, table_PR, positions_T)
    q, v, q_turned, k_turned = as_arrays((q_THD, v_TKE, turned[:, :num_heads], turned[:, num_heads:]))
    k_cache, v_cache, locs = as_arrays(memory)

    def work() -> None:
        if norm is not None:
            qk_weights[:num_heads], qk_weights[num_heads:] = q_weights, k_weights
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


def write_rows(locs: Array, *caches_rows: tuple[Array, Array]) -> None:
    """In every cache one row [K, D] per location but the sink's, which -1 is too.

    With pages of one location, which is how decode sees memory, nothing is divided.
    """
    # Without the comparison, -1 would be the last offset of the last page, where a request may have a token.
    is_live = locs > 0
    live = slice(None) if is_live.all() else np.flatnonzero(is_live)
    page_size = caches_rows[0][0].shape[1]
    place: tuple[Array, Array | int] = (locs[live], 0) if page_size == 1 else np.divmod(locs[live], page_size)
    for cache, rows in caches_rows:
        cache[place] = rows[live]
