"""Decode attention for a CPU: where keys lie is looked up once per forward and group, and only keys there are read.

A layer's memory is seen as rows of one location each; `row_view` says when that is possible. An op runs its Python at
every replay, so it may look at lengths: a step of short requests gathers few keys, whatever the table could hold.

Shapes: B requests, H query heads, K kv heads, G = H / K, D head dim, J keys a layer can see, C = J or fewer, the most
any request of this step sees, R rows of the page table, P pages per row, N pages of the layer's pool, S locations per
page, A rows of memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from playhead.bound_ops import Work
from playhead.kernels.op import no_cuda, register_bound_op
from playhead.kernels.softmax import with_sinks

Ints = npt.NDArray[Any]

# What is added to the score of a key that is not there. Finite, because 0 times infinity is no number: the smallest
# float32 that still leaves room for a score.
MASKED = -1e38

# In a matmul with more, numpy's BLAS would start threads of its own, beside torch's.
MOST_PRODUCTS = 2**17


def row_view(cache_NSKD: torch.Tensor) -> torch.Tensor | None:
    """All of a layer's memory as [A, 1, K, D], a page of one location per row; None if pages are not whole rows apart.

    Between two pages lie those of the group's other layers, so most rows are not the layer's. With 16 locations a page
    and 160 rows from page to page, location 33 is row 321.
    """
    num_pages, page_size, num_kv_heads, head_dim = cache_NSKD.shape
    row_size = num_kv_heads * head_dim
    page_stride, *rest = cache_NSKD.stride()
    if page_stride % row_size or tuple(rest) != (row_size, head_dim, 1):
        return None
    num_rows = (num_pages - 1) * (page_stride // row_size) + page_size
    return cache_NSKD.as_strided((num_rows, 1, num_kv_heads, head_dim), (row_size, row_size, head_dim, 1))


def fewest_and_most(seq_lens_B: torch.Tensor | Ints, num_keys: int) -> tuple[int, int]:
    """The keys that the request with fewest sees, and the one with most; both at most `num_keys`."""
    lengths: list[int] = seq_lens_B.tolist()
    return min(*lengths, num_keys), min(max(lengths), num_keys)


def rows_of(locs: Ints, page_size: int, rows_per_page: int) -> Ints:
    """A group's locations as rows of its memory."""
    rows: Ints = locs + locs // page_size * (rows_per_page - page_size)
    return rows


def key_rows_into_reference(
    key_rows_BJ: torch.Tensor,
    bias_BJ: torch.Tensor,
    new_rows_B: torch.Tensor,
    page_table_RP: torch.Tensor,
    rows_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    new_locs_B: torch.Tensor,
    page_size: int,
    rows_per_page: int,
) -> None:
    """Where one forward's keys are, for every layer of a group. Table and new locations are the group's own.

    Writes the rows of each request's last J keys; what is added to their scores: 0, or `MASKED` after a request's end;
    and the rows of the new tokens. Columns from C on are left as they are. A column after a request's end repeats its
    last key, which is finite: 0 times what somebody else left there might not be.
    """
    num_keys = key_rows_BJ.shape[1]
    _, width = fewest_and_most(seq_lens_B, num_keys)

    def to_rows(locs: torch.Tensor) -> torch.Tensor:
        return locs + locs // page_size * (rows_per_page - page_size)

    last_B1 = seq_lens_B[:, None] - 1
    key_BC = (last_B1 - (num_keys - 1)).clamp_min(0) + torch.arange(width)
    bias_BJ[:, :width] = torch.where(key_BC > last_B1, MASKED, 0.0)
    key_BC = key_BC.minimum(last_B1)
    pages_BC = page_table_RP[rows_B[:, None], key_BC // page_size]
    key_rows_BJ[:, :width] = to_rows(pages_BC * page_size + key_BC % page_size)
    new_rows_B.copy_(to_rows(new_locs_B.clamp_min(0)))


def bind_key_rows_into(
    key_rows_BJ: torch.Tensor,
    bias_BJ: torch.Tensor,
    new_rows_B: torch.Tensor,
    page_table_RP: torch.Tensor,
    rows_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    new_locs_B: torch.Tensor,
    page_size: int,
    rows_per_page: int,
) -> Work:
    """The reference by numpy: a dozen ops on a few thousand integers, each of which costs torch several times more."""
    key_rows, bias, new_rows, table = (x.numpy() for x in (key_rows_BJ, bias_BJ, new_rows_B, page_table_RP))
    rows, lengths, new_locs = rows_B.numpy(), seq_lens_B.numpy(), new_locs_B.numpy()
    num_keys, layout = key_rows.shape[1], (page_size, rows_per_page)
    column, masked = np.arange(num_keys, dtype=np.int32), np.float32(MASKED)

    def work() -> None:
        last_B1 = lengths[:, None] - 1
        width = min(int(last_B1.max()) + 1, num_keys)
        key_BC = np.maximum(last_B1 - (num_keys - 1), 0) + column[:width]
        np.multiply(key_BC > last_B1, masked, out=bias[:, :width])
        np.minimum(key_BC, last_B1, out=key_BC)
        page_BC = key_BC // page_size
        pages_BC = table.take(rows[:, None].astype(np.int64) * table.shape[1] + page_BC)
        key_rows[:, :width] = rows_of((pages_BC - page_BC) * page_size + key_BC, *layout)
        new_rows[:] = rows_of(np.maximum(new_locs, 0), *layout)

    return work


def key_rows(
    page_table_RP: torch.Tensor,
    rows_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    new_locs_B: torch.Tensor,
    *,
    page_size: int,
    rows_per_page: int,
    num_keys: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `key_rows_into` writes, in new memory: rows of keys [B, J] with J = `num_keys`, biases, new rows."""
    num_requests = rows_B.shape[0]
    key_rows_BJ = torch.empty((num_requests, num_keys), dtype=torch.int64)
    bias_BJ = torch.empty((num_requests, num_keys), dtype=torch.float32)
    new_rows_B = torch.empty(num_requests, dtype=torch.int64)
    found = (key_rows_BJ, bias_BJ, new_rows_B)
    key_rows_into(*found, page_table_RP, rows_B, seq_lens_B, new_locs_B, page_size, rows_per_page)
    return found


def decode_rows_reference(
    q_BHD: torch.Tensor,
    out_BHD: torch.Tensor,
    k_rows_A1KD: torch.Tensor,
    v_rows_A1KD: torch.Tensor,
    key_rows_BJ: torch.Tensor,
    bias_BJ: torch.Tensor,
    seq_lens_B: torch.Tensor,
    sinks_H: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> None:
    """Writes `out_BHD`: `attend_last_queries`, from rows that were looked up before."""
    num_requests, num_heads, head_dim = q_BHD.shape
    num_kv_heads = k_rows_A1KD.shape[2]
    fewest, width = fewest_and_most(seq_lens_B, key_rows_BJ.shape[1])
    rows = key_rows_BJ.narrow(1, 0, width).flatten()
    k, v = gathered(k_rows_A1KD, rows, num_requests), gathered(v_rows_A1KD, rows, num_requests)
    # A small matmul for each request and kv head.
    q = (q_BHD.float() * scale).view(num_requests * num_kv_heads, -1, head_dim)
    score = torch.bmm(q, k.mT).view(num_requests, num_heads, width)
    if softcap is not None:
        score.div_(softcap).tanh_().mul_(softcap)
    if fewest < width:
        score.add_(bias_BJ.narrow(1, 0, width).unsqueeze(1))
    weight = with_sinks(score, sinks_H).reshape(num_requests * num_kv_heads, -1, width)
    out_BHD.copy_(torch.bmm(weight, v).view(num_requests, num_heads, head_dim))


def gathered(rows_A1KD: torch.Tensor, rows: torch.Tensor, num_requests: int) -> torch.Tensor:
    """The rows of every request and kv head, [B * K, C, D] in float32."""
    num_kv_heads, head_dim = rows_A1KD.shape[2:]
    found = rows_A1KD.index_select(0, rows).float()
    if num_kv_heads == 1:
        return found.view(num_requests, -1, head_dim)
    found = found.view(num_requests, -1, num_kv_heads, head_dim).transpose(1, 2)
    return found.reshape(num_requests * num_kv_heads, -1, head_dim)


def bind_decode_rows(
    q_BHD: torch.Tensor,
    out_BHD: torch.Tensor,
    k_rows_A1KD: torch.Tensor,
    v_rows_A1KD: torch.Tensor,
    key_rows_BJ: torch.Tensor,
    bias_BJ: torch.Tensor,
    seq_lens_B: torch.Tensor,
    sinks_H: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> Work:
    """The reference; for float32 by numpy, but for the softmax, which torch does in one pass."""
    memory, lookup = (k_rows_A1KD, v_rows_A1KD), (key_rows_BJ, bias_BJ, seq_lens_B)
    by_torch = partial(decode_rows_reference, q_BHD, out_BHD, *memory, *lookup, sinks_H, scale, softcap)
    if not q_BHD.dtype == out_BHD.dtype == k_rows_A1KD.dtype == v_rows_A1KD.dtype == torch.float32:
        return by_torch
    (num_requests, num_heads, head_dim), num_kv_heads = q_BHD.shape, k_rows_A1KD.shape[2]
    heads = (num_requests, num_kv_heads, num_heads // num_kv_heads, head_dim)  # B, K, G, D
    scaled, q, out = np.empty(heads, np.float32), q_BHD.view(heads).numpy(), out_BHD.view(heads).numpy()
    k_rows, v_rows = k_rows_A1KD[:, 0].numpy(), v_rows_A1KD[:, 0].numpy()
    key_rows, bias, lengths, scale_32 = key_rows_BJ.numpy(), bias_BJ.numpy(), seq_lens_B.numpy(), np.float32(scale)
    sinks_KG = None if sinks_H is None else sinks_H.view(heads[1:3])

    def work() -> None:
        fewest, width = fewest_and_most(lengths, key_rows.shape[1])
        if width * heads[2] * head_dim > MOST_PRODUCTS:
            by_torch()
            return
        rows = key_rows[:, :width]
        k, v = k_rows.take(rows, axis=0, mode="clip"), v_rows.take(rows, axis=0, mode="clip")  # [B, C, K, D]
        np.multiply(q, scale_32, scaled)
        score = np.matmul(scaled, k.transpose(0, 2, 3, 1))
        if softcap is not None:
            np.multiply(np.tanh(np.divide(score, softcap, score), score), softcap, score)
        if fewest < width:
            np.add(score, bias[:, None, None, :width], score)
        weight = with_sinks(torch.from_numpy(score), sinks_KG).numpy()
        np.matmul(weight, v.transpose(0, 2, 1, 3), out)

    return work


key_rows_into = register_bound_op(
    "key_rows_into",
    reference=key_rows_into_reference,
    bind=bind_key_rows_into,
    cuda=no_cuda,
    mutates=("key_rows_BJ", "bias_BJ", "new_rows_B"),
)

decode_rows = register_bound_op(
    "decode_rows", reference=decode_rows_reference, bind=bind_decode_rows, cuda=no_cuda, mutates=("out_BHD",)
)
