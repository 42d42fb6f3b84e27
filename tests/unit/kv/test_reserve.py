"""Places kept ahead of a sequence."""

from __future__ import annotations

import numpy as np

from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVDtype, KVGeometry, LayerKV
from playhead.kv.ledger import Ledger
from playhead.kv.plan import KVLimits, plan_kv

PAGE = 4


def new_cache(num_pages: int) -> HybridKVCache:
    layer = LayerKV(window=None, num_kv_heads=1, k_head_dim=8, v_head_dim=8, dtype=KVDtype.FLOAT32)
    limits = KVLimits(max_context_tokens=32, max_running=2, chunk_tokens=8)
    num_bytes = (1 + num_pages) * PAGE * layer.bytes_per_token
    plan = plan_kv(num_bytes=num_bytes, geometry=KVGeometry.of([layer], PAGE), limits=limits)
    return HybridKVCache(plan, strict=True)


def launch(cache: HybridKVCache) -> None:
    cache.allocator.mapping.take_unpublished()
    cache.retire(cache.launch())


def test_reserved_places_are_used_before_new_ones_and_go_back_with_the_request():
    cache = new_cache(num_pages=20)
    seq = cache.admit("a", [1, 2, 3])
    cache.extend(seq, 3)
    cache.reserve([seq], np.array([11]))
    assert (seq.num_tokens, cache.num_places(seq)) == (3, 12)
    pages = list(seq.pages)
    launch(cache)
    cache.extend(seq, 9)
    assert list(seq.pages) == pages
    assert Ledger(cache).audit() == []
    cache.finish(seq, [1, 2, 3])
    assert Ledger(cache).audit() == []


def test_a_reservation_ends_with_the_context_and_never_raises():
    cache = new_cache(num_pages=10)
    seq, other = cache.admit("a", [1]), cache.admit("b", [2])
    cache.extend(seq, 1)
    cache.reserve([seq], np.array([1000]))
    assert cache.num_places(seq) == 32
    cache.extend(other, 1)
    cache.reserve([other], np.array([32]))
    assert cache.num_places(other) == PAGE
    assert Ledger(cache).audit() == []


def test_pages_of_many_sequences_are_taken_for_all_or_for_none():
    cache = new_cache(num_pages=10)
    seqs = [cache.admit(name, [1]) for name in ("a", "b")]
    for seq in seqs:
        cache.extend(seq, 1)
    cache.reserve(seqs, np.array([32, 16]))
    assert [cache.num_places(seq) for seq in seqs] == [PAGE, PAGE]
    cache.reserve(seqs, np.array([24, 3]))
    assert [cache.num_places(seq) for seq in seqs] == [24, PAGE]
    assert len({*seqs[0].pages, *seqs[1].pages}) == 7
    assert Ledger(cache).audit() == []


def test_vacancy_counts_what_is_free_and_what_only_the_prefix_cache_has():
    cache = new_cache(num_pages=10)
    assert cache.has_vacancy(40)
    assert not cache.has_vacancy(41)
    seq = cache.admit("a", [1, 2, 3, 4, 5])
    cache.extend(seq, 5)
    assert not cache.has_vacancy(33)
    launch(cache)
    cache.finish(seq, [1, 2, 3, 4, 5])
    assert cache.has_vacancy(40)
