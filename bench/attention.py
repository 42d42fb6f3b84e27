"""Attention on one GPU: `PYTHONPATH=src python3 -m bench.attention [--quick | --sweep] [--tiles]`.

Decode: bytes of keys and values a layer must read over the time of one captured call, against the copy bandwidth in
the scorecard. Calls go round many copies of the keys and values, so that the cache does not serve them. Extend:
TFLOP/s of the scores and values a causal mask leaves, beside torch's own attention on the same, unpaged tensors.

`--sweep` prints decode alone, over batches and contexts, with splits fixed for the longest context as an engine has
them, and one request over numbers of splits.

Everything runs from CUDA graphs; a case that fails prints its error and the rest goes on. The tables come last.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch.nn import functional as F

from bench.measure import cold_copies, device_us, emit
from playhead.attention.base import AttentionPlan, LayerAttention, decode_arguments, extend_arguments
from playhead.attention.triton import TritonBackend, decode_shape
from playhead.kernels.splits import num_splits
from playhead.kernels.triton.decode import Cut, launch_decode
from playhead.kernels.triton.decode_tiles import DecodeTiles
from playhead.kernels.triton.extend import ExtendTiles, launch_tiles

DEVICE = torch.device("cuda")
COPY_BYTES_PER_S = 4.25e12  # device-to-device copy on an H200, read + write
NUM_LAUNCHES = 96  # of the graph that shows what a launch takes
MAX_BYTES = 24 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The attention of one kind of layer."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None

    @property
    def kv_bytes(self) -> int:
        """Of one key and one value, in bf16."""
        return 2 * 2 * self.num_kv_heads * self.head_dim

    def visible(self, context: int) -> int:
        return context if self.window is None else min(self.window, context)


GEMMA_1B = Heads(name="gemma-1b 4/1x256", num_heads=4, num_kv_heads=1, head_dim=256)
GEMMA_4B = Heads(name="gemma-4b 8/4x256", num_heads=8, num_kv_heads=4, head_dim=256)
WIDE_GROUP = Heads(name="8/1x256", num_heads=8, num_kv_heads=1, head_dim=256)
QWEN3 = Heads(name="qwen3-0.6b 16/8x128", num_heads=16, num_kv_heads=8, head_dim=128)
LLAMA_1B = Heads(name="llama-1b 32/8x64", num_heads=32, num_kv_heads=8, head_dim=64)
GEMMA_1B_WINDOW = replace(GEMMA_1B, name="gemma-1b window 512", window=512)
GEMMA_4B_WINDOW = replace(GEMMA_4B, name="gemma-4b window 1024", window=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table."""

    table: str
    case: str
    us: float
    rate: str


def time_us(work: Callable[[int], object], num_calls: int) -> float:
    """Device microseconds of one call, from a graph of `work(0)`, `work(1)`, ... that is replayed."""
    work(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        for call in range(num_calls):
            work(call)
    return device_us(graph.replay, DEVICE, calls=2, rounds=5) / num_calls


def normal(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_()


def int32(values: torch.Tensor) -> torch.Tensor:
    return values.to(DEVICE, torch.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCase:
    """A decode step of `batch` requests, all `context` long, with `num_calls` copies of the layer."""

    heads: Heads
    batch: int
    context: int
    page_size: int
    layers: tuple[LayerAttention, ...]
    plan: AttentionPlan
    q: torch.Tensor
    out: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return self.batch * self.heads.visible(self.context) * self.heads.kv_bytes


def decode_case(heads: Heads, batch: int, context: int, page_size: int, max_context: int = 0) -> DecodeCase:
    """Pages of a request are scattered. A window layer has a pool for its windows alone, and a table of its pages.

    The page table has room for `max_context`, where that is more than `context`.
    """
    pages_per_row = -(-context // page_size)
    num_full = 1 + batch * pages_per_row
    pages = torch.randperm(num_full - 1) + 1
    table = torch.zeros(batch + 1, max(pages_per_row, max_context // page_size), dtype=torch.int64)
    table[1:, :pages_per_row] = pages.view(batch, pages_per_row)
    num_pages = num_full
    if heads.window is not None:
        first_page = max(0, context - heads.window) // page_size
        num_pages = 1 + batch * (pages_per_row - first_page)
        table[1:] = 0
        table[1:, first_page:pages_per_row] = (torch.randperm(num_pages - 1) + 1).view(batch, -1)
    bytes_per_call = num_pages * page_size * heads.kv_bytes
    if bytes_per_call > MAX_BYTES:
        raise MemoryError(f"one layer takes {bytes_per_call / 1e9:.0f} GB")
    num_calls = min(MAX_BYTES // bytes_per_call, cold_copies(bytes_per_call))
    shape = (num_pages, page_size, heads.num_kv_heads, heads.head_dim)
    layers = tuple(
        LayerAttention(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            k_head_dim=heads.head_dim,
            v_head_dim=heads.head_dim,
            scale=heads.head_dim**-0.5,
            k_cache_NSKD=normal(*shape),
            v_cache_NSKE=normal(*shape),
            window=heads.window,
        )
        for _ in range(num_calls)
    )
    plan = AttentionPlan(
        page_table_RP=int32(table),
        rows_B=int32(torch.arange(1, batch + 1)),
        seq_lens_B=int32(torch.full((batch,), context)),
    )
    q = normal(batch, heads.num_heads, heads.head_dim)
    return DecodeCase(
        heads=heads,
        batch=batch,
        context=context,
        page_size=page_size,
        layers=layers,
        plan=plan,
        q=q,
        out=torch.empty_like(q),
    )


def bandwidth(num_bytes: int, us: float) -> str:
    rate = num_bytes / us * 1e6
    return f"{rate / 1e9:6.0f} GB/s {rate / COPY_BYTES_PER_S:5.0%}"


def decode_us(case: DecodeCase) -> float:
    """One call, as the backend makes it."""
    backend = TritonBackend(case.plan.page_table_RP, case.layers[:1], max_bs=case.batch)

    def call(i: int) -> None:
        backend.decode(case.plan, case.layers[i], case.q, case.out)

    return time_us(call, len(case.layers))


def bench_decode(heads: Heads, batch: int, context: int, page_size: int, table: str) -> Row:
    case = decode_case(heads, batch, context, page_size)
    us = decode_us(case)
    splits = num_splits(decode_shape(case.layers[0], case.plan.page_table_RP), batch)
    name = f"{heads.name:<22} batch {batch:>3} context {context:>6} page {page_size:>2} splits {splits:>2}"
    return Row(table=table, case=name, us=us, rate=bandwidth(case.num_bytes, us))


def cut_decode_us(case: DecodeCase, splits: int, tiles: DecodeTiles | None = None) -> float:
    """One call with other splits or tiles than the backend would choose."""
    heads = case.heads
    num_parts = case.batch * heads.num_heads * splits
    parts = torch.zeros(num_parts * heads.head_dim, device=DEVICE)
    log_weights = torch.zeros(num_parts, device=DEVICE)
    arrivals = torch.zeros(case.batch * heads.num_heads * (splits + 1), dtype=torch.int32, device=DEVICE)

    def call(i: int) -> None:
        arguments = decode_arguments(case.plan, case.layers[i])
        launch_decode(case.q, case.out, *arguments, parts, log_weights, arrivals, splits, None, cut=Cut(tiles=tiles))

    return time_us(call, len(case.layers))


def sweep_tiles(heads: Heads, batch: int, context: int, page_size: int) -> list[Row]:
    case = decode_case(heads, batch, context, page_size)
    chosen = num_splits(decode_shape(case.layers[0], case.plan.page_table_RP), batch)
    block_j = 8192 // heads.head_dim
    tile_choices = [
        (block_j, 4, 3),
        (block_j, 4, 4),
        (block_j, 4, 2),
        (block_j // 2, 4, 5),
        (2 * block_j, 4, 3),
        (2 * block_j, 8, 3),
    ]
    rows = []
    for (keys, warps, stages), splits in product(tile_choices, sorted({max(1, chosen // 2), chosen, 2 * chosen})):
        tiles = DecodeTiles(block_j=keys, num_warps=warps, num_stages=stages)
        name = f"{heads.name:<22} batch {batch:>3} keys {keys:>3} warps {warps} stages {stages} splits {splits:>2}"
        try:
            us = cut_decode_us(case, splits, tiles)
            rows.append(Row(table="decode tiles", case=name, us=us, rate=bandwidth(case.num_bytes, us)))
        except Exception as error:  # noqa: BLE001 - a variant that does not fit the chip must not end the run
            print(f"FAILED {name}: {str(error)[:160]}", flush=True)
    return rows


def print_sweep() -> None:
    """Decode over batches and contexts: microseconds and the share of the copy bandwidth. Then over splits."""
    contexts = (256, 1024, 8192, 32768)
    lines = []
    for heads, batch in product((GEMMA_1B, GEMMA_4B, LLAMA_1B, GEMMA_1B_WINDOW), (1, 8, 32, 128)):
        figures = []
        for context in contexts:
            case = decode_case(heads, batch, context, 16, contexts[-1])
            us = decode_us(case)
            emit("decode", heads=heads.name, batch=batch, context=context, us=us)
            figures.append(f"{us:8.1f} {case.num_bytes / us * 1e6 / COPY_BYTES_PER_S:4.0%}")
            del case
        lines.append(f"{heads.name:<22} {batch:>5}  {'  '.join(figures)}")
    split_counts = (1, 8, 16, 32, 64, 128, 256)
    split_lines = []
    for heads, batch, context in product((GEMMA_1B, GEMMA_4B, LLAMA_1B), (1, 8), (512, 8192)):
        case = decode_case(heads, batch, context, 16)
        figures = [f"{cut_decode_us(case, splits):8.1f}" for splits in split_counts]
        split_lines.append(f"{heads.name:<22} {batch:>5} {context:>8}  {' '.join(figures)}")
    empty = torch.zeros(1, device=DEVICE)
    print(f"\na launch that writes one number: {time_us(lambda _: empty.zero_(), NUM_LAUNCHES):.1f} us")
    print(f"\n{'decode, us, share':<22} batch  {'  '.join(f'{context:>8} keys' for context in contexts)}")
    print("\n".join(lines))
    print(f"\n{'by splits, us':<22} batch  context  {' '.join(f'{splits:>8}' for splits in split_counts)}")
    print("\n".join(split_lines))


def causal_flops(heads: Heads, num_requests: int, num_tokens: int) -> float:
    """Multiply-adds count two; a query sees the keys up to itself and inside its window."""
    window = heads.window or num_tokens
    seen = sum(min(position + 1, window) for position in range(num_tokens))
    return 4.0 * num_requests * seen * heads.num_heads * heads.head_dim


def bench_extend(
    heads: Heads, num_requests: int, num_tokens: int, tiles: ExtendTiles | None = None, table: str = "extend"
) -> Row:
    """Prefill of `num_requests` prompts of `num_tokens` each, keys and values in pages already."""
    case = decode_case(replace(heads, window=None), num_requests, num_tokens, 16)
    layer = replace(case.layers[0], window=heads.window)
    q = normal(num_requests * num_tokens, heads.num_heads, heads.head_dim)
    out = torch.empty_like(q)
    lengths = int32(torch.full((num_requests,), num_tokens))
    starts = int32(torch.arange(num_requests) * num_tokens)
    plan = replace(case.plan, seq_lens_B=lengths, query_starts_B=starts, query_lens_B=lengths)

    def call(i: int) -> None:
        launch_tiles(q, out, *extend_arguments(plan, layer), tiles=tiles)

    us = time_us(call, 4)
    rate = f"{causal_flops(heads, num_requests, num_tokens) / us / 1e6:6.0f} TFLOP/s"
    name = f"{heads.name:<22} {num_requests:>2} x {num_tokens:>5} tokens"
    return Row(table=table, case=name if tiles is None else f"{name} {tiles}", us=us, rate=rate)


def bench_sdpa(heads: Heads, num_requests: int, num_tokens: int) -> Row:
    """torch's attention on the same shapes, contiguous. A window is beyond it: it computes all of the triangle."""
    q = normal(num_requests, heads.num_heads, num_tokens, heads.head_dim)
    k, v = (normal(num_requests, heads.num_kv_heads, num_tokens, heads.head_dim) for _ in range(2))
    us = time_us(lambda _: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), 4)
    flops = causal_flops(replace(heads, window=None), num_requests, num_tokens)
    name = f"{heads.name:<22} {num_requests:>2} x {num_tokens:>5} tokens, torch SDPA, contiguous"
    return Row(table="extend", case=name, us=us, rate=f"{flops / us / 1e6:6.0f} TFLOP/s")


def measured_copy() -> Row:
    source = normal(1 << 30)
    target = torch.empty_like(source)
    us = time_us(lambda _: target.copy_(source), 2)
    return Row(table="ceiling", case="device-to-device copy of 2 GiB", us=us, rate=bandwidth(2 * source.nbytes, us))


def cases(quick: bool) -> Iterator[Callable[[], Row]]:
    yield measured_copy
    batches, contexts = ((1, 32), (1024, 8192)) if quick else ((1, 32, 128), (1024, 8192, 32768))
    for heads, page_sizes in (
        (GEMMA_1B, (1, 16)),
        (GEMMA_4B, (1, 16)),
        (WIDE_GROUP, (16,)),
        (QWEN3, (16,)),
        (LLAMA_1B, (16,)),
    ):
        for page_size, batch, context in product(page_sizes, batches, contexts):
            yield partial(bench_decode, heads, batch, context, page_size, "decode, full layers")
    for heads, page_size, batch in product((GEMMA_1B_WINDOW, GEMMA_4B_WINDOW), (1, 16), (1, 32)):
        for context in (1024, 8192, 32768, 131072):
            yield partial(bench_decode, heads, batch, context, page_size, "decode, window layers")
    for heads, num_tokens in product((GEMMA_1B, GEMMA_4B, QWEN3, LLAMA_1B), (2048, 8192)):
        yield partial(bench_extend, heads, 1, num_tokens)
        yield partial(bench_sdpa, heads, 1, num_tokens)
    for heads in (GEMMA_1B_WINDOW, GEMMA_4B_WINDOW):
        yield partial(bench_extend, heads, 1, 8192)
        yield partial(bench_extend, heads, 16, 512)


def extend_tiles() -> Iterator[Callable[[], Row]]:
    for heads, (rows, warps) in product((GEMMA_4B, QWEN3, LLAMA_1B), ((128, 8), (64, 4))):
        for keys, stages in ((32, 2), (32, 3), (64, 2), (64, 3), (128, 2)):
            tiles = ExtendTiles(block_m=rows, block_j=keys, num_warps=warps, num_stages=stages)
            yield partial(bench_extend, heads, 1, 8192, tiles, "extend tiles")


def tile_cases() -> Iterator[Callable[[], Row | list[Row]]]:
    yield from extend_tiles()
    for heads, batch in ((GEMMA_1B, 32), (GEMMA_4B, 32), (GEMMA_1B, 1), (LLAMA_1B, 32)):
        yield partial(sweep_tiles, heads, batch, 8192, 16)


def print_tables(rows: list[Row]) -> None:
    for table in dict.fromkeys(row.table for row in rows):
        print(f"\n{table}")
        for row in rows:
            if row.table == table:
                print(f"  {row.case:<75} {row.us:9.1f} us  {row.rate}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer batches and contexts")
    parser.add_argument("--sweep", action="store_true", help="decode over batches, contexts and splits, nothing else")
    parser.add_argument("--tiles", action="store_true", help="also other tiles than the tables choose")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench.attention: found no CUDA device; wanted one. Run it on a GPU machine")
    torch.manual_seed(0)
    if options.sweep:
        print_sweep()
        return
    rows: list[Row] = []
    for case in [*cases(options.quick), *(tile_cases() if options.tiles else ())]:
        try:
            found = case()
        except Exception as error:  # noqa: BLE001 - one case that does not fit must not end the run
            print(f"FAILED: {str(error)[:200]}", flush=True)
            continue
        for row in found if isinstance(found, list) else [found]:
            emit(row.table, case=" ".join(row.case.split()), us=row.us, rate=" ".join(row.rate.split()))
            rows.append(row)
    print_tables(rows)


if __name__ == "__main__":
    main()
