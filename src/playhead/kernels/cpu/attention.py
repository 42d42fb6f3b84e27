"""Attention on a CPU: where keys lie is looked up once per forward and KV group, and only keys there are read.

A layer's memory is seen as cells of one location each; `CellMemory` says when that is possible. Decode is an op, which
runs its Python at every replay, so it may look at lengths: a step of short requests gathers few keys, whatever the
table could hold. In steps over tokens, requests with equally many queries are one batch of matmuls: a dozen short
requests would cost a dozen torch ops each in every layer.

Shapes: T tokens, B requests, b those of a batch, Q queries of each of them, H query heads, K kv heads, G = H / K,
D head dim, J keys a layer can see, C = J or fewer, the most any request of this step (or batch) sees, R rows of the
page table, P pages per row, N pages of the layer's pool, S locations per page, A cells of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from playhead.kernels.cpu.arrays import Array, as_arrays
from playhead.kernels.elementwise import softmax_with_sinks
from playhead.kernels.op import Work, op

# What is added to the score of a key that is not there. Finite, because 0 times infinity is no number: the smallest
# float32 that still leaves room for a score.
MASKED = -1e38

# In a matmul with more, numpy's BLAS would start threads of its own, beside torch's.
MOST_PRODUCTS = 2**17


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellMemory:
    """A layer's keys and values by cell, [A, 1, K, D] each: pages of one location.

    A cell holds one location's keys, or its values. Between two pages of a layer lie those of the group's other layers,
    so most cells are not the layer's. With 16 locations a page and 160 cells from page to page, location 33 is cell
    321.
    """

    k_A1KD: Tensor
    v_A1KD: Tensor
    page_size: int
    cells_per_page: int

    @classmethod
    def of(cls, k_cache_NSKD: Tensor, v_cache_NSKE: Tensor) -> CellMemory | None:
        """None if pages are not whole cells apart, or keys and values not as wide as each other."""
        num_pages, page_size, num_kv_heads, head_dim = k_cache_NSKD.shape
        cell_size, page_stride = num_kv_heads * head_dim, k_cache_NSKD.stride(0)
        strides = (page_stride, cell_size, head_dim, 1)
        if page_stride % cell_size or not k_cache_NSKD.stride() == v_cache_NSKE.stride() == strides:
            return None
        if k_cache_NSKD.shape != v_cache_NSKE.shape:
            return None
        cells_per_page = page_stride // cell_size
        shape = ((num_pages - 1) * cells_per_page + page_size, 1, num_kv_heads, head_dim)
        k, v = (x.as_strided(shape, (cell_size, cell_size, head_dim, 1)) for x in (k_cache_NSKD, v_cache_NSKE))
        return cls(k_A1KD=k, v_A1KD=v, page_size=page_size, cells_per_page=cells_per_page)


def fewest_and_most(seq_lens_B: Tensor | Array, num_keys: int) -> tuple[int, int]:
    """The keys that the request with fewest sees, and the one with most; both at most `num_keys`."""
    lengths: list[int] = seq_lens_B.tolist()
    return min(*lengths, num_keys), min(max(lengths), num_keys)


def cells_of(locs: Any, page_size: int, cells_per_page: int) -> Any:
    """A group's locations as cells of its memory: an array's, or a tensor's."""
    return locs + locs // page_size * (cells_per_page - page_size)


def bind_key_cells_into(*call: Any) -> Work:
    """A dozen ops on a few thousand integers, each of which costs torch several times more."""
    key_cells, bias, new_cells, table, rows, lengths, new_locs, *layout = as_arrays(call)
    num_keys, page_size = key_cells.shape[1], layout[0]
    column, masked = np.arange(num_keys, dtype=np.int32), np.float32(MASKED)

    def work() -> None:
        last_B1 = lengths[:, None] - 1
        width = min(int(last_B1.max()) + 1, num_keys)
        key_BC = np.maximum(last_B1 - (num_keys - 1), 0) + column[:width]
        np.multiply(key_BC > last_B1, masked, out=bias[:, :width])
        np.minimum(key_BC, last_B1, out=key_BC)
        page_BC = key_BC // page_size
        pages_BC = table.take(rows[:, None].astype(np.int64) * table.shape[1] + page_BC)
        key_cells[:, :width] = cells_of((pages_BC - page_BC) * page_size + key_BC, *layout)
        new_cells[:] = cells_of(np.maximum(new_locs, 0), *layout)

    return work


@op(mutates=("key_cells_BJ", "bias_BJ", "new_cells_B"), bind=bind_key_cells_into, cuda=None)
def key_cells_into(
    key_cells_BJ: Tensor, bias_BJ: Tensor, new_cells_B: Tensor,
    page_table_RP: Tensor, rows_B: Tensor, seq_lens_B: Tensor, new_locs_B: Tensor, page_size: int, cells_per_page: int,
) -> None:  # fmt: skip
    """Where one forward's keys are, for every layer of a group. Table and new locations are the group's own.

    Writes the cells of each request's last J keys; what is added to their scores: 0, or `MASKED` after a request's end;
    and the cells of the new tokens. Columns from C on are left as they are. A column after a request's end repeats its
    last key, which is finite: 0 times a leftover of another request might be NaN.
    """
    num_keys = key_cells_BJ.shape[1]
    _, width = fewest_and_most(seq_lens_B, num_keys)

    last_B1 = seq_lens_B[:, None] - 1
    key_BC = (last_B1 - (num_keys - 1)).clamp_min(0) + torch.arange(width)
    bias_BJ[:, :width] = torch.where(key_BC > last_B1, MASKED, 0.0)
    key_BC = key_BC.minimum(last_B1)
    pages_BC = page_table_RP[rows_B[:, None], key_BC // page_size]
    key_cells_BJ[:, :width] = cells_of(pages_BC * page_size + key_BC % page_size, page_size, cells_per_page)
    new_cells_B.copy_(cells_of(new_locs_B.clamp_min(0), page_size, cells_per_page))


def bind_decode_cells(*call: Any) -> Work:
    """By numpy, but for the softmax, which torch does in one pass."""
    by_torch = partial(decode_cells.reference, *call)
    q_BHD, out_BHD, k_cells_A1KD, v_cells_A1KD, *lookup, sinks_H, scale, softcap = call
    (num_requests, num_heads, head_dim), num_kv_heads = q_BHD.shape, k_cells_A1KD.shape[2]
    heads = (num_requests, num_kv_heads, num_heads // num_kv_heads, head_dim)  # B, K, G, D
    scaled, q, out = np.empty(heads, np.float32), q_BHD.view(heads).numpy(), out_BHD.view(heads).numpy()
    k_cells, v_cells = k_cells_A1KD[:, 0].numpy(), v_cells_A1KD[:, 0].numpy()
    (key_cells, bias, lengths), scale_32 = as_arrays(lookup), np.float32(scale)
    sinks_KG = None if sinks_H is None else sinks_H.view(heads[1:3])

    def work() -> None:
        fewest, width = fewest_and_most(lengths, key_cells.shape[1])
        if width * heads[2] * head_dim > MOST_PRODUCTS:
            by_torch()
            return
        cells = key_cells[:, :width]
        k, v = k_cells.take(cells, axis=0, mode="clip"), v_cells.take(cells, axis=0, mode="clip")  # [B, C, K, D]
        np.multiply(q, scale_32, scaled)
        score = np.matmul(scaled, k.transpose(0, 2, 3, 1))
        if softcap is not None:
            np.multiply(np.tanh(np.divide(score, softcap, score), score), softcap, score)
        if fewest < width:
            np.add(score, bias[:, None, None, :width], score)
        weight = softmax_with_sinks(torch.from_numpy(score), sinks_KG).numpy()
        np.matmul(weight, v.transpose(0, 2, 1, 3), out)

    return work


@op(mutates=("out_BHD",), bind=bind_decode_cells, cuda=None)
def decode_cells(
    q_BHD: Tensor, out_BHD: Tensor, k_cells_A1KD: Tensor, v_cells_A1KD: Tensor,
    key_cells_BJ: Tensor, bias_BJ: Tensor, seq_lens_B: Tensor, sinks_H: Tensor | None, scale: float,
    softcap: float | None,
) -> None:  # fmt: skip
    """Writes `out_BHD`: what `decode` writes, from cells that were looked up before."""
    num_requests, num_heads, head_dim = q_BHD.shape
    num_kv_heads = k_cells_A1KD.shape[2]
    fewest, width = fewest_and_most(seq_lens_B, key_cells_BJ.shape[1])
    cells = key_cells_BJ.narrow(1, 0, width).flatten()
    k, v = gathered(k_cells_A1KD, cells, num_requests), gathered(v_cells_A1KD, cells, num_requests)
    # A small matmul for each request and kv head.
    q = (q_BHD.float() * scale).view(num_requests * num_kv_heads, -1, head_dim)
    score = torch.bmm(q, k.mT).view(num_requests, num_heads, width)
    if softcap is not None:
        score.div_(softcap).tanh_().mul_(softcap)
    if fewest < width:
        score.add_(bias_BJ.narrow(1, 0, width).unsqueeze(1))
    weight = softmax_with_sinks(score, sinks_H).reshape(num_requests * num_kv_heads, -1, width)
    out_BHD.copy_(torch.bmm(weight, v).view(num_requests, num_heads, head_dim))


def gathered(cells_A1KD: Tensor, cells: Tensor, num_requests: int) -> Tensor:
    """The cells of every request and kv head, [B * K, C, D] in float32."""
    num_kv_heads, head_dim = cells_A1KD.shape[2:]
    found = cells_A1KD.index_select(0, cells).float()
    if num_kv_heads == 1:
        return found.view(num_requests, -1, head_dim)
    found = found.view(num_requests, -1, num_kv_heads, head_dim).transpose(1, 2)
    return found.reshape(num_requests * num_kv_heads, -1, head_dim)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EqualSpans:
    """Requests of a step with equally many queries: their tokens, the cells of their keys, what is added to scores."""

    token_bQ: Tensor
    key_cells_bC: Tensor
    bias_b1QC: Tensor


def equal_spans(requests: Sequence[Tensor], memory: CellMemory, window: int | None) -> tuple[EqualSpans, ...]:
    """The step's requests by their number of queries.

    `requests` are what `extend` takes: the page table, then each request's row, length, first query and number of
    queries. Queries see what `extend` says. A column after a request's last key repeats that key, which is finite.
    """
    table, rows, lengths, starts, nums = as_arrays(requests)
    page_size = memory.page_size
    found = []
    for num_queries in np.unique(nums[nums > 0]).tolist():
        chosen = np.flatnonzero(nums == num_queries)
        end_b1 = lengths[chosen, None].astype(np.int64)
        query_bQ = end_b1 - num_queries + np.arange(num_queries)
        first_b1 = np.zeros_like(end_b1)
        if window is not None:
            first_b1 = np.maximum(query_bQ[:, :1] - window + 1, 0)
        key_bC = first_b1 + np.arange((end_b1 - first_b1).max())
        hidden_bQC: Array = key_bC[:, None] > query_bQ[:, :, None]
        if window is not None:
            hidden_bQC |= key_bC[:, None] <= query_bQ[:, :, None] - window
        key_bC = np.minimum(key_bC, end_b1 - 1)
        page_bC = table[rows[chosen, None], key_bC // page_size].astype(np.int64)
        locs_bC = page_bC * page_size + key_bC % page_size
        found.append(
            EqualSpans(
                token_bQ=torch.from_numpy(starts[chosen, None].astype(np.int64) + np.arange(num_queries)),
                key_cells_bC=torch.from_numpy(cells_of(locs_bC, page_size, memory.cells_per_page)),
                bias_b1QC=torch.from_numpy(hidden_bQC[:, None] * np.float32(MASKED)),
            )
        )
    return tuple(found)


def extend_cells(
    q_THD: Tensor,
    out_THD: Tensor,
    memory: CellMemory,
    spans: EqualSpans,
    scoring: tuple[float, float | None, Tensor | None],
) -> None:
    """`extend` for the requests of `spans`. `scoring` is the scale, the softcap and the sinks [H]."""
    (scale, softcap, sinks_H), (num_heads, head_dim) = scoring, q_THD.shape[1:]
    (num_requests, num_queries), width = spans.token_bQ.shape, spans.key_cells_bC.shape[1]
    num_kv_heads, tokens = memory.k_A1KD.shape[2], spans.token_bQ.view(-1)
    k, v = (gathered(x, spans.key_cells_bC.view(-1), num_requests) for x in (memory.k_A1KD, memory.v_A1KD))
    by_token = (num_requests, num_queries, num_heads, head_dim)
    # A matmul for each request and kv head, its rows being the queries of the heads that share it: [b * K, G * Q, D].
    q = (q_THD.index_select(0, tokens).float() * scale).view(by_token).transpose(1, 2)
    score = torch.bmm(q.reshape(num_requests * num_kv_heads, -1, head_dim), k.mT)
    score = score.view(num_requests, num_heads, num_queries, width)
    if softcap is not None:
        score.div_(softcap).tanh_().mul_(softcap)
    score.add_(spans.bias_b1QC)
    weight = softmax_with_sinks(score, None if sinks_H is None else sinks_H[:, None])
    out = torch.bmm(weight.reshape(num_requests * num_kv_heads, -1, width), v)
    out = out.view(num_requests, num_heads, num_queries, head_dim).transpose(1, 2)
    out_THD.index_copy_(0, tokens, out.reshape(-1, num_heads, head_dim).to(out_THD.dtype))
