"""Sequences: admission behind a prefix, growth, sliding windows, and the three ways to end."""

from __future__ import annotations

import numpy as np
import pytest

from playhead.errors import ContextTooLong, LedgerError, OutOfPages
from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import Ledger
from playhead.kv.sequence import SequenceKV
from playhead.kv.tables import FULL
from playhead.testing.kv_rules import MAX_CONTEXT_TOKENS, run_step, small_layer, small_plan

HYBRID = [small_layer(8), small_layer(8), small_layer(None)]


def new_cache(*, page_size: int = 4, num_slabs: int = 60, prefix_caching: bool = True, layers=HYBRID) -> HybridKVCache:
    plan = small_plan(layers, page_size=page_size, num_slabs=num_slabs)
    return HybridKVCache(plan, prefix_caching=prefix_caching, strict=True)


def run(cache: HybridKVCache, name: str, prompt: list[int], *, num_decoded: int = 0) -> SequenceKV:
    """Admit and compute a prompt in chunks of 8, then decode."""
    seq = cache.admit(name, prompt)
    while seq.num_tokens < len(prompt):
        cache.extend(seq, min(8, len(prompt) - seq.num_tokens))
        run_step(cache)
    for _ in range(num_decoded):
        cache.extend(seq, 1)
        run_step(cache)
    Ledger(cache).check()
    return seq


def live_windows(cache: HybridKVCache, seq: SequenceKV) -> list[bool]:
    return [cache.allocator.has_window(0, page) for page in seq.pages]


def test_tokens_2_to_5_of_pages_3_and_7_are_at_14_15_28_29():
    cache = new_cache()
    seq = run(cache, "a", [1] * 8)
    seq.pages[0], seq.pages[1] = 3, 7
    cache.rows.write(FULL, seq.row, 0, seq.pages)
    assert cache.full_locs(np.full(4, seq.row, np.int32), np.arange(2, 6, dtype=np.int32)).tolist() == [14, 15, 28, 29]
    assert [cache.full_loc(seq, position) for position in range(2, 6)] == [14, 15, 28, 29]


def test_window_pages_go_during_decode():
    cache = new_cache(prefix_caching=False)
    seq = run(cache, "a", [1], num_decoded=30)
    assert live_windows(cache, seq) == [False] * 5 + [True] * 3
    assert cache.allocator.groups[1].num_taken == 3


def test_window_pages_go_between_the_chunks_of_a_prefill():
    cache = new_cache(prefix_caching=False)
    seq = cache.admit("a", [1] * 40)
    most = 0
    for _ in range(5):
        cache.extend(seq, 8)
        run_step(cache)
        most = max(most, cache.allocator.groups[1].num_taken)
    assert most * 4 <= 8 + 8 + 4


def test_a_second_request_continues_behind_the_first_one_s_prompt():
    cache = new_cache()
    first = run(cache, "a", [1] * 20)
    cache.finish(first, [1] * 20)
    second = cache.admit("b", [1] * 20 + [2] * 5)
    assert second.num_hit_tokens == second.num_tokens == 20


def test_a_hit_leaves_at_least_one_token_to_compute():
    cache = new_cache()
    cache.finish(run(cache, "a", [1] * 20), [1] * 20)
    assert cache.admit("b", [1] * 20).num_hit_tokens == 16


@pytest.mark.parametrize("num_decoded", range(8))
def test_a_finished_request_can_be_continued_at_its_last_whole_page(num_decoded):
    """Whatever the offset in its last page: the next turn of a chat starts there."""
    cache = new_cache()
    tokens = [1] * 13 + [2] * num_decoded
    cache.finish(run(cache, "a", [1] * 13, num_decoded=num_decoded), tokens)
    assert cache.admit("b", [*tokens, *[3] * 8]).num_hit_tokens == len(tokens) // 4 * 4


def test_the_same_prompt_again_is_found_although_the_first_one_decoded_on():
    cache = new_cache()
    cache.finish(run(cache, "a", [1] * 20, num_decoded=20), [1] * 20 + [2] * 20)
    assert cache.admit("b", [1] * 20 + [3]).num_hit_tokens == 20


def test_a_running_request_s_prompt_is_shared_at_once():
    cache = new_cache()
    first = run(cache, "a", [1] * 8)
    second = cache.admit("b", [1] * 8 + [2])
    assert second.pages == first.pages[:2]


def test_two_computations_of_one_prompt_end_up_on_the_same_pages():
    cache = new_cache()
    first, second = cache.admit("a", [1] * 8), cache.admit("b", [1] * 8)
    cache.extend(first, 8)
    cache.extend(second, 8)
    assert first.pages != second.pages
    run_step(cache)
    assert first.pages == second.pages
    assert cache.allocator.groups[0].num_taken == 2
    Ledger(cache).check()


def test_a_prefix_computed_again_gets_its_windows_back():
    cache = new_cache()
    cache.finish(run(cache, "a", [1] * 16), [1] * 16)
    for page in list(cache.prefix.idle_windows(0)):
        cache.prefix.windows_busy(0, [page])
        cache.allocator.forget_windows(0, page)
    again = run(cache, "b", [1] * 17)
    assert again.num_hit_tokens == 0
    cache.finish(again, [1] * 17)
    assert cache.admit("c", [1] * 17).num_hit_tokens == 16
    assert cache.prefix.num_pages == 4
    Ledger(cache).check()


def test_a_page_two_sequences_share_after_a_flush_is_not_exchanged():
    """Its windows serve the other one too; moving them would take them away."""
    cache = new_cache()
    cache.finish(run(cache, "a", [1] * 8), [1] * 8)
    first, second = cache.admit("b", [1] * 8 + [2] * 4), cache.admit("c", [1] * 8 + [3] * 4)
    cache.flush_prefixes()
    cache.finish(run(cache, "d", [1] * 8), [1] * 8)
    cache.extend(first, 4)
    run_step(cache)
    Ledger(cache).check()
    assert all(live_windows(cache, second))


@pytest.mark.parametrize("end", ["finish", "abort", "preempt"])
def test_the_end_of_a_request_gives_back_everything_the_cache_does_not_keep(end):
    cache = new_cache()
    seq = run(cache, "a", [1] * 10, num_decoded=3)
    if end == "abort":
        cache.abort(seq)
    else:
        {"finish": cache.finish, "preempt": cache.preempt}[end](seq, [1] * 13)
    assert cache.allocator.num_held == [0, 0]
    assert cache.rows.num_free == 5
    cache.flush_prefixes()
    assert [group.num_taken for group in cache.allocator.groups] == [0, 0]


def test_a_preempted_request_finds_its_tokens_when_it_returns():
    cache = new_cache()
    seq = run(cache, "a", [1] * 10, num_decoded=6)
    cache.preempt(seq, [1] * 10 + [2] * 6)
    assert cache.num_preempted == 1
    assert cache.admit("a", [1] * 10 + [2] * 6 + [3]).num_hit_tokens == 16


def test_without_the_prefix_cache_nothing_is_kept():
    cache = new_cache(prefix_caching=False)
    cache.finish(run(cache, "a", [1] * 20), [1] * 20)
    assert [group.num_taken for group in cache.allocator.groups] == [0, 0]
    assert cache.admit("b", [1] * 20).num_hit_tokens == 0


def test_memory_is_taken_from_the_cache_before_a_request_is_refused():
    cache = new_cache(num_slabs=16)
    for index in range(12):
        cache.finish(run(cache, f"r{index}", [index] * 20), [index] * 20)
    assert cache.prefix.num_pages > 0


def test_a_refused_extension_places_nothing():
    cache = new_cache(num_slabs=16)
    running = [cache.admit(f"r{index}", [index] * 40) for index in range(5)]
    for seq in running[:-1]:
        cache.extend(seq, 8)
    last = running[-1]
    with pytest.raises(OutOfPages):
        cache.extend(last, 40)
    assert (last.num_tokens, len(last.pages)) == (0, 0)
    Ledger(cache).check()


def test_a_context_beyond_the_plan_is_refused():
    cache = new_cache()
    with pytest.raises(ContextTooLong, match=f"wanted at most {MAX_CONTEXT_TOKENS}"):
        cache.admit("a", [1] * (MAX_CONTEXT_TOKENS + 1))
    seq = cache.admit("b", [1])
    with pytest.raises(ContextTooLong):
        cache.extend(seq, MAX_CONTEXT_TOKENS + 1)
    assert cache.rows.num_free == 4


def test_a_name_that_is_running_is_not_admitted_twice():
    cache = new_cache()
    cache.admit("a", [1])
    with pytest.raises(LedgerError, match="'a' is running already"):
        cache.admit("a", [1])
    assert cache.rows.num_free == 4


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1])
def test_a_token_beyond_32_bits_takes_no_row(token):
    cache = new_cache()
    with pytest.raises(OverflowError):
        cache.admit("a", [token])
    assert cache.rows.num_free == 5


def test_rows_show_pages_and_live_windows():
    cache = new_cache()
    seq = run(cache, "a", [1] * 20)
    full, window = cache.rows.tables
    assert full[seq.row, :6].tolist() == [*seq.pages, 0]
    assert window[seq.row, :3].tolist() == [0, 0, 0]
    assert all(window[seq.row, 3:5])


def test_tokens_that_were_placed_but_never_computed_are_not_cached():
    """A scheduler places tokens, then runs out of pages for another request and preempts this one."""
    cache = new_cache()
    seq = cache.admit("a", [1] * 20)
    cache.extend(seq, 8)
    run_step(cache)
    cache.extend(seq, 8)
    cache.preempt(seq, [1] * 20)
    assert cache.admit("b", [1] * 20).num_hit_tokens == 8


def test_a_window_does_not_slide_before_the_step_that_reads_it_is_launched():
    cache = new_cache(prefix_caching=False)
    seq = cache.admit("a", [1] * 40)
    cache.extend(seq, 12)
    cache.extend(seq, 12)
    assert all(live_windows(cache, seq))
    run_step(cache)
    assert live_windows(cache, seq) == [False] * 4 + [True] * 2


MODELS = {
    "hybrid": (16, 16, None),
    "all full": (None,),
    "all window": (16,),
    "two windows": (16, 32, None),
}


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("model", list(MODELS))
def test_every_kind_of_model_runs_at_every_page_size(model, page_size):
    layers = [small_layer(window, num_kv_heads=1 + index) for index, window in enumerate(MODELS[model])]
    cache = new_cache(page_size=page_size, layers=layers, num_slabs=400)
    cache.finish(run(cache, "a", [1] * 30, num_decoded=10), [1] * 40)
    second = run(cache, "b", [1] * 45)
    assert second.num_hit_tokens == 40 // page_size * page_size
    cache.abort(second)
