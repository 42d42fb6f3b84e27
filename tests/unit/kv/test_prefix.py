"""The radix tree: what is found, what is refused and why, what goes first, and how fast."""

from __future__ import annotations

from array import array

import pytest

from playhead.kv.geometry import KVGeometry
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.layout import lay_out
from playhead.kv.plan import KVLimits, plan_kv
from playhead.kv.prefix import Outcome, PrefixCache, token_key
from playhead.kv.violations import ViolationLog
from playhead.testing.kv_rules import small_layer, small_plan
from tests.counting import executed_lines

HYBRID = [small_layer(8), small_layer(None)]
FULL_ONLY = [small_layer(None)]


def new_prefix(layers=HYBRID, *, page_size: int = 2, num_slabs: int = 200) -> tuple[PrefixCache, HybridAllocator]:
    allocator = HybridAllocator(small_plan(layers, page_size=page_size, num_slabs=num_slabs), ViolationLog(strict=True))
    return PrefixCache(allocator), allocator


def store(prefix: PrefixCache, allocator: HybridAllocator, tokens: list[int], *, salt: str = "") -> array[int]:
    """What a finished request leaves: all its pages in the tree, held by nobody."""
    pages = array("i", allocator.allocate(len(tokens) // allocator.page_size))
    key = token_key(tokens[: len(pages) * allocator.page_size])
    known = prefix.insert(salt, key, pages)
    prefix.touch(salt, key)
    for window in range(allocator.num_windows):
        prefix.windows_idle(window, allocator.drop_windows(window, pages), slid=False)
    allocator.drop(pages)
    return known + pages[len(known) :]


def lose_window(prefix: PrefixCache, allocator: HybridAllocator, full_page: int) -> None:
    prefix.windows_busy(0, [full_page])
    allocator.forget_windows(0, full_page)


def hold(prefix: PrefixCache, allocator: HybridAllocator, pages: array[int]) -> None:
    """What a request does with its hit."""
    allocator.hold(pages)
    for window in range(allocator.num_windows):
        prefix.windows_busy(window, pages)
        allocator.hold_windows(window, pages)


def match(prefix: PrefixCache, tokens: list[int], *, salt: str = ""):
    hit = prefix.match(salt, token_key(tokens))
    return list(hit.pages), hit.outcome


def test_a_stored_prompt_is_found_whole():
    prefix, allocator = new_prefix()
    pages = store(prefix, allocator, list(range(20)))
    assert match(prefix, list(range(20))) == (list(pages), Outcome.HIT)


def test_a_longer_prompt_finds_the_stored_part():
    prefix, allocator = new_prefix()
    pages = store(prefix, allocator, list(range(20)))
    assert match(prefix, [*range(20), 99, 98])[0] == list(pages)


def test_a_prompt_that_differs_in_a_page_finds_what_is_before_it():
    prefix, allocator = new_prefix()
    pages = store(prefix, allocator, list(range(20)))
    assert match(prefix, [*range(13), 99, 98, 97])[0] == list(pages[:6])


def test_nothing_stored_is_a_miss():
    prefix, _ = new_prefix()
    assert match(prefix, [1, 2, 3, 4]) == ([], Outcome.MISS)


def test_equal_prompts_under_different_salts_share_nothing():
    prefix, allocator = new_prefix()
    ours = store(prefix, allocator, list(range(8)), salt="a")
    theirs = store(prefix, allocator, list(range(8)), salt="b")
    assert not set(ours) & set(theirs)
    assert match(prefix, list(range(8)), salt="c") == ([], Outcome.MISS)


def test_branches_share_their_common_pages():
    prefix, allocator = new_prefix()
    first = store(prefix, allocator, [1, 1, 2, 2, 3, 3])
    second = store(prefix, allocator, [1, 1, 2, 2, 4, 4])
    assert list(second[:2]) == list(first[:2])
    assert prefix.num_pages == 4
    assert match(prefix, [1, 1, 2, 2, 4, 4])[0] == list(second)
    assert match(prefix, [1, 1, 2, 2, 3, 3])[0] == list(first)


def test_a_hit_needs_the_window_pages_its_next_token_sees():
    """Window 8, page size 2: behind token 20 the next token sees tokens 13 to 19, pages 6 to 9."""
    prefix, allocator = new_prefix()
    pages = store(prefix, allocator, list(range(20)))
    for full_page in pages[:6]:
        lose_window(prefix, allocator, full_page)
    assert match(prefix, list(range(20))) == (list(pages), Outcome.HIT)


def test_a_hit_is_shortened_to_where_its_windows_are_whole():
    prefix, allocator = new_prefix()
    pages = store(prefix, allocator, list(range(20)))
    lose_window(prefix, allocator, pages[7])
    assert match(prefix, list(range(20))) == (list(pages[:7]), Outcome.HIT_SHORTENED)


def test_a_hit_without_any_window_is_refused_and_counted():
    prefix, allocator = new_prefix()
    pages = store(prefix, allocator, list(range(8)))
    for full_page in pages:
        lose_window(prefix, allocator, full_page)
    assert match(prefix, list(range(8))) == ([], Outcome.REFUSED)
    assert prefix.stats.num_by_outcome == {Outcome.REFUSED: 1}
    assert prefix.stats.hit_rate == 0


def test_hit_rate_counts_pages():
    prefix, allocator = new_prefix()
    store(prefix, allocator, list(range(8)))
    match(prefix, [*range(8), *range(100, 108)])
    assert prefix.stats.hit_rate == 0.5


def test_the_oldest_leaf_goes_first_and_whole():
    prefix, allocator = new_prefix()
    first = store(prefix, allocator, [1] * 12)
    store(prefix, allocator, [2] * 12)
    match(prefix, [1] * 12)
    hold(prefix, allocator, first)
    prefix.windows_idle(0, allocator.drop_windows(0, first), slid=False)
    allocator.drop(first)
    assert prefix.evict(1) == 6
    assert match(prefix, [2] * 12) == ([], Outcome.MISS)
    assert match(prefix, [1] * 12)[1] is Outcome.HIT


def test_without_windows_a_leaf_loses_only_the_pages_that_are_wanted():
    prefix, allocator = new_prefix(FULL_ONLY)
    pages = store(prefix, allocator, [1] * 12)
    assert prefix.evict(2) == 2
    assert match(prefix, [1] * 12)[0] == list(pages[:4])


def test_a_parent_becomes_evictable_when_its_last_child_is_gone():
    prefix, allocator = new_prefix()
    store(prefix, allocator, [1, 1, 2, 2])
    store(prefix, allocator, [1, 1, 3, 3])
    prefix.evict(100)
    assert prefix.num_pages == 0
    assert list(prefix.nodes()) == []
    assert allocator.groups[0].num_taken == 0


def test_held_pages_are_not_evicted():
    prefix, allocator = new_prefix()
    pages = store(prefix, allocator, [1] * 12)
    hold(prefix, allocator, pages[:4])
    assert prefix.evict(100) == 2
    assert match(prefix, [1] * 12) == (list(pages[:4]), Outcome.HIT)


def test_window_pages_that_slide_out_and_nobody_asked_for_are_free_at_once():
    prefix, allocator = new_prefix()
    pages = array("i", allocator.allocate(6))
    prefix.insert("", token_key([2] * 12), pages)
    prefix.windows_idle(0, allocator.drop_windows(0, pages[:3]), slid=True)
    assert [allocator.has_window(0, page) for page in pages] == [False] * 3 + [True] * 3
    assert allocator.num_cached == [0, 0]


@pytest.mark.parametrize("ask", ["lookup", "end of a prompt"])
def test_window_pages_before_a_point_of_likely_hits_are_kept_when_they_slide_out(ask):
    prefix, allocator = new_prefix()
    pages = array("i", allocator.allocate(6))
    prefix.insert("", token_key([2] * 12), pages)
    if ask == "lookup":
        match(prefix, [2] * 6)
    else:
        prefix.want_hit_behind(pages[:3])
    prefix.windows_idle(0, allocator.drop_windows(0, pages[:3]), slid=True)
    assert all(allocator.has_window(0, page) for page in pages)
    assert allocator.num_cached == [0, 3]


def test_a_window_expires_under_pages_that_stay():
    """The running request holds its full pages; of its prefix only window pages can go."""
    prefix, allocator = new_prefix()
    pages = array("i", allocator.allocate(6))
    prefix.insert("", token_key([2] * 12), pages)
    match(prefix, [2] * 6)
    prefix.windows_idle(0, allocator.drop_windows(0, pages[:3]), slid=True)
    assert prefix.evict(100) == 3
    assert prefix.num_pages == 6


def test_pages_of_a_running_step_are_not_evicted():
    prefix, allocator = new_prefix()
    allocator.mapping.take_unpublished()
    step = allocator.launch()
    store(prefix, allocator, [1] * 12)
    assert prefix.evict(1) == 0
    allocator.retire(step)
    assert prefix.evict(1) == 6


def test_flush_forgets_everything_but_what_sequences_hold():
    prefix, allocator = new_prefix()
    pages = store(prefix, allocator, [1] * 12)
    hold(prefix, allocator, pages[:2])
    prefix.flush()
    assert match(prefix, [1] * 12) == ([], Outcome.MISS)
    assert [group.num_taken for group in allocator.groups] == [2, 2]
    assert allocator.num_cached == [0, 0]


def test_lookups_alone_do_not_make_the_leaf_heap_grow():
    prefix, allocator = new_prefix()
    store(prefix, allocator, [1] * 12)
    for _ in range(1000):
        match(prefix, [1] * 12)
    assert len(prefix._leaves) <= 70


def lines_of_a_match(num_tokens, page_size, ending):
    geometry = KVGeometry.of([small_layer(512), small_layer(None)], page_size)
    limits = KVLimits(max_context_tokens=num_tokens, max_running=1, chunk_tokens=512)
    num_slabs = 10 + 2 * num_tokens // page_size
    plan = plan_kv(num_bytes=num_slabs * lay_out(geometry).slab_bytes, geometry=geometry, limits=limits)
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    prefix = PrefixCache(allocator)
    tokens = [i * 7919 % 262144 for i in range(num_tokens)]
    pages = store(prefix, allocator, tokens)
    if ending == "windows gone":
        for full_page in pages:
            lose_window(prefix, allocator, full_page)
    if ending == "differs late":
        tokens[-100] = -1
    return executed_lines(lambda: prefix.match("", token_key(tokens)))


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("ending", ["whole", "windows gone", "differs late"])
def test_matching_32k_tokens_takes_no_more_steps_than_matching_2k(page_size, ending):
    """What grows with the prompt is left to numpy and to comparing bytes; Python sees a node or a window at a time."""
    few, many = (lines_of_a_match(num_tokens, page_size, ending) for num_tokens in (2048, 32768))
    assert many == few
