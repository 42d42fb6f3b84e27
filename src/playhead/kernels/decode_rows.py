"""Decode attention for a CPU: where keys lie is looked up once per forward and group, and only keys there are read.

A layer's memory is seen as rows of one location each; `row_view` says when that is possible. An op runs its Python at
every replay, so it may look at lengths: a step of short requests gathers few keys, whatever the table could hold.

Shapes: B requests, H query heads, K kv heads, G = H / K, D head dim, J keys a layer can see, C = J or fewer, the most
any request of this step sees, R rows of the page table, P pages per row, N pages of the layer's pool, S locations per
page, L full locations, A rows of memory.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from playhead.errors import ConfigError
from playhead.kernels.op import no_output, register_op
from playhead.kernels.softmax import with_sinks

Ints = npt.NDArray[Any]

# What is added to the score of a key that is not there. Finite, because 0 times infinity is no number: the smallest
# float32 that still leaves room for a score.
MASKED = -1e38


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


def fewest_and_most(seq_lens_B: torch.Tensor, num_keys: int) -> tuple[int, int]:
    """The keys that the request with fewest sees, and the one with most; both at most `num_keys`."""
    lengths: list[int] = seq_lens_B.tolist()
    return min(*lengths, num_keys), min(max(lengths), num_keys)


def key_rows_reference(
    page_table_RP: torch.Tensor,
    rows_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    new_locs_B: torch.Tensor,
    mapping_L: torch.Tensor | None,
    page_size: int,
    rows_per_page: int,
    num_keys: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where one forward's keys are, for every layer of a group.

    The rows of each request's last `num_keys` keys, [B, J]; what is added to their scores: 0, or `MASKED` after a
    request's end; and the rows of the new tokens, [B]. Columns from C on are left as they are. A column after a
    request's end repeats its last key, which is finite: 0 times what somebody else left there might not be.
    """
    num_requests, (_, width) = rows_B.shape[0], fewest_and_most(seq_lens_B, num_keys)
    key_rows_BJ = torch.empty((num_requests, num_keys), dtype=torch.int64)
    bias_BJ = torch.empty((num_requests, num_keys), dtype=torch.float32)

    def rows_of(full_locs: Ints) -> Ints:
        # A window's location of -1 is nobody's: the sink.
        locs = full_locs if mapping_L is None else np.maximum(mapping_L.numpy().take(full_locs), 0)
        rows: Ints = locs + locs // page_size * (rows_per_page - page_size)
        return rows

    # By numpy: these are a dozen ops on a few thousand integers, each of which costs torch several times as much.
    last_B1 = seq_lens_B.numpy()[:, None] - 1
    key_BC = np.maximum(last_B1 - (num_keys - 1), 0) + np.arange(width, dtype=np.int32)
    np.multiply(key_BC > last_B1, np.float32(MASKED), out=bias_BJ.numpy()[:, :width])
    np.minimum(key_BC, last_B1, out=key_BC)
    page_BC = key_BC // page_size
    first_B1 = rows_B.numpy()[:, None].astype(np.int64) * page_table_RP.shape[1]
    pages_BC = page_table_RP.numpy().take(first_B1 + page_BC)
    key_rows_BJ.numpy()[:, :width] = rows_of((pages_BC - page_BC) * page_size + key_BC)
    new_rows_B = torch.from_numpy(rows_of(np.maximum(new_locs_B.numpy(), 0)).astype(np.int64))
    return key_rows_BJ, bias_BJ, new_rows_B


def _key_rows_fake(
    page_table_RP: torch.Tensor, rows_B: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_requests, num_keys = rows_B.shape[0], rest[-1]
    assert isinstance(num_keys, int)
    key_rows_BJ = rows_B.new_empty((num_requests, num_keys), dtype=torch.int64)
    return key_rows_BJ, torch.empty_like(key_rows_BJ, dtype=torch.float32), key_rows_BJ[:, 0].clone()


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


def _no_cuda(*_: object) -> NoReturn:
    raise ConfigError("decode_rows: found CUDA tensors; wanted the CPU's. Use playhead::decode there")


key_rows = register_op("key_rows", reference=key_rows_reference, cuda=_no_cuda, fake=_key_rows_fake)

decode_rows = register_op(
    "decode_rows", reference=decode_rows_reference, cuda=_no_cuda, fake=no_output, mutates=("out_BHD",)
)
