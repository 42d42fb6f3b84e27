"""The KV pools on a GPU: translation and writes inside a CUDA graph, against the host's mapping."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVDtype, LayerKV
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.plan import KVLimits, KVPlan
from playhead.kv.swa_pool import SWAKVPool
from playhead.kv.violations import ViolationLog
from playhead.testing.kv_pools import ReferenceKVPool, one_request
from playhead.testing.kv_rules import run_step, small_layer, small_plan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PAGE_SIZES = [1, 16, 64]
NUM_WINDOW_LAYERS = 5
HEADS, DIM = 2, 64


def new_pool(page_size: int) -> tuple[SWAKVPool, HybridAllocator]:
    def layer(window: int | None) -> LayerKV:
        return LayerKV(window=window, num_kv_heads=HEADS, k_head_dim=DIM, v_head_dim=DIM, dtype=KVDtype.BFLOAT16)

    layers = [layer(8)] * NUM_WINDOW_LAYERS + [layer(None)]
    limits = KVLimits(max_context_tokens=256, max_running=4, chunk_tokens=256)
    plan = replace(small_plan(layers, page_size=page_size, num_slabs=200), limits=limits)
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    return SWAKVPool(plan, allocator.mapping, device=torch.device("cuda")), allocator


def locs_of(pages: list[int], page_size: int) -> torch.Tensor:
    return torch.tensor([page * page_size + i for page in pages for i in range(page_size)], dtype=torch.int32)


def host_answer(allocator: HybridAllocator, locs: torch.Tensor) -> list[int]:
    return [allocator.mapping.window_loc(0, loc) if loc > 0 else loc for loc in locs.tolist()]


def read(pool: SWAKVPool, layer: int, locs: torch.Tensor, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = pool.get_kv_buffer(layer)
    locs = locs.cuda()
    return k[locs // page_size, locs % page_size], v[locs // page_size, locs % page_size]


class CapturedForward:
    """One forward over slots of tokens, captured: translate once, write all layers. It is captured on the sink."""

    def __init__(self, pool: SWAKVPool, plan: KVPlan, num_tokens: int) -> None:
        self.plan = plan
        self.tokens = one_request(plan, [0], [0] * num_tokens, device="cuda")
        self.k = torch.zeros(num_tokens, HEADS, DIM, dtype=torch.bfloat16, device="cuda")
        self.v = torch.zeros_like(self.k)
        self._pool = pool
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._forward()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.translated = self._forward()

    def replay(self, pages: list[int], locs: torch.Tensor | None = None) -> None:
        """Over the first tokens of a request with these pages; with `locs`, written there."""
        tokens = one_request(self.plan, pages, range(len(self.k)), device="cuda")
        if locs is not None:
            tokens = replace(tokens, full_locs_T=locs)
        for field in fields(tokens):
            getattr(self.tokens, field.name).copy_(getattr(tokens, field.name))
        self.k.normal_()
        self.v.normal_()
        self.graph.replay()

    def _forward(self) -> torch.Tensor:
        forward = self._pool.begin_forward(self.tokens)
        for layer in range(NUM_WINDOW_LAYERS + 1):
            self._pool.set_kv_buffer(layer, forward, self.k, self.v)
        return forward.groups[1].new_locs_T


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_translation_equals_the_host_s_with_sink_and_minus_1(page_size):
    pool, allocator = new_pool(page_size)
    locs = torch.cat([locs_of(allocator.allocate(3), page_size), torch.tensor([0, -1], dtype=torch.int32)])
    pool.publish(allocator.mapping)
    translated = pool.translate_loc_from_full_to_swa(locs.cuda())
    assert translated.dtype == torch.int32
    assert translated.tolist() == host_answer(allocator, locs)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_a_replay_writes_where_the_mapping_says_now(page_size):
    """The slot is refilled and the mapping changed between replays, at the same addresses."""
    pool, allocator = new_pool(page_size)
    captured = CapturedForward(pool, allocator.plan, 2 * page_size)
    for _ in range(4):
        pages = allocator.allocate(2)
        allocator.drop_windows(0, pages)
        allocator.attach_windows(0, pages[::-1])
        pool.publish(allocator.mapping)
        locs = locs_of(pages, page_size)
        captured.replay(pages)
        window_locs = torch.tensor(host_answer(allocator, locs))
        assert captured.translated.tolist() == window_locs.tolist()
        table = pool.forward_locs(captured.tokens.page_table_RP, captured.tokens.full_locs_T).groups[1].table_RP
        assert table[1, :2].tolist() == [allocator.mapping.window_page(0, page) for page in pages]
        for layer in range(NUM_WINDOW_LAYERS + 1):
            k, v = read(pool, layer, locs if layer == NUM_WINDOW_LAYERS else window_locs, page_size)
            assert torch.equal(k, captured.k)
            assert torch.equal(v, captured.v)


def test_padded_rows_of_a_replay_touch_the_sink_alone():
    page_size = 16
    pool, allocator = new_pool(page_size)
    captured = CapturedForward(pool, allocator.plan, page_size)
    pages = allocator.allocate(1)
    pool.publish(allocator.mapping)
    captured.replay(pages)
    layers = range(NUM_WINDOW_LAYERS + 1)
    before = [tensor.clone() for layer in layers for tensor in pool.get_kv_buffer(layer)]
    captured.replay(pages, torch.tensor([0] * 8 + [-1] * 8, dtype=torch.int32))
    after = [tensor for layer in layers for tensor in pool.get_kv_buffer(layer)]
    num_sink_pages = max(group.pages_per_slab for group in allocator.plan.layout.groups)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[num_sink_pages:], new[num_sink_pages:])


def test_a_bulk_change_reaches_the_device_before_the_next_replay():
    page_size = 16
    pool, allocator = new_pool(page_size)
    captured = CapturedForward(pool, allocator.plan, page_size)
    pages = allocator.allocate(1)
    allocator.drop_windows(0, pages)
    pool.set_full_to_swa_mapping(pages, [7])
    captured.replay(pages)
    assert captured.translated.tolist() == list(range(7 * page_size, 8 * page_size))


def test_addresses_stay_while_the_mapping_and_the_groups_share_change():
    pool, allocator = new_pool(16)
    tensors = [pool.full_to_swa_index_mapping, *pool.get_kv_buffer(0)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    for _ in range(10):
        pages = allocator.allocate(3)
        allocator.drop_windows(0, pages)
        pool.publish(allocator.mapping)
    assert [t.data_ptr() for t in (pool.full_to_swa_index_mapping, *pool.get_kv_buffer(0))] == addresses


def test_the_reference_pool_reads_back_what_a_request_wrote():
    cache = HybridKVCache(small_plan([small_layer(8), small_layer(None)], page_size=4, num_slabs=60), strict=True)
    reference = ReferenceKVPool(cache, device="cuda")
    seq = cache.admit("a", [1])
    for position in range(30):
        cache.extend(seq, 1)
        rows = torch.full((1, 1, 8), float(position), device="cuda")
        reference.write(seq, position, {0: (rows, rows), 1: (rows, rows)})
        run_step(cache)
        assert reference.read(seq, 0)[0][:, 0, 0].tolist() == list(range(max(0, position - 6), position + 1))
        assert len(reference.read(seq, 1)[0]) == position + 1
