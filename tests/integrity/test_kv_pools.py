"""K5 and K8 on real tensors: random requests through the reference pool read back exactly what they wrote."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from playhead.errors import OutOfPages
from playhead.kv.cache import HybridKVCache
from playhead.kv.sequence import SequenceKV
from playhead.testing.kv_pools import OwnershipError, ReferenceKVPool
from playhead.testing.kv_rules import run_step, small_layer, small_plan

WINDOWS = (8, 4, None, 8)
MAX_TOKENS = 40


def new_reference(page_size: int, *, num_slabs: int = 120) -> tuple[HybridKVCache, ReferenceKVPool]:
    plan = small_plan([small_layer(window) for window in WINDOWS], page_size=page_size, num_slabs=num_slabs)
    cache = HybridKVCache(plan, strict=True)
    return cache, ReferenceKVPool(cache)


def value(tokens: list[int], position: int, layer: int) -> float:
    """What a layer keeps of a token depends on the token's whole past, as attention's keys do."""
    return float(hash((tuple(tokens[: position + 1]), layer)) % 100_003)


def kv_of(tokens: list[int], first: int, end: int) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    def rows(layer: int) -> torch.Tensor:
        values = [value(tokens, position, layer) for position in range(first, end)]
        return torch.tensor(values)[:, None, None].expand(-1, 1, 8).contiguous()

    return {layer: (rows(layer), rows(layer) + 0.5) for layer in range(len(WINDOWS))}


def assert_sees_its_past(reference: ReferenceKVPool, seq: SequenceKV, tokens: list[int]) -> None:
    for layer, window in enumerate(WINDOWS):
        first = 0 if window is None else max(0, seq.num_tokens - window + 1)
        if first == seq.num_tokens:
            continue
        k, v = reference.read(seq, layer)
        wanted = [value(tokens, position, layer) for position in range(first, seq.num_tokens)]
        assert k[:, 0, 0].tolist() == wanted
        assert (v[:, 0, 7] - 0.5).tolist() == wanted


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_every_request_reads_its_own_past_whatever_the_others_do(page_size):
    cache, reference = new_reference(page_size, num_slabs={1: 60, 4: 18, 16: 13}[page_size])
    rng = random.Random(page_size)
    tokens_of: dict[str, list[int]] = {}
    num_refused = 0
    for index in range(600):
        if cache.rows.num_free and rng.random() < 0.3:
            name, tokens = f"r{index}", [rng.randrange(2)] * rng.randrange(1, 20) + [index % 3] * rng.randrange(1, 5)
            cache.admit(name, tokens)
            tokens_of[name] = tokens
        if not cache.sequences:
            continue
        seq = cache.sequences[rng.choice(list(cache.sequences))]
        tokens = tokens_of[seq.request]
        num_new = min(8, max(1, len(tokens) - seq.num_tokens))
        if seq.num_tokens + num_new > MAX_TOKENS or rng.random() < 0.1:
            rng.choice([cache.abort, lambda s: cache.finish(s, tokens_of[s.request])])(seq)
            continue
        tokens += [rng.randrange(2) for _ in range(seq.num_tokens + num_new - len(tokens))]
        first = seq.num_tokens
        try:
            cache.extend(seq, num_new)
        except OutOfPages:
            num_refused += 1
            cache.abort(seq)
            continue
        reference.write(seq, first, kv_of(tokens, first, seq.num_tokens))
        step = cache.launch()
        for running in cache.sequences.values():
            assert_sees_its_past(reference, running, tokens_of[running.request])
        if rng.random() < 0.8:
            cache.retire(step)
    assert num_refused
    assert cache.prefix.stats.num_hit_pages


def test_reading_a_freed_page_is_noticed():
    cache, reference = new_reference(4)
    seq = cache.admit("a", [1] * 8)
    cache.extend(seq, 8)
    reference.write(seq, 0, kv_of([1] * 8, 0, 8))
    cache.abort(seq)
    with pytest.raises(OwnershipError):
        reference.read(seq, 2)
    k, _ = reference.pool.get_kv_buffer(2)
    assert bool(k[seq.pages[0]].isnan().all()), "freed pages are NaN"


def test_writing_into_a_shared_page_is_noticed():
    cache, reference = new_reference(4)
    first = cache.admit("a", [1] * 8)
    cache.extend(first, 8)
    reference.write(first, 0, kv_of([1] * 8, 0, 8))
    run_step(cache)
    second = cache.admit("b", [1] * 9)
    assert second.num_hit_tokens == 8
    with pytest.raises(OwnershipError, match="does not hold alone"):
        reference.write(second, 4, kv_of([1] * 8, 4, 8))


def test_reading_a_recycled_page_is_noticed():
    """Same location, same position, another generation."""
    cache, reference = new_reference(4)
    first = cache.admit("a", [1] * 4)
    cache.extend(first, 4)
    reference.write(first, 0, kv_of([1] * 4, 0, 4))
    stale = dataclasses.replace(first, pages=first.pages[:])
    cache.abort(first)
    second = cache.admit("a", [2] * 4)
    cache.extend(second, 4)
    assert second.pages == stale.pages
    with pytest.raises(OwnershipError, match="would be read"):
        reference.read(stale, 2)
