"""Attention over paged keys and values: one query per request (decode), or many, their own keys included (extend).

Shapes: T tokens, B requests, X = all heads of q, k and v, Y = all heads of the output, H query heads, K kv heads,
G = H / K, D head dim of q and k, E head dim of v, W = D or all heads' dims together, Q queries of one request, J keys
looked at, L parts that are left of a head's output, Z numbers of an output in parts, R rows of the page table, P pages
per row, N pages of the layer's pool, S locations per page, * any leading dims.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from playhead.kernels.elementwise import softmax_with_sinks
from playhead.kernels.op import like_first, op
from playhead.kernels.rope import on_packed, qk_rope_write

NO_WEIGHT = -1.0e30  # what the logarithm of a part's weight is, where the part is none


@op(out=like_first, cuda="triton.longest_first:launch_longest_first")
def longest_first(seq_lens_B: Tensor) -> Tensor:
    """The requests of a step, the longest first and equal ones as they stand: lengths 3, 9, 3 give 1, 0, 2."""
    return torch.argsort(seq_lens_B, descending=True, stable=True).to(seq_lens_B.dtype)


@op(mutates=("out_BHE", "parts", "log_weights", "arrivals"), cuda="triton.decode:launch_decode")
def decode(
    q_BHD: Tensor, out_BHE: Tensor, k_cache_NSKD: Tensor, v_cache_NSKE: Tensor,
    page_table_RP: Tensor, rows_B: Tensor, seq_lens_B: Tensor,
    sinks_H: Tensor | None, scale: float, window: int | None, softcap: float | None,
    parts: Tensor | None = None, log_weights: Tensor | None = None, arrivals: Tensor | None = None,
    num_splits: int = 1, order_B: Tensor | None = None,
) -> None:  # fmt: skip
    """Writes `out_BHE`: each request's query against its last `window` keys (all of them where None), itself included.

    `seq_lens_B` counts the keys with this step's. The page table is the layer's group's. Shapes depend on the table and
    the window alone, never on a length, so a tape can record the reference.

    The last five say how the kernel shares requests among programs, not what comes out: `parts` holds
    B * H * num_splits results of E float32, `log_weights` a number for each result, `arrivals` as many zeroed int32
    as `splits.num_arrivals` says. The kernel leaves `arrivals` zeroed. `order_B` has every request once, in the order
    in which their programs start (`longest_first`); None is the step's own.
    """
    num_requests, num_heads, head_dim = q_BHD.shape
    page_size, num_kv_heads = k_cache_NSKD.shape[1:3]
    max_keys = page_table_RP.shape[1] * page_size
    num_keys = max_keys if window is None else min(window, max_keys)

    # A full layer looks at positions 0, 1, ...; a window layer at the last `window` ones, some of them before 0.
    index_J = torch.arange(num_keys, dtype=torch.int32, device=q_BHD.device)
    start_B = torch.zeros_like(seq_lens_B) if window is None else seq_lens_B - num_keys
    key_BJ = start_B[:, None] + index_J
    seen_BJ = (key_BJ >= 0) & (key_BJ < seq_lens_B[:, None])
    key_BJ = torch.where(seen_BJ, key_BJ, 0)
    table_BP = page_table_RP[rows_B.long()]
    page_BJ, slot_BJ = table_BP.gather(1, (key_BJ // page_size).long()), key_BJ % page_size
    # Keys that no query may see can hold anything, and 0 * NaN is NaN.
    k_BJKD = torch.where(seen_BJ[..., None, None], k_cache_NSKD[page_BJ, slot_BJ], 0).float()
    v_BJKE = torch.where(seen_BJ[..., None, None], v_cache_NSKE[page_BJ, slot_BJ], 0).float()

    q_BKGD = q_BHD.reshape(num_requests, num_kv_heads, -1, head_dim).float()
    score_BKGJ = torch.einsum("bkgd,bjkd->bkgj", q_BKGD, k_BJKD) * scale
    sinks_KG = None if sinks_H is None else sinks_H.view(num_kv_heads, -1)
    weight_BKGJ = attention_weights(score_BKGJ, seen_BJ[:, None, None], softcap, sinks_KG)
    out_BHE.copy_(torch.einsum("bkgj,bjke->bkge", weight_BKGJ, v_BJKE).reshape(num_requests, num_heads, -1))


@op(
    mutates=("qkv_BX", "out_BY", "k_cache_NSKD", "v_cache_NSKE", "parts", "log_weights", "arrivals"),
    cuda="triton.write_and_decode:launch_write_and_decode",
)
def write_and_decode(
    qkv_BX: Tensor, out_BY: Tensor,
    q_weight_W: Tensor | None, k_weight_W: Tensor | None, table_PR: Tensor | None, positions_B: Tensor, locs_B: Tensor,
    eps: float, unit_offset: bool, interleaved: bool,
    k_cache_NSKD: Tensor, v_cache_NSKE: Tensor, page_table_RP: Tensor, rows_B: Tensor, seq_lens_B: Tensor,
    sinks_H: Tensor | None, scale: float, window: int | None, softcap: float | None,
    parts: Tensor, log_weights: Tensor, arrivals: Tensor, num_splits: int, order_B: Tensor | None, num_left: int,
) -> None:  # fmt: skip
    """`qk_rope_write`, then `decode`, over a packed projection: writes every row of `out_BY`, all heads of the output.

    A request's newest token stands at its length - 1: the kernel that does both does not look at `positions_B`.
    That kernel leaves the projection as it is. A request at the sink gets its own value as output,
    whatever the sink holds.

    With `num_left` the output is left in so many parts of each head, in float32, to be merged by `merge_left`. Then
    `arrivals` has a number for each part of each kv head at least.
    """
    turning = (q_weight_W, k_weight_W, table_PR, positions_B, locs_B, eps, unit_offset, interleaved)
    q_BHD = on_packed(qk_rope_write.reference, qkv_BX, *turning, caches=(k_cache_NSKD, v_cache_NSKE))
    v_head_dim = v_cache_NSKE.shape[3]
    out_BHE = q_BHD.new_empty(*q_BHD.shape[:2], v_head_dim) if num_left else out_BY.view(*q_BHD.shape[:2], v_head_dim)
    decode.reference(
        q_BHD, out_BHE, k_cache_NSKD, v_cache_NSKE, page_table_RP, rows_B, seq_lens_B,
        sinks_H, scale, window, softcap,
    )  # fmt: skip
    if num_left:
        parts_BHLE, log_weights_BHL = split_left(out_BY, num_left, v_head_dim)
        parts_BHLE.zero_()[:, :, 0] = out_BHE
        log_weights_BHL.fill_(NO_WEIGHT)[:, :, 0] = 0.0


def left_width(num_heads: int, head_dim: int, num_left: int) -> int:
    """Numbers of a row of attention's output in so many parts of each head, with a weight for each; 0: as it is."""
    return num_heads * (num_left * (head_dim + 1) if num_left else head_dim)


def split_left(left_BZ: Tensor, num_left: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """The parts of each head, and the logarithms of their weights to the base of 2: views of attention's output."""
    num_heads = left_BZ.shape[1] // (num_left * (head_dim + 1))
    parts_BHLE = left_BZ[:, : num_heads * num_left * head_dim].view(-1, num_heads, num_left, head_dim)
    return parts_BHLE, left_BZ[:, num_heads * num_left * head_dim :].view(-1, num_heads, num_left)


def head_dim_of(left_BZ: Tensor, num_left: int, num_inputs: int) -> int:
    """A row has, of each part, a number for each input of its reader and one for each head."""
    return num_inputs // (left_BZ.shape[1] // num_left - num_inputs)


def merge_left(left_BZ: Tensor, num_left: int, num_inputs: int) -> Tensor:
    """Attention's output from its parts, for a reader with so many inputs, all heads of the output."""
    parts_BHLE, log_weights_BHL = split_left(left_BZ, num_left, head_dim_of(left_BZ, num_left, num_inputs))
    weights_BHL = torch.softmax(log_weights_BHL * math.log(2.0), dim=2)
    return torch.einsum("bhl,bhle->bhe", weights_BHL, parts_BHLE).flatten(1)


@op(mutates=("out_THE", "parts", "log_weights", "arrivals"), cuda="triton.extend:launch_extend")
def extend(
    q_THD: Tensor, out_THE: Tensor, k_cache_NSKD: Tensor, v_cache_NSKE: Tensor,
    page_table_RP: Tensor, rows_B: Tensor, seq_lens_B: Tensor,
    sinks_H: Tensor | None, scale: float, window: int | None, softcap: float | None,
    query_starts_B: Tensor, query_lens_B: Tensor,
    parts: Tensor | None = None, log_weights: Tensor | None = None, arrivals: Tensor | None = None,
    num_splits: int = 1,
) -> None:  # fmt: skip
    """Writes the rows of `out_THE` that belong to requests.

    Request b's queries are rows [start, start + len) of q, and its last `len` keys are theirs: the query at position p
    sees keys p - window + 1 to p (all up to p where the window is None). Keys before them were cached by earlier
    steps. A request of length 1 decodes; one of length 0 does nothing. Those that have any are among the first T.

    The last four are those of `decode`: where they are given, the kernel shares requests of length 1 among programs.
    """
    page_size, num_kv_heads = k_cache_NSKD.shape[1:3]
    num_heads, head_dim = q_THD.shape[1:]
    spans = zip(rows_B.tolist(), seq_lens_B.tolist(), query_starts_B.tolist(), query_lens_B.tolist(), strict=True)
    for row, seq_len, start, num_queries in spans:
        if num_queries == 0:
            continue
        first_query = seq_len - num_queries
        first_key = 0 if window is None else max(0, first_query - window + 1)
        key_J = torch.arange(first_key, seq_len, device=q_THD.device)
        query_Q1 = torch.arange(first_query, seq_len, device=q_THD.device)[:, None]
        seen_QJ = (key_J <= query_Q1) if window is None else (key_J <= query_Q1) & (key_J > query_Q1 - window)
        page_J, slot_J = page_table_RP[row, key_J // page_size], key_J % page_size
        k_JKD, v_JKE = k_cache_NSKD[page_J, slot_J].float(), v_cache_NSKE[page_J, slot_J].float()

        q_QKGD = q_THD[start : start + num_queries].reshape(num_queries, num_kv_heads, -1, head_dim).float()
        score_KGQJ = torch.einsum("qkgd,jkd->kgqj", q_QKGD, k_JKD) * scale
        sinks_KG1 = None if sinks_H is None else sinks_H.view(num_kv_heads, -1, 1)
        weight_KGQJ = attention_weights(score_KGQJ, seen_QJ, softcap, sinks_KG1)
        out_QKGE = torch.einsum("kgqj,jke->qkge", weight_KGQJ, v_JKE)
        out_THE[start : start + num_queries] = out_QKGE.reshape(num_queries, num_heads, -1).to(out_THE.dtype)


@op(
    mutates=("qkv_TX", "out_TY", "k_cache_NSKD", "v_cache_NSKE", "parts", "log_weights", "arrivals"),
    cuda="triton.extend:launch_write_and_extend",
)
def write_and_extend(
    qkv_TX: Tensor, out_TY: Tensor,
    q_weight_W: Tensor | None, k_weight_W: Tensor | None, table_PR: Tensor | None, positions_T: Tensor, locs_T: Tensor,
    eps: float, unit_offset: bool, interleaved: bool,
    k_cache_NSKD: Tensor, v_cache_NSKE: Tensor, page_table_RP: Tensor, rows_B: Tensor, seq_lens_B: Tensor,
    sinks_H: Tensor | None, scale: float, window: int | None, softcap: float | None,
    query_starts_B: Tensor, query_lens_B: Tensor,
    parts: Tensor, log_weights: Tensor, arrivals: Tensor, num_splits: int,
) -> None:  # fmt: skip
    """`qk_rope_write`, then `extend`, over a packed projection, whose queries are rotated in place: writes the rows of
    `out_TY`, all heads of the output, that belong to requests. One op, so that a capture watches no views of heads.
    """
    turning = (q_weight_W, k_weight_W, table_PR, positions_T, locs_T, eps, unit_offset, interleaved)
    q_THD = on_packed(qk_rope_write.reference, qkv_TX, *turning, caches=(k_cache_NSKD, v_cache_NSKE))
    out_THE = out_TY.view(*q_THD.shape[:2], v_cache_NSKE.shape[3])
    extend.reference(
        q_THD, out_THE, k_cache_NSKD, v_cache_NSKE, page_table_RP, rows_B, seq_lens_B,
        sinks_H, scale, window, softcap, query_starts_B, query_lens_B,
    )  # fmt: skip


def attention_weights(score_J: Tensor, seen_J: Tensor, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """Weights of scaled scores [*, J] over the keys that are seen.

    `sinks` [*] (leading dims broadcast) is a logit that takes weight and has no value, so weights may sum to less
    than 1.
    """
    if softcap is not None:
        score_J = softcap * torch.tanh(score_J / softcap)
    return softmax_with_sinks(score_J.masked_fill(~seen_J, float("-inf")), sinks)
