# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels of `attend_in_order`: attention whose bits depend on a query and its keys, and on nothing beside them.

Keys stand in blocks and segments that begin at multiples of BLOCK_J and SEGMENT of their position. A query takes the
blocks of a segment in ascending order into a fresh running softmax, and the segments in ascending order into its
result. There are three ways to do this, and they give the same bits. A request with one query has a program for each
segment, and the last to finish takes the segments together; or, in a step of many such requests whose segments are
few, one program for all of them. Of a request with many queries a program takes a tile through all segments. A block
that a query cannot see leaves its numbers as they are, to the bit.

That a tile of 16 rows and one of 64 agree rests on three things. Tensor cores add up the same for either, so weights
are summed by them too: the order of `tl.sum` follows the tile. The largest of some scores is the same in any order.
Everything else is done on each number by itself, and without fused multiply-adds, which a compiler places as it likes.

Shapes: M rows of a tile (token by token, the G heads of each), J keys of a block, D head dim of q and k,
E head dim of v, H query heads, X equal columns of a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import triton
import triton.language as tl

from playhead.kernels.sizes import ceil_div, next_power_of_2
from playhead.kernels.splits import NUM_SMS, WIDE_HEAD
from playhead.kernels.triton.arrivals import count_in
from playhead.kernels.triton.decode import load_queries
from playhead.kernels.triton.decode_tiles import rows_of_dot
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start
from playhead.kernels.triton.extend import (
    MIN_DOT_DEPTH,
    first_tiles,
    num_programs,
    request_of_tile,
    requests_block,
    tiles_of_step,
)
from playhead.kernels.triton.scores import LOG2_E, NO_SCORE, key_pages, load_rows, row_places, scaled_scores

SEGMENT = 256  # keys: a request of 1,024 has work for four programs
SUM_COLUMNS = tl.constexpr(16)  # the fewest that a matrix instruction makes


@triton.jit
def _fresh_softmax(BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr):
    """A running softmax that has seen no key: the maximum, equal columns of the sum of weights, the weighted values."""
    top_M = tl.full([BLOCK_M], NO_SCORE, tl.float32)
    return top_M, tl.zeros([BLOCK_M, SUM_COLUMNS], tl.float32), tl.zeros([BLOCK_M, BLOCK_E], tl.float32)


@triton.jit
def _attend_block(
    q_MD, position_M, k_cache, v_cache, page_J, key_J, last, least, top_M, sum_MX, acc_ME, scale, softcap,
    k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """One block of keys, which are on these pages, into the running softmax. Keys before `least` are not read.

    `input_precision` only concerns float32, which tests use.
    """
    seen_MJ = (key_J < last)[None, :] & (key_J[None, :] <= position_M[:, None])
    live_J = (key_J >= least) & (key_J < last)
    if WINDOW > 0:
        seen_MJ &= key_J[None, :] > position_M[:, None] - WINDOW
    k_place_J = row_places(page_J, key_J, k_page, k_slot, PAGE_SIZE)
    v_place_J = row_places(page_J, key_J, v_page, v_slot, PAGE_SIZE)
    k_JD = load_rows(k_cache, k_place_J, live_J, D, BLOCK_D)
    v_JE = load_rows(v_cache, v_place_J, live_J, E, BLOCK_E)
    score_MJ = tl.dot(q_MD, tl.trans(k_JD), input_precision="ieee")
    score_MJ = scaled_scores(score_MJ, scale, softcap, HAS_SOFTCAP)
    score_MJ = tl.where(seen_MJ, score_MJ, float("-inf"))
    new_top_M = tl.maximum(top_M, tl.max(score_MJ, 1))
    weight_MJ = tl.exp2(score_MJ - new_top_M[:, None]).to(v_JE.dtype)
    fade_M1 = tl.exp2(top_M - new_top_M)[:, None]
    one_JX = tl.full([BLOCK_J, SUM_COLUMNS], 1.0, v_JE.dtype)
    sum_MX = tl.dot(weight_MJ, one_JX, sum_MX * fade_M1, input_precision="ieee")
    acc_ME = tl.dot(weight_MJ, v_JE, acc_ME * fade_M1, input_precision="ieee")
    return new_top_M, sum_MX, acc_ME


@triton.jit
def _attend_segment(
    q_MD, position_M, k_cache, v_cache, table_row, first, last, least, scale, softcap, k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Keys [first, last) of one segment into a fresh running softmax."""
    top_M, sum_MX, acc_ME = _fresh_softmax(BLOCK_M, BLOCK_E)
    key_J = first + tl.arange(0, BLOCK_J)
    page_J = key_pages(table_row, key_J, (key_J >= least) & (key_J < last), PAGE_SIZE)
    for _ in tl.range(first, last, BLOCK_J):
        page_now_J = page_J
        # One block ahead: looked up in the iteration that uses them, the tables would cost the pipeline its depth.
        next_J = key_J + BLOCK_J
        page_J = key_pages(table_row, next_J, (next_J >= least) & (next_J < last), PAGE_SIZE)
        top_M, sum_MX, acc_ME = _attend_block(
            q_MD, position_M, k_cache, v_cache, page_now_J, key_J, last, least, top_M, sum_MX, acc_ME, scale, softcap,
            k_page, k_slot, v_page, v_slot, D, E, PAGE_SIZE, WINDOW, HAS_SOFTCAP, BLOCK_D, BLOCK_E, BLOCK_J,
        )  # fmt: skip
        key_J = next_J
    return top_M, tl.max(sum_MX, 1), acc_ME  # equal columns: the largest is any


@triton.jit
def _attend_segments(
    q_MD, position_M, k_cache, v_cache, table_row, first, last, least, top_M, sum_M, acc_ME, scale, softcap,
    k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    SEGMENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Keys [first, last) into a result, segment by segment, and all in one loop: loads go on where a segment ends."""
    part_top_M, part_sum_MX, part_ME = _fresh_softmax(BLOCK_M, BLOCK_E)
    index_J = tl.arange(0, BLOCK_J)
    page_J = key_pages(table_row, first + index_J, (first + index_J >= least) & (first + index_J < last), PAGE_SIZE)
    for block in tl.range(first, last, BLOCK_J):
        if block % SEGMENT == 0:
            top_M, sum_M, acc_ME = _merged(top_M, sum_M, acc_ME, part_top_M, tl.max(part_sum_MX, 1), part_ME)
            part_top_M, part_sum_MX, part_ME = _fresh_softmax(BLOCK_M, BLOCK_E)
        key_J, page_now_J = block + index_J, page_J
        next_J = key_J + BLOCK_J
        page_J = key_pages(table_row, next_J, (next_J >= least) & (next_J < last), PAGE_SIZE)
        part_top_M, part_sum_MX, part_ME = _attend_block(
            q_MD, position_M, k_cache, v_cache, page_now_J, key_J, last, least, part_top_M, part_sum_MX, part_ME,
            scale, softcap, k_page, k_slot, v_page, v_slot,
            D, E, PAGE_SIZE, WINDOW, HAS_SOFTCAP, BLOCK_D, BLOCK_E, BLOCK_J,
        )  # fmt: skip
    return _merged(top_M, sum_M, acc_ME, part_top_M, tl.max(part_sum_MX, 1), part_ME)


@triton.jit
def _merged(top_M, sum_M, acc_ME, part_top_M, part_sum_M, part_ME):
    """A result with the next segment's. A segment that a row has not seen leaves the row's bits as they are."""
    new_top_M = tl.maximum(top_M, part_top_M)
    fade_M = tl.exp2(top_M - new_top_M)
    part_fade_M = tl.exp2(part_top_M - new_top_M)
    acc_ME = acc_ME * fade_M[:, None] + part_ME * part_fade_M[:, None]
    return new_top_M, sum_M * fade_M + part_sum_M * part_fade_M, acc_ME


@triton.jit
def _nothing_seen(sinks, head_M, live_M, HAS_SINKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr):
    """A result before its first segment. A sink is a key without a value."""
    top_M = tl.full([BLOCK_M], NO_SCORE, tl.float32)
    sum_M = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        top_M = tl.load(sinks + head_M, mask=live_M, other=0.0).to(tl.float32) * LOG2_E
        sum_M += 1.0
    return top_M, sum_M, tl.zeros([BLOCK_M, BLOCK_E], tl.float32)


@triton.jit
def _store_result(out, place_M, live_M, sum_M, acc_ME, E: tl.constexpr, BLOCK_E: tl.constexpr):
    dim_E = tl.arange(0, BLOCK_E)
    out_ME = acc_ME / tl.where(live_M, sum_M, 1.0)[:, None]
    mask_ME = live_M[:, None] & (dim_E < E)[None, :]
    tl.store(out + place_M[:, None] + dim_E[None, :], out_ME.to(out.dtype.element_ty), mask=mask_ME)


@triton.jit
def _store_part(parts, tops_sums, part_M, live_M, top_M, sum_M, part_ME, E: tl.constexpr, BLOCK_E: tl.constexpr):
    dim_E = tl.arange(0, BLOCK_E)
    mask_ME = live_M[:, None] & (dim_E < E)[None, :]
    tl.store(parts + (part_M * E)[:, None] + dim_E[None, :], part_ME, mask=mask_ME)
    tl.store(tops_sums + part_M * 2, top_M, mask=live_M)
    tl.store(tops_sums + part_M * 2 + 1, sum_M, mask=live_M)


@triton.jit
def _load_part(parts, tops_sums, part_M, live_M, E: tl.constexpr, BLOCK_E: tl.constexpr):
    """A part that another program wrote during this launch: loads go past the first-level cache (".cg")."""
    dim_E = tl.arange(0, BLOCK_E)
    mask_ME = live_M[:, None] & (dim_E < E)[None, :]
    part_ME = tl.load(parts + (part_M * E)[:, None] + dim_E[None, :], mask=mask_ME, other=0.0, cache_modifier=".cg")
    top_M = tl.load(tops_sums + part_M * 2, mask=live_M, other=NO_SCORE, cache_modifier=".cg")
    sum_M = tl.load(tops_sums + part_M * 2 + 1, mask=live_M, other=0.0, cache_modifier=".cg")
    return top_M, sum_M, part_ME


@triton.jit(do_not_specialize=["num_requests"])  # it differs by step, and one binary must serve all of them
def ordered_tiles_kernel(
    q, out, k_cache, v_cache, page_table, rows, seq_lens, query_starts, query_lens, sinks, scale, softcap,
    num_requests, q_token, q_head, out_token, out_head, k_page, k_slot, k_head, v_page, v_slot, v_head, table_stride,
    G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    TOKENS: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, SEGMENT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_B: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The requests with more than one query."""
    let_downstream_start(DEPENDENT)
    kv_head = tl.program_id(1)
    # Late tiles see the most keys: started first, they are not what everybody waits for at the end.
    first_B = first_tiles(query_starts, num_requests, TOKENS, BLOCK_B)
    tile = tiles_of_step(first_B, query_lens, TOKENS, BLOCK_B) - 1 - tl.program_id(0)
    after_upstream(DEPENDENT)
    while tile >= 0:
        request = request_of_tile(tile, first_B)
        num_queries, start = tl.load(query_lens + request), tl.load(query_starts + request)
        first_token = (tile - start // TOKENS - request) * TOKENS
        if (num_queries > 1) & (first_token < num_queries):
            num_tokens = tl.minimum(num_queries - first_token, TOKENS)
            first_position = tl.load(seq_lens + request) - num_queries + first_token
            token_M = tl.arange(0, BLOCK_M) // G
            head_M = kv_head * G + tl.arange(0, BLOCK_M) % G
            live_M = token_M < num_tokens
            row_M = (start + first_token + token_M).to(tl.int64)
            dim_D = tl.arange(0, BLOCK_D)
            q_place = q + (row_M * q_token + head_M * q_head)[:, None] + dim_D[None, :]
            q_MD = tl.load(q_place, mask=live_M[:, None] & (dim_D < D)[None, :], other=0.0)
            table_row = page_table + tl.load(rows + request).to(tl.int64) * table_stride
            end = first_position + num_tokens
            least = tl.maximum(first_position - WINDOW + 1, 0) if WINDOW > 0 else 0
            top_M, sum_M, acc_ME = _nothing_seen(sinks, head_M, live_M, HAS_SINKS, BLOCK_M, BLOCK_E)
            for segment in range(least // SEGMENT, tl.cdiv(end, SEGMENT)):
                part_top_M, part_sum_M, part_ME = _attend_segment(
                    q_MD, first_position + token_M,
                    k_cache + kv_head.to(tl.int64) * k_head, v_cache + kv_head.to(tl.int64) * v_head, table_row,
                    tl.maximum(segment * SEGMENT, least // BLOCK_J * BLOCK_J),
                    tl.minimum((segment + 1) * SEGMENT, end), least, scale, softcap, k_page, k_slot, v_page, v_slot,
                    D, E, PAGE_SIZE, WINDOW, HAS_SOFTCAP, BLOCK_M, BLOCK_D, BLOCK_E, BLOCK_J,
                )  # fmt: skip
                top_M, sum_M, acc_ME = _merged(top_M, sum_M, acc_ME, part_top_M, part_sum_M, part_ME)
            _store_result(out, row_M * out_token + head_M * out_head, live_M, sum_M, acc_ME, E, BLOCK_E)
        tile -= tl.num_programs(0)


@triton.jit
def _num_segments(seq_len, WINDOW: tl.constexpr, SEGMENT: tl.constexpr):
    """Segments that the last of so many tokens sees something of."""
    least = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0
    return tl.cdiv(seq_len, SEGMENT) - least // SEGMENT


@triton.jit
def _first_part(seq_lens, request, WINDOW: tl.constexpr, SEGMENT: tl.constexpr):
    """Where the parts of a request begin: behind those of all requests before it."""
    first = 0
    for block in range(0, request, 128):
        request_B = block + tl.arange(0, 128)
        len_B = tl.load(seq_lens + request_B, mask=request_B < request, other=0)
        first += tl.sum(_num_segments(len_B, WINDOW, SEGMENT))
    return first


@triton.jit
def _fold_parts(
    top_M, sum_M, acc_ME, parts, tops_sums, first_M, num_segments, live_M,
    H: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """A result with the parts of all its segments, in ascending order."""
    for index in range(num_segments):
        part_top_M, part_sum_M, part_ME = _load_part(parts, tops_sums, first_M + index * H, live_M, E, BLOCK_E)
        top_M, sum_M, acc_ME = _merged(top_M, sum_M, acc_ME, part_top_M, part_sum_M, part_ME)
    return top_M, sum_M, acc_ME


@triton.jit
def _programs_that_share(
    seq_lens, request, num_segments, num_parts, WINDOW: tl.constexpr, SEGMENT: tl.constexpr
):  # fmt: skip
    """How many programs share a request's segments: one, where their parts have no room. And where the parts begin."""
    num_sharing = tl.minimum(num_segments, tl.num_programs(1))
    first_part = 0
    if num_sharing > 1:
        first_part = _first_part(seq_lens, request, WINDOW, SEGMENT)
        num_sharing = tl.where(first_part + num_segments <= num_parts, num_sharing, 1)
    return num_sharing, first_part


@triton.jit
def _attend_shared(
    q_MD, position_M, k_cache, v_cache, table_row, seq_len, least, num_segments, num_sharing, top_M, sum_M, acc_ME,
    live_M, part_M, parts, tops_sums, arrival, scale, softcap, k_page, k_slot, v_page, v_slot,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, SEGMENT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Program s of S takes segments s, s + S, ... The last to finish, which this says first, has the result."""
    for index in range(tl.program_id(1), num_segments, num_sharing):
        segment = least // SEGMENT + index
        part_top_M, part_sum_M, part_ME = _attend_segment(
            q_MD, position_M, k_cache, v_cache, table_row,
            tl.maximum(segment * SEGMENT, least // BLOCK_J * BLOCK_J),
            tl.minimum((segment + 1) * SEGMENT, seq_len), least, scale, softcap, k_page, k_slot, v_page, v_slot,
            D, E, PAGE_SIZE, WINDOW, HAS_SOFTCAP, BLOCK_M, BLOCK_D, BLOCK_E, BLOCK_J,
        )  # fmt: skip
        if num_sharing > 1:
            _store_part(parts, tops_sums, part_M + index * H, live_M, part_top_M, part_sum_M, part_ME, E, BLOCK_E)
        else:
            top_M, sum_M, acc_ME = _merged(top_M, sum_M, acc_ME, part_top_M, part_sum_M, part_ME)
    is_last = num_sharing == 1
    if num_sharing > 1:
        is_last = count_in(arrival, num_sharing)
        if is_last:
            top_M, sum_M, acc_ME = _fold_parts(
                top_M, sum_M, acc_ME, parts, tops_sums, part_M, num_segments, live_M, H, E, BLOCK_E
            )
    return is_last, top_M, sum_M, acc_ME


@triton.jit(do_not_specialize=["num_parts"])
def ordered_decode_kernel(
    q, out, k_cache, v_cache, page_table, rows, seq_lens, query_starts, query_lens, sinks, parts, tops_sums, arrivals,
    scale, softcap, num_parts,
    q_token, q_head, out_token, out_head, k_page, k_slot, k_head, v_page, v_slot, v_head, table_stride,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    NUM_M_BLOCKS: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, SEGMENT: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The requests with one query. Programs share a request's segments, or without SHARES one takes them all."""
    let_downstream_start(DEPENDENT)
    heads, request = tl.program_id(0), tl.program_id(2)  # `heads`: a block of BLOCK_M query heads of one kv head
    # At once, and "volatile": a compiler would move each to its first use, and their latencies would add up.
    seq_len = tl.load(seq_lens + request, volatile=True)
    num_queries = tl.load(query_lens + request, volatile=True)
    token = tl.load(query_starts + request, volatile=True).to(tl.int64)
    row = tl.load(rows + request, volatile=True).to(tl.int64)
    num_segments = _num_segments(seq_len, WINDOW, SEGMENT)
    num_sharing = 1
    first_part = 0
    if SHARES:
        num_sharing, first_part = _programs_that_share(seq_lens, request, num_segments, num_parts, WINDOW, SEGMENT)
    after_upstream(DEPENDENT)
    if (num_queries == 1) & (tl.program_id(1) < num_sharing):
        kv_head = (heads // NUM_M_BLOCKS).to(tl.int64)
        in_group_M = (heads % NUM_M_BLOCKS) * BLOCK_M + tl.arange(0, BLOCK_M)
        live_M, head_M = in_group_M < G, kv_head * G + in_group_M
        q_MD = load_queries(q + token * q_token, q_head, heads, G, D, NUM_M_BLOCKS, BLOCK_M, BLOCK_D)
        table_row = page_table + row * table_stride
        least = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0
        position_M = tl.zeros([BLOCK_M], tl.int32) + (seq_len - 1)
        top_M, sum_M, acc_ME = _nothing_seen(sinks, head_M, live_M, HAS_SINKS, BLOCK_M, BLOCK_E)
        is_last = True
        if SHARES:
            is_last, top_M, sum_M, acc_ME = _attend_shared(
                q_MD, position_M, k_cache + kv_head * k_head, v_cache + kv_head * v_head, table_row, seq_len, least,
                num_segments, num_sharing, top_M, sum_M, acc_ME, live_M, first_part * H + head_M,
                parts, tops_sums, arrivals + request * tl.num_programs(0) + heads,
                scale, softcap, k_page, k_slot, v_page, v_slot,
                H, D, E, PAGE_SIZE, WINDOW, HAS_SOFTCAP, SEGMENT, BLOCK_M, BLOCK_D, BLOCK_E, BLOCK_J,
            )  # fmt: skip
        else:
            top_M, sum_M, acc_ME = _attend_segments(
                q_MD, position_M, k_cache + kv_head * k_head, v_cache + kv_head * v_head, table_row,
                least // BLOCK_J * BLOCK_J, seq_len, least, top_M, sum_M, acc_ME,
                scale, softcap, k_page, k_slot, v_page, v_slot,
                D, E, PAGE_SIZE, WINDOW, HAS_SOFTCAP, SEGMENT, BLOCK_M, BLOCK_D, BLOCK_E, BLOCK_J,
            )  # fmt: skip
        if is_last:
            _store_result(out, token * out_token + head_M * out_head, live_M, sum_M, acc_ME, E, BLOCK_E)


class OrderedTiles(NamedTuple):
    """How programs are cut: rows of queries, keys of a block, warps, and blocks of keys in flight."""

    block_m: int
    block_j: int
    num_warps: int
    num_stages: int


# By head dim, for bf16. The keys of a block decide the bits, so both kernels have the same.
TILES: Mapping[int, OrderedTiles] = MappingProxyType(
    {
        64: OrderedTiles(64, 64, 4, 3),
        128: OrderedTiles(64, 64, 4, 3),
        256: OrderedTiles(64, 64, 8, 2),  # with four warps, hundreds of bytes of each thread spill
        512: OrderedTiles(64, 32, 8, 2),
    }
)
PROGRAMS_PER_SM = 8  # of a decode step, those that find no segment included
FEW_SEGMENTS = 3  # what a window of 512 keys touches
ENOUGH_PROGRAMS = 24  # for a device to be busy without sharing so few segments: with more, merging costs more


def ordered_tiles(width: int, itemsize: int) -> OrderedTiles:
    """The tiles for heads of `width`, whatever the step."""
    tiles = TILES[min(max(next_power_of_2(width), 64), 512)]
    # float32 is twice as wide and goes through the same shared memory.
    return tiles if itemsize <= 2 else tiles._replace(block_j=16)


def most_segments(max_keys: int, window: int | None, segment: int = SEGMENT) -> int:
    """Segments that a query can see something of. A window of 512 may touch three of 256."""
    return -(-max_keys // segment) if window is None else min(-(-max_keys // segment), -(-window // segment) + 1)


def programs_of_a_request(num_programs: int, num_segments: int) -> int:
    """How many programs share the segments that a request may have, in a step of `num_programs` = requests * heads.

    A wave of programs which take all of them is soon done where these are few: storing and merging cost more.
    """
    if num_segments <= FEW_SEGMENTS and num_programs > ENOUGH_PROGRAMS:
        return 1
    return min(num_segments, ceil_div(PROGRAMS_PER_SM * NUM_SMS, num_programs))


def decode_options(width: int, num_programs: int, num_sharing: int) -> dict[str, int]:
    """Warps, blocks in flight and registers of a decode program. Blocks of wide heads are large: one program a
    multiprocessor has three in flight, two have two each.
    """
    if width < WIDE_HEAD:
        return {"num_warps": 4, "num_stages": 3, "maxnreg": 168}
    if num_sharing == 1 and num_programs <= NUM_SMS:
        return {"num_warps": 8, "num_stages": 3, "maxnreg": 255}
    return {"num_warps": 8, "num_stages": 2, "maxnreg": 128}


def launch_attend_in_order(*call: Any, tiles: OrderedTiles | None = None, segment: int = SEGMENT) -> None:
    *tensors, sinks_H, scale, window, softcap, query_starts_B, query_lens_B, parts, tops_sums, arrivals, decodes = call
    q_THD, out_THE, k_cache_NSKD, v_cache_NSKE, page_table_RP, rows_B, _ = tensors
    num_tokens, num_heads, head_dim = q_THD.shape
    page_size, num_kv_heads, v_head_dim = v_cache_NSKE.shape[1:]
    num_requests, group = rows_B.shape[0], num_heads // num_kv_heads
    block_d = max(next_power_of_2(head_dim), MIN_DOT_DEPTH)
    block_e = max(next_power_of_2(v_head_dim), MIN_DOT_DEPTH)
    tiles = tiles or ordered_tiles(max(block_d, block_e), q_THD.element_size())
    tensors += [query_starts_B, query_lens_B, sinks_H]
    numbers = (scale, 0.0 if softcap is None else softcap)
    strides = (
        *q_THD.stride()[:2], *out_THE.stride()[:2],
        *k_cache_NSKD.stride()[:3], *v_cache_NSKE.stride()[:3], page_table_RP.stride(0),
    )  # fmt: skip
    shape = {
        "G": group, "D": head_dim, "E": v_head_dim, "PAGE_SIZE": page_size, "WINDOW": window or 0,
        "HAS_SOFTCAP": softcap is not None, "HAS_SINKS": sinks_H is not None, "SEGMENT": segment,
        "BLOCK_D": block_d, "BLOCK_E": block_e, "BLOCK_J": tiles.block_j, "enable_fp_fusion": False,
        **dependent(q_THD),
    }  # fmt: skip
    block_m = rows_of_dot(group)
    num_m_blocks = ceil_div(group, block_m)
    num_heads_blocks = num_kv_heads * num_m_blocks
    num_sharing = programs_of_a_request(
        num_requests * num_heads_blocks, most_segments(page_table_RP.shape[1] * page_size, window, segment)
    )
    ordered_decode_kernel[(num_heads_blocks, num_sharing, num_requests)](
        *tensors, parts, tops_sums, arrivals, *numbers, tops_sums.shape[0] // (2 * num_heads), *strides,
        H=num_heads, NUM_M_BLOCKS=num_m_blocks, SHARES=num_sharing > 1, BLOCK_M=block_m, **shape,
        **decode_options(max(block_d, block_e), num_requests * num_heads_blocks, num_sharing),
    )  # fmt: skip
    if decodes:
        return
    block_m = max(tiles.block_m, next_power_of_2(group))
    tokens_per_tile = block_m // group
    ordered_tiles_kernel[(num_programs(num_tokens // tokens_per_tile, num_requests, num_kv_heads), num_kv_heads)](
        *tensors, *numbers, num_requests, *strides, TOKENS=tokens_per_tile, BLOCK_M=block_m,
        BLOCK_B=requests_block(num_requests), **shape, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
