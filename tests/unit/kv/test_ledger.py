"""The account: silent when it balances, exact when it does not, and alive in production."""

from __future__ import annotations

import pytest

from playhead.errors import LedgerError
from playhead.kv.audit import report
from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import Ledger
from playhead.kv.prefix import token_key
from playhead.kv.violations import Violation, ViolationKind, ViolationLog
from playhead.testing.kv_rules import run_step, small_layer, small_plan
from tests.counting import executed_lines


def running_cache(*, strict: bool, num_slabs: int = 60, num_requests: int = 2) -> HybridKVCache:
    """One finished and two running requests, or more of them."""
    plan = small_plan(
        [small_layer(8), small_layer(None)], page_size=4, num_slabs=num_slabs, max_running=max(num_requests, 8)
    )
    cache = HybridKVCache(plan, strict=strict)
    names = ["done", "a", "b", *(f"r{i}" for i in range(num_requests - 2))]
    for token, name in enumerate(names, start=1):
        seq = cache.admit(name, [token] * 20)
        for num_tokens in (12, 8, 1):
            cache.extend(seq, num_tokens)
            run_step(cache)
        if name == "done":
            cache.finish(seq, [token] * 21)
    return cache


def leak(cache: HybridKVCache) -> None:
    cache.allocator.groups[1].take(1)


def hold_too_often(cache: HybridKVCache) -> None:
    cache.allocator.hold(cache.sequences["a"].pages[:1])


def free_held(cache: HybridKVCache) -> None:
    cache.allocator.groups[0].give_back([cache.sequences["a"].pages[0]])


def show_a_stranger(cache: HybridKVCache) -> None:
    cache.rows.tables[0][cache.sequences["a"].row, 9] = 5


def lose_the_way_back(cache: HybridKVCache) -> None:
    mapping = cache.allocator.mapping
    mapping._full_of[0][mapping.window_page(0, cache.sequences["a"].pages[-1])] = 0


def lend_a_slab_twice(cache: HybridKVCache) -> None:
    cache.allocator.arena.give_back([1])


BUGS = {
    ViolationKind.LEAK: leak,
    ViolationKind.WRONG_COUNT: hold_too_often,
    ViolationKind.TWO_STATES: free_held,
    ViolationKind.BAD_ROW: show_a_stranger,
    ViolationKind.BAD_MAPPING: lose_the_way_back,
}


def test_a_sound_cache_has_nothing_to_report():
    assert not Ledger(running_cache(strict=True)).check()


@pytest.mark.parametrize("kind", list(BUGS), ids=lambda kind: kind.name)
def test_every_kind_of_violation_is_found(kind):
    cache = running_cache(strict=True)
    BUGS[kind](cache)
    assert kind in {violation.kind for violation in Ledger(cache).audit()}
    with pytest.raises(LedgerError):
        Ledger(cache).check()


def test_a_slab_that_is_lent_and_free_is_found():
    cache = running_cache(strict=True)
    lend_a_slab_twice(cache)
    assert "arena" in {violation.group for violation in Ledger(cache).audit()}


@pytest.mark.parametrize("is_retained", [True, False])
def test_a_page_that_is_retained_without_the_tree_or_in_the_tree_without_being_retained_is_found(is_retained):
    """Before its last holder has gone: then one would be kept for ever, the other handed out while others hit it."""
    cache = running_cache(strict=False)
    page = cache.sequences["a"].pages[-1 if is_retained else 0]
    assert cache.allocator.is_retained(page) is not is_retained
    cache.allocator._is_retained[page] = is_retained
    findings = Ledger(cache).check(full=True)
    assert {(one.kind, one.page) for one in findings.violations} == {(ViolationKind.WRONG_COUNT, page)}
    assert set(findings.by_request) == {"a"}
    again = cache.admit("again", [2] * 21)
    assert again.num_hit_tokens == 0
    assert Ledger(cache).audit() == []


def test_in_production_a_leaked_page_is_quarantined_and_reported_once():
    cache = running_cache(strict=False)
    ledger = Ledger(cache)
    assert not ledger.check()
    leak(cache)
    findings = ledger.check()
    assert {violation.kind for violation in findings.violations} == {ViolationKind.LEAK}
    assert findings.by_request == {}, "nobody had the page"
    assert not ledger.check()
    assert cache.allocator.groups[1].num_quarantined == 1
    assert "1 x leak" in report(cache)


@pytest.mark.parametrize("kind", list(BUGS), ids=lambda kind: kind.name)
def test_in_production_the_requests_that_are_touched_are_named_and_the_account_is_sound_again(kind):
    cache = running_cache(strict=False)
    ledger = Ledger(cache)
    BUGS[kind](cache)
    findings = ledger.check(full=True)
    assert set(findings.by_request) == (set() if kind is ViolationKind.LEAK else {"a"})
    assert ledger.audit() == []
    for name in set(cache.sequences) - set(findings.by_request):
        cache.finish(cache.sequences[name], [3] * 21)
    for name in set(cache.sequences) & set(findings.by_request):
        cache.abort(cache.sequences[name])
    seq = cache.admit("c", [4] * 20)
    cache.extend(seq, 20)
    assert not ledger.check(full=True)


def test_a_quarantined_page_is_never_handed_out_or_hit_again():
    cache = running_cache(strict=False)
    page = cache.prefix.match("", token_key([1] * 20)).pages[0]
    cache.allocator.hold([page])  # counted for a sequence that does not exist
    assert Ledger(cache).check(full=True)
    again = cache.admit("again", [1] * 21)
    assert again.num_hit_tokens == 0
    cache.abort(again)
    cache.flush_prefixes()
    for name in list(cache.sequences):
        cache.abort(cache.sequences[name])
    handed_out = cache.allocator.groups[0].take(cache.allocator.groups[0].num_available)
    assert page not in handed_out


def test_the_production_check_takes_as_many_steps_for_a_large_cache_as_for_a_small_one():
    few = executed_lines(Ledger(running_cache(strict=False)).check)
    many = executed_lines(Ledger(running_cache(strict=False, num_slabs=6000, num_requests=200)).check)
    assert many == few


def test_the_report_is_a_table_that_adds_up():
    cache = running_cache(strict=True)
    lines = report(cache).splitlines()
    assert lines[0].split() == ["group", "pages", "free", "pending", "held", "cached", "quarantined"]
    for line in lines[1:3]:
        pages, *states = [int(word) for word in line.split()[1:]]
        assert pages == sum(states)


def test_the_log_keeps_the_last_hundred():
    log = ViolationLog(strict=False)
    for page in range(150):
        log.add(Violation(kind=ViolationKind.LEAK, group="full", page=page, detail="gone"))
    assert log.num_by_kind[ViolationKind.LEAK] == 150
    assert [violation.page for violation in log.kept] == list(range(50, 150))
