# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `extend`: a program takes tiles of queries, each of one request, and walks the keys they can see.

A tile holds a few tokens times all query heads of one kv head, so every key that is loaded serves all of them, and a
request that only decodes wastes little. Tiles are dealt out by position in the step: which request a program works
for is found on the device, so the host plans nothing and copies nothing. Keys outside the window of the whole tile
are never touched, and only blocks at the edges (the causal diagonal, the window's far end) are masked.

Shapes: M rows of a tile (token by token, the G heads of each), J keys of a block, D head dim of q and k,
E head dim of v.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import triton
import triton.language as tl

from playhead.kernels.rope import on_packed
from playhead.kernels.sizes import next_power_of_2
from playhead.kernels.splits import NUM_SMS
from playhead.kernels.triton.decode import AS_MEASURED, Cut, launch_decode_rows
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start
from playhead.kernels.triton.rope import launch_qk_rope_write
from playhead.kernels.triton.scores import LOG2_E, NO_SCORE, attend_block, key_pages, load_rows, row_places

MIN_DOT_DEPTH = 16
NO_TILE = tl.constexpr(1 << 30)
MIN_BLOCK_B = 256  # all warps add up, so the compiler knows the sum to be one for all: its loops have 10% less to do
SPARE_TILES = 32  # programs for the ragged ends of this many requests; a few prompts have as many


@triton.jit
def first_tiles(query_starts, num_requests, TOKENS: tl.constexpr, BLOCK_B: tl.constexpr):
    """The first tile of every request; of requests that are not there, one that no step has.

    Request b owns the tiles from starts[b] // TOKENS + b on: enough for its queries wherever it starts, so the host
    need not know how tiles fall on requests. With 4 tokens a tile, requests of 5, 1 and 4 queries start at 0, 5 and 6
    and own tiles 0-1, 2 and 3-4.
    """
    request_B = tl.arange(0, BLOCK_B)
    live_B = request_B < num_requests
    first_B = tl.load(query_starts + request_B, mask=live_B, other=0) // TOKENS + request_B
    return tl.where(live_B, first_B, NO_TILE)


@triton.jit
def tiles_of_step(first_B, query_lens, TOKENS: tl.constexpr, BLOCK_B: tl.constexpr):
    """Tiles up to the last one with a query: there may be room for more requests than there are."""
    len_B = tl.load(query_lens + tl.arange(0, BLOCK_B), mask=first_B < NO_TILE, other=0)
    return tl.max(tl.where(len_B > 0, first_B + tl.cdiv(len_B, TOKENS), 0))


@triton.jit
def request_of_tile(tile, first_B):
    """The request a tile belongs to: the last one that has begun."""
    return tl.maximum(tl.sum((first_B <= tile).to(tl.int32)) - 1, 0)


@triton.jit
def _pages_from(table_row, first, least, end, PAGE_SIZE: tl.constexpr, BLOCK_J: tl.constexpr):
    """Pages of a block of keys, of which those in [least, end) are looked up."""
    key_J = first + tl.arange(0, BLOCK_J)
    return key_pages(table_row, key_J, (key_J >= least) & (key_J < end), PAGE_SIZE)


@triton.jit
def _keys_seen(first_position, num_tokens, WINDOW: tl.constexpr):
    """The keys that any of these tokens sees: [least, end)."""
    least = tl.maximum(first_position - WINDOW + 1, 0) if WINDOW > 0 else 0
    return least, first_position + num_tokens


@triton.jit
def _found(
    tile, first_B, rows, seq_lens, query_starts, query_lens, page_table, table_stride,
    TOKENS: tl.constexpr, WINDOW: tl.constexpr, PAGE_SIZE: tl.constexpr, ONE_LOOP: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Whose queries a tile has: the first of them, how many its request has, where these start in the step, how long
    the request is with them, and its row of the page table; with ONE_LOOP the pages of the tile's first keys too.
    """
    request = request_of_tile(tile, first_B)
    num_queries, start = tl.load(query_lens + request), tl.load(query_starts + request)
    seq_len, row = tl.load(seq_lens + request), tl.load(rows + request).to(tl.int64)
    first_token = (tile - (start // TOKENS + request)) * TOKENS
    page_J = 0  # nobody looks at these
    if ONE_LOOP:
        num_tokens = tl.minimum(num_queries - first_token, TOKENS)
        least, end = _keys_seen(seq_len - num_queries + first_token, num_tokens, WINDOW)
        first = least // BLOCK_J * BLOCK_J
        page_J = _pages_from(page_table + row * table_stride, first, least, end, PAGE_SIZE, BLOCK_J)
    return first_token, num_queries, start, seq_len, row, page_J


@triton.jit
def _attend_keys(
    q_MD, position_M, k_cache, v_cache, table_row, page_J, first, last, least, end, top_M, sum_M, acc_ME,
    scale, softcap, k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, SAME_STRIDES: tl.constexpr, WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Blocks of keys from `first`, which is on these pages, up to `last` into the running softmax.

    Without MASKED every key of every block is seen by every query. With it, keys outside [least, end) are not read.
    """
    index_J = tl.arange(0, BLOCK_J)
    for block in tl.range(first, last, BLOCK_J):
        key_J = block + index_J
        seen_MJ = key_J[None, :] <= position_M[:, None]
        if WINDOW > 0:
            seen_MJ &= key_J[None, :] > position_M[:, None] - WINDOW
        live_J = (key_J >= least) & (key_J < end) if MASKED else tl.full([BLOCK_J], True, tl.int1)
        k_place_J = row_places(page_J, key_J, k_page, k_slot, PAGE_SIZE)
        v_place_J = k_place_J if SAME_STRIDES else row_places(page_J, key_J, v_page, v_slot, PAGE_SIZE)
        k_JD = load_rows(k_cache, k_place_J, live_J, D, BLOCK_D)
        v_JE = load_rows(v_cache, v_place_J, live_J, E, BLOCK_E)
        # One block ahead: looked up in the iteration that uses them, the tables would cost the pipeline its depth.
        next_J = key_J + BLOCK_J
        page_J = key_pages(table_row, next_J, (next_J >= least) & (next_J < end), PAGE_SIZE)
        top_M, sum_M, acc_ME = attend_block(
            q_MD, k_JD, v_JE, seen_MJ, top_M, sum_M, acc_ME, scale, softcap, HAS_SOFTCAP, MASKED
        )
    return top_M, sum_M, acc_ME


@triton.jit
def _attend_tile(
    q_MD, position_M, first_position, num_tokens, k_cache, v_cache, table_row, page_J, top_M, sum_M, acc_ME,
    scale, softcap, k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, SAME_STRIDES: tl.constexpr, WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, ONE_LOOP: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """All keys the tile's queries can see: the window's ragged far end, what everybody sees, the causal diagonal.

    Window 4, blocks of 4, queries at 9 to 11:  keys 6 to 11, blocks [4, 8) and [8, 12), both masked. With ONE_LOOP all
    blocks are: a loop of its own begins with loads that nothing runs beside.
    """
    least, end = _keys_seen(first_position, num_tokens, WINDOW)
    far_end = least // BLOCK_J * BLOCK_J
    if ONE_LOOP:
        return _attend_keys(
            q_MD, position_M, k_cache, v_cache, table_row, page_J, far_end, end, least, end,
            top_M, sum_M, acc_ME, scale, softcap, k_page, k_slot, v_page, v_slot,
            D, E, PAGE_SIZE, SAME_STRIDES, WINDOW, HAS_SOFTCAP, True, BLOCK_D, BLOCK_E, BLOCK_J,
        )  # fmt: skip
    inner_last = (first_position + 1) // BLOCK_J * BLOCK_J
    inner_first = far_end
    if WINDOW > 0:
        inner_first = tl.cdiv(tl.maximum(end - WINDOW, 0), BLOCK_J) * BLOCK_J
        inner_first = tl.minimum(inner_first, inner_last)
        page_J = _pages_from(table_row, far_end, least, end, PAGE_SIZE, BLOCK_J)
        top_M, sum_M, acc_ME = _attend_keys(
            q_MD, position_M, k_cache, v_cache, table_row, page_J, far_end, inner_first, least, end,
            top_M, sum_M, acc_ME, scale, softcap, k_page, k_slot, v_page, v_slot,
            D, E, PAGE_SIZE, SAME_STRIDES, WINDOW, HAS_SOFTCAP, True, BLOCK_D, BLOCK_E, BLOCK_J,
        )  # fmt: skip
    page_J = _pages_from(table_row, inner_first, least, end, PAGE_SIZE, BLOCK_J)
    top_M, sum_M, acc_ME = _attend_keys(
        q_MD, position_M, k_cache, v_cache, table_row, page_J, inner_first, inner_last, least, end,
        top_M, sum_M, acc_ME, scale, softcap, k_page, k_slot, v_page, v_slot,
        D, E, PAGE_SIZE, SAME_STRIDES, WINDOW, HAS_SOFTCAP, False, BLOCK_D, BLOCK_E, BLOCK_J,
    )  # fmt: skip
    page_J = _pages_from(table_row, inner_last, least, end, PAGE_SIZE, BLOCK_J)
    return _attend_keys(
        q_MD, position_M, k_cache, v_cache, table_row, page_J, inner_last, end, least, end,
        top_M, sum_M, acc_ME, scale, softcap, k_page, k_slot, v_page, v_slot,
        D, E, PAGE_SIZE, SAME_STRIDES, WINDOW, HAS_SOFTCAP, True, BLOCK_D, BLOCK_E, BLOCK_J,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_requests"])  # it differs by step, and one binary must serve all of them
def extend_kernel(
    q, out, k_cache, v_cache, page_table, rows, seq_lens, query_starts, query_lens, sinks, scale, softcap,
    num_requests, q_token, q_head, out_token, out_head, k_page, k_slot, k_head, v_page, v_slot, v_head, table_stride,
    G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr,
    SAME_STRIDES: tl.constexpr, WINDOW: tl.constexpr, TOKENS: tl.constexpr, LEAST_QUERIES: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, ONE_LOOP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr,
    BLOCK_B: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_downstream_start(DEPENDENT)
    kv_head = tl.program_id(1)
    # Late tiles see the most keys: started first, they are not what everybody waits for at the end.
    first_B = first_tiles(query_starts, num_requests, TOKENS, BLOCK_B)
    tile = tiles_of_step(first_B, query_lens, TOKENS, BLOCK_B) - 1 - tl.program_id(0)
    first_token, num_queries, start, seq_len, row, page_J = _found(
        tile, first_B, rows, seq_lens, query_starts, query_lens, page_table, table_stride,
        TOKENS, WINDOW, PAGE_SIZE, ONE_LOOP, BLOCK_J,
    )  # fmt: skip
    after_upstream(DEPENDENT)
    while tile >= 0:
        if (first_token < num_queries) & (num_queries >= LEAST_QUERIES):
            num_tokens = tl.minimum(num_queries - first_token, TOKENS)
            first_position = seq_len - num_queries + first_token
            token_M = tl.arange(0, BLOCK_M) // G
            head_M = kv_head * G + tl.arange(0, BLOCK_M) % G
            live_M = token_M < num_tokens
            row_M = (start + first_token + token_M).to(tl.int64)
            dim_D, dim_E = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
            q_place = q + (row_M * q_token + head_M * q_head)[:, None] + dim_D[None, :]
            q_MD = tl.load(q_place, mask=live_M[:, None] & (dim_D < D)[None, :], other=0.0)
            top_M = tl.full([BLOCK_M], NO_SCORE, tl.float32)
            sum_M = tl.zeros([BLOCK_M], tl.float32)
            if HAS_SINKS:
                top_M = tl.load(sinks + head_M).to(tl.float32) * LOG2_E
                sum_M += 1.0
            table_row = page_table + row * table_stride
            top_M, sum_M, acc_ME = _attend_tile(
                q_MD, first_position + token_M, first_position, num_tokens,
                k_cache + kv_head.to(tl.int64) * k_head, v_cache + kv_head.to(tl.int64) * v_head, table_row, page_J,
                top_M, sum_M, tl.zeros([BLOCK_M, BLOCK_E], tl.float32), scale, softcap, k_page, k_slot, v_page, v_slot,
                D, E, PAGE_SIZE, SAME_STRIDES, WINDOW, HAS_SOFTCAP, ONE_LOOP, BLOCK_D, BLOCK_E, BLOCK_J,
            )  # fmt: skip
            out_ME = acc_ME / tl.where(live_M, sum_M, 1.0)[:, None]
            out_place = out + (row_M * out_token + head_M * out_head)[:, None] + dim_E[None, :]
            tl.store(out_place, out_ME.to(out.dtype.element_ty), mask=live_M[:, None] & (dim_E < E)[None, :])
        tile -= tl.num_programs(0)
        if tile >= 0:
            first_token, num_queries, start, seq_len, row, page_J = _found(
                tile, first_B, rows, seq_lens, query_starts, query_lens, page_table, table_stride,
                TOKENS, WINDOW, PAGE_SIZE, ONE_LOOP, BLOCK_J,
            )  # fmt: skip


class ExtendTiles(NamedTuple):
    """How an extend program is cut: rows of queries, keys of a block, warps, and blocks of keys in flight. With
    `one_loop` it masks all blocks of keys, and looks up the first one's pages early.
    """

    block_m: int
    block_j: int
    num_warps: int
    num_stages: int
    one_loop: bool = False


# By head dim, for bf16: whole tiles, and half tiles for steps too small to give every SM a whole one. The fastest of a
# search over prompts of 512 to 8,192 tokens. Up to 128 wide, programs of four warps, of which several share an SM: one
# computes weights while another one multiplies. At 256, four warps for every 64 rows, and two stages of 64 keys are all
# that fits the 227 KiB of shared memory; a half tile's four warps spill from 64 keys on. At 512 the result alone fills
# the registers of four warps.
TILES: Mapping[int, tuple[ExtendTiles, ExtendTiles]] = MappingProxyType(
    {
        64: (ExtendTiles(128, 64, 4, 2), ExtendTiles(64, 64, 4, 3)),
        128: (ExtendTiles(64, 64, 4, 3), ExtendTiles(64, 64, 4, 3)),
        256: (ExtendTiles(128, 64, 8, 2), ExtendTiles(64, 32, 4, 3)),
        512: (ExtendTiles(64, 32, 8, 2), ExtendTiles(64, 32, 8, 2)),
    }
)

# How many SMs must have a whole tile. Half tiles of wide heads load the same keys for half as many queries.
LEAST_WHOLE: Mapping[int, int] = MappingProxyType({64: NUM_SMS, 128: NUM_SMS, 256: 2 * NUM_SMS // 3, 512: NUM_SMS})


# For steps that narrow tiles spread over the multiprocessors, with so many tiles on each: the fewest rows that a matrix
# instruction takes. Such a step waits for loads: of tables, then of keys, once for each loop.
NARROW_TILES: Mapping[int, tuple[ExtendTiles, int]] = MappingProxyType(
    {
        64: (ExtendTiles(16, 64, 2, 3, one_loop=True), 4),
        128: (ExtendTiles(16, 64, 4, 3, one_loop=True), 2),
        256: (ExtendTiles(16, 64, 8, 3, one_loop=True), 1),
    }
)


def extend_tiles(width: int, itemsize: int, num_rows: int) -> ExtendTiles:
    """The tiles for heads of `width` and `num_rows` = tokens * query heads in the step.

    1,024 tokens of 4 heads of 256 are 32 whole tiles of 128 rows, which would leave 100 SMs idle: half tiles. 512
    tokens of them are 128 narrow tiles.
    """
    width = min(max(next_power_of_2(width), 64), 512)
    whole, half = TILES[width]
    tiles = whole if num_rows >= whole.block_m * LEAST_WHOLE[width] else half
    narrow, per_sm = NARROW_TILES.get(width, (tiles, 0))
    if num_rows <= per_sm * narrow.block_m * NUM_SMS:
        tiles = narrow
    # float32 is twice as wide and goes through the same shared memory.
    return tiles if itemsize <= 2 else tiles._replace(block_j=16)


def num_programs(num_full_tiles: int, num_requests: int, num_kv_heads: int) -> int:
    """Programs for each kv head: one for every tile there could be, unless that is far more than can run at once.

    A graph over tokens has room for hundreds of requests and mostly serves a few. Programs without a tile cost little
    but not nothing; the others take turns at more tiles than there are of them.
    """
    most_at_once = max(num_full_tiles + SPARE_TILES, 4 * NUM_SMS // num_kv_heads)
    return min(num_full_tiles + num_requests, most_at_once)


def requests_block(num_places: int) -> int:
    """Requests that a program looks through for its tile's: all of them at once."""
    return max(next_power_of_2(num_places), MIN_BLOCK_B)


def launch_write_and_extend(*call: Any) -> None:
    qkv_TX, out_TY, *turning = call[:10]
    _, v_cache_NSKE = caches = call[10:12]
    q_THD = on_packed(launch_qk_rope_write, qkv_TX, *turning, caches=caches)
    launch_extend(q_THD, out_TY.view(*q_THD.shape[:2], v_cache_NSKE.shape[3]), *call[10:])


def launch_extend(*call: Any, tiles: ExtendTiles | None = None, cut: Cut = AS_MEASURED) -> None:
    *attention, starts_B, lens_B, parts, log_weights, arrivals, num_splits = call
    if arrivals is None:
        launch_tiles(*attention, starts_B, lens_B, tiles=tiles)
        return
    launch_tiles(*attention, starts_B, lens_B, tiles=tiles, least_queries=2)
    launch_decode_rows(*attention, parts, log_weights, arrivals, num_splits, starts_B, lens_B, cut=cut)


def launch_tiles(*call: Any, tiles: ExtendTiles | None = None, least_queries: int = 1) -> None:
    """The requests that have at least so many queries."""
    *tensors, sinks_H, scale, window, softcap, query_starts_B, query_lens_B = call
    q_THD, out_THE, k_cache_NSKD, v_cache_NSKE, page_table_RP, rows_B, _ = tensors
    num_tokens, num_heads, head_dim = q_THD.shape
    num_kv_heads, v_head_dim = v_cache_NSKE.shape[2:]
    # Every request of a step has a token at least: in a small step, places behind its tokens have none.
    num_requests, group = min(rows_B.shape[0], num_tokens), num_heads // num_kv_heads
    k_strides, v_strides = k_cache_NSKD.stride()[:3], v_cache_NSKE.stride()[:3]
    block_d = max(next_power_of_2(head_dim), MIN_DOT_DEPTH)
    block_e = max(next_power_of_2(v_head_dim), MIN_DOT_DEPTH)
    tiles = tiles or extend_tiles(max(block_d, block_e), q_THD.element_size(), num_tokens * num_heads)
    block_m = max(tiles.block_m, next_power_of_2(group))
    tokens_per_tile = block_m // group
    extend_kernel[(num_programs(num_tokens // tokens_per_tile, num_requests, num_kv_heads), num_kv_heads)](
        *tensors, query_starts_B, query_lens_B, sinks_H, scale, 0.0 if softcap is None else softcap, num_requests,
        *q_THD.stride()[:2], *out_THE.stride()[:2],
        *k_strides, *v_strides, page_table_RP.stride(0),
        G=group, D=head_dim, E=v_head_dim,
        PAGE_SIZE=k_cache_NSKD.shape[1], SAME_STRIDES=k_strides == v_strides, WINDOW=window or 0,
        TOKENS=tokens_per_tile, HAS_SOFTCAP=softcap is not None,
        HAS_SINKS=sinks_H is not None, ONE_LOOP=tiles.one_loop, LEAST_QUERIES=least_queries,
        BLOCK_M=block_m, BLOCK_D=block_d, BLOCK_E=block_e, BLOCK_J=tiles.block_j,
        BLOCK_B=requests_block(rows_B.shape[0]),
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **dependent(q_THD),
    )  # fmt: skip
