# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `decode`: the keys a request can see are split over programs, and the last to finish merges.

A program takes one request, one kv head and one split. All query heads of the kv head share each key it loads. Splits
are cut from the keys in the window, not from the sequence, so a window layer costs the same at any context. Programs
whose split is empty exit at once: how many there are is fixed when a graph is captured, lengths are not.

No program waits for another: each stores its part and counts itself in; the program that counts last reads all parts,
in the order of the splits, so the sum has the same bits in every run. One program reads slowly, so many splits merge in
groups, all groups at the same time, and then the groups.

Shapes: M query rows of a program (the G heads of its kv head, padded), J keys of a block, D head dim of q and k,
E head dim of v, H query heads (those of a program when merging), X splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from playhead.kernels.sizes import ceil_div, next_power_of_2
from playhead.kernels.splits import MERGE_ELEMENTS, MERGE_PARTS, KeysPerSplit, keys_per_split, splits_per_group
from playhead.kernels.triton.arrivals import count_in
from playhead.kernels.triton.decode_tiles import DecodeTiles, decode_tiles, rows_of_dot
from playhead.kernels.triton.dependent import after_upstream_if, dependent, let_downstream_start
from playhead.kernels.triton.scores import LOG2_E, NO_SCORE, attend_block, key_pages, load_rows, row_places

MIN_DOT_DEPTH = 16  # what a tensor core instruction takes at least
MOST_KEYS_OF_A_PART = 128  # of a split that is a part by itself: with more keys, splits merge


@triton.jit
def merge_parts(
    parts, log_weights, head_H, live_H, num_splits, first, step, count,
    E: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Parts first, first + step, ... of these heads as one: `count` of them, BLOCK_X at a time, in order.

    Other programs wrote the parts during this launch, so loads go past the first-level cache (".cg"). A thread has the
    same numbers of every part, so no sum takes a barrier.
    """
    dim_E = tl.arange(0, BLOCK_E)
    top_H = tl.full([BLOCK_H], NO_SCORE, tl.float32)
    sum_H = tl.zeros([BLOCK_H], tl.float32)
    acc_HE = tl.zeros([BLOCK_H, BLOCK_E], tl.float32)
    for done in range(0, count, BLOCK_X):
        parts_HE, log_weights_H = (), ()
        for i in tl.static_range(BLOCK_X):
            part_H = head_H * num_splits + first + (done + i) * step
            has_part_H = live_H & (done + i < count)
            mask_HE = has_part_H[:, None] & (dim_E < E)[None, :]
            place_HE = part_H[:, None] * E + dim_E[None, :]
            log_weight_H = tl.load(log_weights + part_H, mask=has_part_H, other=NO_SCORE, cache_modifier=".cg")
            part_HE = tl.load(parts + place_HE, mask=mask_HE, other=0.0, cache_modifier=".cg")
            log_weights_H += (log_weight_H,)  # type: ignore[assignment]
            parts_HE += (part_HE,)  # type: ignore[assignment]
        new_top_H = top_H
        for i in tl.static_range(BLOCK_X):
            new_top_H = tl.maximum(new_top_H, log_weights_H[i])
        fade_H = tl.exp2(top_H - new_top_H)
        sum_H *= fade_H
        acc_HE *= fade_H[:, None]
        for i in tl.static_range(BLOCK_X):
            weight_H = tl.exp2(log_weights_H[i] - new_top_H)
            sum_H += weight_H
            acc_HE += parts_HE[i] * weight_H[:, None]
        top_H = new_top_H
    return acc_HE * (1.0 / sum_H)[:, None], top_H, sum_H


@triton.jit
def as_part(top_M, sum_M, acc_ME, live_M):
    """What a split has found, normed by its own sum, and the logarithm of its weight."""
    sum_M = tl.where(live_M, sum_M, 1.0)
    return acc_ME * (1.0 / sum_M)[:, None], top_M + tl.log2(sum_M)


@triton.jit
def _store_rows(out, row_M, live_M, value_ME, E: tl.constexpr, BLOCK_E: tl.constexpr):
    dim_E = tl.arange(0, BLOCK_E)
    mask_ME = live_M[:, None] & (dim_E < E)[None, :]
    tl.store(out + row_M[:, None] + dim_E[None, :], value_ME.to(out.dtype.element_ty), mask=mask_ME)


@triton.jit
def store_part(parts, log_weights, part_M, live_M, value_ME, log_weight_M, E: tl.constexpr, BLOCK_E: tl.constexpr):
    _store_rows(parts, part_M * E, live_M, value_ME, E, BLOCK_E)
    tl.store(log_weights + part_M, log_weight_M, mask=live_M)


@triton.jit
def load_block(
    k_cache, v_cache, page_J, key_J, live_J, k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, SAME_STRIDES: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Keys and values of one block, which are on these pages."""
    k_place_J = row_places(page_J, key_J, k_page, k_slot, PAGE_SIZE)
    v_place_J = k_place_J if SAME_STRIDES else row_places(page_J, key_J, v_page, v_slot, PAGE_SIZE)
    return load_rows(k_cache, k_place_J, live_J, D, BLOCK_D), load_rows(v_cache, v_place_J, live_J, E, BLOCK_E)


@triton.jit
def attend_blocks(
    q_MD, k_cache, v_cache, table_row, page_J, first, last, top_M, sum_M, acc_ME, scale, softcap,
    k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, SAME_STRIDES: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Keys [first, last), the first block of which is on these pages, into the running softmax."""
    index_J = tl.arange(0, BLOCK_J)
    for block in tl.range(first, last, BLOCK_J):
        key_J = block + index_J
        live_J = key_J < last
        k_JD, v_JE = load_block(
            k_cache, v_cache, page_J, key_J, live_J, k_page, k_slot, v_page, v_slot,
            D, E, PAGE_SIZE, SAME_STRIDES, BLOCK_D, BLOCK_E,
        )  # fmt: skip
        # One block ahead: looked up in the iteration that uses them, the tables would cost the pipeline its depth.
        page_J = key_pages(table_row, key_J + BLOCK_J, key_J + BLOCK_J < last, PAGE_SIZE)
        top_M, sum_M, acc_ME = attend_block(
            q_MD, k_JD, v_JE, live_J[None, :], top_M, sum_M, acc_ME, scale, softcap, HAS_SOFTCAP, True
        )
    return top_M, sum_M, acc_ME


@triton.jit
def _merge_and_store(
    out_row, out_head, parts, log_weights, arrivals, split, num_live, num_splits, group_size, heads, request,
    H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, NUM_M_BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The last program of each group of splits merges the group, whose first part it overwrites; then the last of these
    merges the groups. A loop does both, so that the code stands here once.

    Which parts make a group does not depend on who is last.
    """
    # The dot needs 16 rows; the merge has only as many as there are heads.
    in_group_H = (heads % NUM_M_BLOCKS) * BLOCK_M + tl.arange(0, BLOCK_H)
    live_H = in_group_H < G
    head_H = heads // NUM_M_BLOCKS * G + in_group_H
    request_head_H = request * H + head_H
    num_groups, group = 1, 0
    if num_live > group_size:  # or the two divisions would keep most programs for nothing
        num_groups, group = tl.cdiv(num_live, group_size), split // group_size
    leader = group * group_size
    counters = arrivals + (request * tl.num_programs(0) + heads) * (tl.cdiv(num_splits, group_size) + 1)
    first, step, count = leader, 1, tl.minimum(num_live - leader, group_size)
    is_final = num_groups == 1
    merges = count_in(counters + 1 + group, count)
    while merges:
        value_HE, top_H, sum_H = merge_parts(
            parts, log_weights, request_head_H, live_H, num_splits, first, step, count, E, BLOCK_X, BLOCK_H, BLOCK_E
        )
        if is_final:
            _store_rows(out_row, head_H * out_head, live_H, value_HE, E, BLOCK_E)
            merges = False
        else:
            tl.debug_barrier()  # no thread may still read the part that is overwritten
            leader_H = request_head_H * num_splits + leader
            store_part(parts, log_weights, leader_H, live_H, value_HE, top_H + tl.log2(sum_H), E, BLOCK_E)
            merges, is_final = count_in(counters, num_groups), True
            first, step, count = 0, group_size, num_groups


@triton.jit
def share_of(
    seq_len, num_keys, split, num_splits, whole_keys, least_keys, few_splits, most_keys, BLOCK_J: tl.constexpr
):
    """Which keys a split takes, [first, last), and how many splits take any: `KeysPerSplit` of `splits.py`.

    Window 512, 600 keys, 4 splits: keys 88 to 599, 128 for each. One split is there even for no keys.
    """
    per_split = tl.maximum(tl.cdiv(num_keys, num_splits), tl.minimum(tl.cdiv(num_keys, few_splits), most_keys))
    per_split = tl.where(num_keys <= whole_keys, num_keys, tl.maximum(per_split, least_keys))
    # Whole blocks per split: a split that ends inside a block would read the rest of it for nothing.
    per_split = tl.maximum(tl.cdiv(per_split, BLOCK_J), 1) * BLOCK_J
    first = seq_len - num_keys + split * per_split
    return first, tl.minimum(first + per_split, seq_len), tl.maximum(tl.cdiv(num_keys, per_split), 1)


@triton.jit
def keep_share(
    top_M, sum_M, acc_ME, out_row, parts, log_weights, arrivals, heads, request, split, num_live, num_splits,
    group_size, out_head,
    H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, NUM_M_BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """What a split has found is the output, where no other has any keys; else it is merged."""
    in_group_M = (heads % NUM_M_BLOCKS) * BLOCK_M + tl.arange(0, BLOCK_M)
    live_M = in_group_M < G
    head_M = heads // NUM_M_BLOCKS * G + in_group_M
    value_ME, log_weight_M = as_part(top_M, sum_M, acc_ME, live_M)
    if num_live == 1:
        _store_rows(out_row, head_M * out_head, live_M, value_ME, E, BLOCK_E)
    else:
        part_M = (request * H + head_M) * num_splits + split
        store_part(parts, log_weights, part_M, live_M, value_ME, log_weight_M, E, BLOCK_E)
        _merge_and_store(
            out_row, out_head, parts, log_weights, arrivals, split, num_live,
            num_splits, group_size, heads, request, H, G, E, NUM_M_BLOCKS, BLOCK_M, BLOCK_X, BLOCK_H, BLOCK_E,
        )  # fmt: skip


@triton.jit
def request_of(order, HAS_ORDER: tl.constexpr):
    """The request of a program: programs start in their order, and the longest requests are to start first."""
    if HAS_ORDER:
        return tl.load(order + tl.program_id(1))
    return tl.program_id(1)


@triton.jit
def load_queries(
    q_row, q_head, heads, G: tl.constexpr, D: tl.constexpr, NUM_M_BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The queries of a block of heads, which rope has turned."""
    in_group_M, dim_D = (heads % NUM_M_BLOCKS) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    head_M = heads // NUM_M_BLOCKS * G + in_group_M
    mask_MD = (in_group_M < G)[:, None] & (dim_D < D)[None, :]
    # "volatile" keeps the load here: a compiler would move it behind the tables, and their latencies would add up.
    return tl.load(q_row + (head_M * q_head)[:, None] + dim_D[None, :], mask=mask_MD, other=0.0, volatile=True)


@triton.jit
def start_of_softmax(
    sinks, heads, split, G: tl.constexpr, NUM_M_BLOCKS: tl.constexpr, HAS_SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """A softmax over no keys, or over a sink: a key without a value. The first split brings it in: it counts once."""
    top_M = tl.full([BLOCK_M], NO_SCORE, tl.float32)
    sum_M = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        in_group_M = (heads % NUM_M_BLOCKS) * BLOCK_M + tl.arange(0, BLOCK_M)
        has_sink_M = (in_group_M < G) & (split == 0)
        sink_M = tl.load(sinks + heads // NUM_M_BLOCKS * G + in_group_M, mask=has_sink_M, other=0.0).to(tl.float32)
        top_M, sum_M = tl.where(has_sink_M, sink_M * LOG2_E, top_M), tl.where(has_sink_M, 1.0, 0.0)
    return top_M, sum_M, tl.zeros([BLOCK_M, BLOCK_E], tl.float32)


# They differ by batch size, and one binary must serve all.
SAME_BINARY = ["num_splits", "group_size", "whole_keys", "least_keys", "few_splits", "most_keys"]


@triton.jit(do_not_specialize=SAME_BINARY)
def decode_kernel(
    q, out, k_cache, v_cache, page_table, rows, seq_lens, order, query_starts, query_lens,
    sinks, parts, log_weights, arrivals,
    scale, softcap, num_splits, group_size, whole_keys, least_keys, few_splits, most_keys,
    q_token, q_head, out_token, out_head, k_page, k_slot, k_head, v_page, v_slot, v_head, table_stride,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr,
    SAME_STRIDES: tl.constexpr, WINDOW: tl.constexpr, NUM_M_BLOCKS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_QUERIES: tl.constexpr, HAS_ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_X: tl.constexpr,
    BLOCK_H: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A decode step, whose query b is request b's; or the requests that have one query, of a step with queries."""
    let_downstream_start(DEPENDENT)
    heads = tl.program_id(0)  # a block of BLOCK_M query heads of one kv head
    request = request_of(order, HAS_ORDER)
    split = tl.program_id(2)  # the slowest: splits without keys come last, and keep no others waiting
    kv_head = (heads // NUM_M_BLOCKS).to(tl.int64)
    seq_len = tl.load(seq_lens + request, volatile=True)  # both at once, as the query below
    row = tl.load(rows + request, volatile=True).to(tl.int64)
    num_keys = tl.minimum(seq_len, WINDOW) if WINDOW > 0 else seq_len
    first, last, num_live = share_of(
        seq_len, num_keys, split, num_splits, whole_keys, least_keys, few_splits, most_keys, BLOCK_J
    )
    token = request.to(tl.int64)
    if HAS_QUERIES:
        token = tl.load(query_starts + request).to(tl.int64)
        num_live = tl.where(tl.load(query_lens + request) == 1, num_live, 0)
    table_row = page_table + row * table_stride
    key_J = first + tl.arange(0, BLOCK_J)
    page_J = key_pages(table_row, key_J, key_J < last, PAGE_SIZE)
    has_work = split < num_live
    after_upstream_if(has_work | (not HAS_QUERIES), DEPENDENT)
    if has_work:
        q_MD = load_queries(q + token * q_token, q_head, heads, G, D, NUM_M_BLOCKS, BLOCK_M, BLOCK_D)
        top_M, sum_M, acc_ME = start_of_softmax(sinks, heads, split, G, NUM_M_BLOCKS, HAS_SINKS, BLOCK_M, BLOCK_E)
        top_M, sum_M, acc_ME = attend_blocks(
            q_MD, k_cache + kv_head * k_head, v_cache + kv_head * v_head, table_row, page_J, first, last,
            top_M, sum_M, acc_ME, scale, softcap, k_page, k_slot, v_page, v_slot,
            D, E, PAGE_SIZE, SAME_STRIDES, HAS_SOFTCAP, BLOCK_D, BLOCK_E, BLOCK_J,
        )  # fmt: skip
        keep_share(
            top_M, sum_M, acc_ME, out + token * out_token, parts, log_weights, arrivals, heads, request, split,
            num_live, num_splits, group_size, out_head,
            H, G, E, NUM_M_BLOCKS, BLOCK_M, BLOCK_E, BLOCK_X, BLOCK_H,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a launch is cut other than the tables say, for tests and measurements."""

    tiles: DecodeTiles | None = None
    group_size: int | None = None
    keys: KeysPerSplit | None = None


AS_MEASURED = Cut()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What launches over the same memory share: `numbers` from `num_splits` on, `strides` from `k_page` on."""

    grid: tuple[int, int, int]
    numbers: tuple[int, ...]
    strides: tuple[int, ...]
    options: dict[str, Any]

    @classmethod
    def of(
        cls, k_cache_NSKD: Tensor, v_cache_NSKE: Tensor, page_table_RP: Tensor, rows_B: Tensor, *,
        num_heads: int, num_splits: int, window: int | None, cut: Cut,
        beside_prompts: bool = False, num_left: int = 0,
    ) -> Launch:  # fmt: skip
        (num_kv_heads, head_dim), v_head_dim = k_cache_NSKD.shape[2:], v_cache_NSKE.shape[3]
        num_requests, group = rows_B.shape[0], num_heads // num_kv_heads
        num_programs = num_requests * num_kv_heads
        block_m = rows_of_dot(group)
        tiles = cut.tiles or decode_tiles(
            head_dim, v_head_dim, num_programs=num_programs, num_splits=num_splits, num_rows=block_m
        )
        num_m_blocks = ceil_div(group, block_m)
        block_h = min(next_power_of_2(group), block_m)
        block_e = max(next_power_of_2(v_head_dim), MIN_DOT_DEPTH)
        merged = MERGE_ELEMENTS * min(tiles.num_warps, 4) // 4  # at a time: 64 registers of each thread
        k_strides, v_strides = k_cache_NSKD.stride()[:3], v_cache_NSKE.stride()[:3]
        part_elements = group * v_head_dim
        keys = cut.keys or keys_per_split(num_programs, tiles.block_j, part_elements, beside_prompts=beside_prompts)
        if num_left:  # a split of several blocks saves no merge, but more splits than parts do merge
            keys = keys._replace(whole=tiles.block_j, few=num_left, most=MOST_KEYS_OF_A_PART)
        return cls(
            grid=(num_kv_heads * num_m_blocks, num_requests, num_splits),
            numbers=(num_splits, cut.group_size or splits_per_group(num_splits, part_elements), *keys),
            strides=(*k_strides, *v_strides, page_table_RP.stride(0)),
            options={
                "H": num_heads, "G": group, "D": head_dim, "E": v_head_dim, "PAGE_SIZE": k_cache_NSKD.shape[1],
                "SAME_STRIDES": k_strides == v_strides, "WINDOW": window or 0, "NUM_M_BLOCKS": num_m_blocks,
                "BLOCK_M": block_m, "BLOCK_D": max(next_power_of_2(head_dim), MIN_DOT_DEPTH),
                "BLOCK_E": block_e, "BLOCK_J": tiles.block_j, "BLOCK_H": block_h,
                "BLOCK_X": max(min(merged // (block_h * block_e), MERGE_PARTS), 1),
                "num_warps": tiles.num_warps, "num_stages": tiles.num_stages, "maxnreg": tiles.max_registers,
            },
        )  # fmt: skip


def launch_decode(*call: Any, cut: Cut = AS_MEASURED) -> None:
    *rest, order_B = call
    launch_decode_rows(*rest, None, None, order_B=order_B, cut=cut)


def launch_decode_rows(*call: Any, order_B: Tensor | None = None, cut: Cut = AS_MEASURED) -> None:
    """`launch_decode` for the requests of a step over tokens that have one query: where queries are comes last."""
    q_THD, out_THE, *memory, seq_lens_B, sinks_H, scale, window, softcap = call[:-6]
    *scratch, num_splits, starts_B, lens_B = call[-6:]
    launch = Launch.of(
        *memory, num_heads=q_THD.shape[1], num_splits=num_splits, window=window, cut=cut,
        beside_prompts=lens_B is not None,
    )  # fmt: skip
    num_blocks, num_places, _ = launch.grid
    # Every request of a step has a token at least: in a small step over tokens, places behind these have no request.
    num_requests = num_places if lens_B is None else min(num_places, q_THD.shape[0])
    decode_kernel[num_blocks, num_requests, num_splits](
        q_THD, out_THE, *memory, seq_lens_B, order_B, starts_B, lens_B, sinks_H, *scratch,
        scale, 0.0 if softcap is None else softcap, *launch.numbers,
        *q_THD.stride()[:2], *out_THE.stride()[:2], *launch.strides,
        HAS_SOFTCAP=softcap is not None, HAS_SINKS=sinks_H is not None, HAS_QUERIES=lens_B is not None,
        HAS_ORDER=order_B is not None, **launch.options, **dependent(q_THD),
    )  # fmt: skip
