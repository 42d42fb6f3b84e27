"""The router: longest known prefix, then load, then a ring; bounded memory; tenants apart."""

from __future__ import annotations

import random

from playhead.scale.router import MAX_PROMPT_PAGES, Loads, Reason, Router, page_keys

PAGE = 4


def keys(tokens: list[int], salt: str = "") -> list[bytes]:
    return page_keys(tokens, salt, page_tokens=PAGE)


def test_router_prefers_the_replica_with_the_longest_prefix():
    router, loads = Router(["a", "b"]), Loads(["a", "b"])
    prompt = list(range(16))
    router.observe(keys(prompt[:8]), "a")
    router.observe(keys(prompt), "b")
    assert router.choose(keys(prompt), loads) == ("b", Reason.PREFIX, 4)
    assert router.choose(keys([*prompt[:8], 99, 99, 99, 99]), loads)[1:] == (Reason.PREFIX, 2)


def test_router_takes_the_less_loaded_of_equal_prefixes():
    router, loads = Router(["a", "b"]), Loads(["a", "b"])
    prompt = list(range(8))
    for name in ("a", "b"):
        router.observe(keys(prompt), name)
    loads.add("a", 2)
    assert router.choose(keys(prompt), loads).replica == "b"
    loads.add("b", 3)
    assert router.choose(keys(prompt), loads).replica == "a"


def test_router_spills_when_the_holder_has_too_much_to_do():
    router, loads = Router(["a", "b"], slack=2, ratio=1.5), Loads(["a", "b"])
    prompt = list(range(8))
    router.observe(keys(prompt), "a")
    loads.add("a", 8)  # the mean is 4 and the limit 8
    assert router.choose(keys(prompt), loads).replica == "a"
    loads.add("a", 1)
    assert router.choose(keys(prompt), loads) == ("b", Reason.SPILLED, 0)


def test_router_does_not_use_pages_whose_beginning_is_elsewhere():
    """A page without those before it is no hit: the cache of a replica is a tree from the first token on."""
    router, loads = Router(["a", "b"]), Loads(["a", "b"])
    first, second = keys(list(range(8)))
    router.observe([first], "a")
    router.observe([second], "b")
    assert router.choose([first, second], loads) == ("a", Reason.PREFIX, 1)


def test_router_keeps_tenants_apart():
    router, loads = Router(["a", "b", "c"]), Loads(["a", "b", "c"])
    prompt = list(range(32))
    router.observe(keys(prompt, "one"), "a")
    assert router.choose(keys(prompt, "two"), loads).reason is Reason.UNKNOWN
    assert not set(keys(prompt, "one")) & set(keys(prompt, "two"))


def test_router_sends_unknown_prompts_of_one_prefix_to_one_replica_and_all_prompts_to_all():
    names = [f"r{i}" for i in range(8)]
    loads = Loads(names)
    generator = random.Random(1)
    prompts = [[generator.randrange(1000) for _ in range(12)] for _ in range(400)]
    chosen = [Router(names).choose(keys(prompt), loads).replica for prompt in prompts[:40]]
    again = [Router(reversed(names)).choose(keys([*prompt, 7, 7, 7, 7]), loads).replica for prompt in prompts[:40]]
    assert chosen == again
    router = Router(names)
    counts = [0] * len(names)
    for prompt in prompts:
        counts[names.index(router.choose(keys(prompt), loads).replica)] += 1
    assert min(counts) > 10


def test_ring_moves_few_prompts_when_a_replica_goes():
    names = [f"r{i}" for i in range(8)]
    router, loads = Router(names), Loads(names)
    prompts = [[i] * PAGE for i in range(400)]
    before = [router.choose(keys(prompt), loads).replica for prompt in prompts]
    router.forget("r3")
    after = [router.choose(keys(prompt), loads).replica for prompt in prompts]
    assert "r3" in before
    assert "r3" not in after
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "r3")


def test_router_forgets_the_pages_of_a_replica_that_is_gone():
    router, loads = Router(["a", "b"]), Loads(["a", "b"])
    prompt = list(range(8))
    router.observe(keys(prompt), "a")
    router.forget("a")
    loads.remove("a")
    assert router.choose(keys(prompt), loads) == ("b", Reason.UNKNOWN, 0)


def test_router_remembers_a_bounded_number_of_pages_and_drops_the_oldest():
    router, loads = Router(["a", "b"], max_pages=10), Loads(["a", "b"])
    for i in range(100):
        router.observe(keys([i] * 8), "a")
    assert router.num_pages == 10
    assert router.choose(keys([99] * 8), loads).reason is Reason.PREFIX
    assert router.choose(keys([0] * 8), loads).reason is Reason.UNKNOWN


def test_router_remembers_a_bounded_number_of_holders_of_a_page():
    names = [f"r{i}" for i in range(20)]
    router, loads = Router(names), Loads(names)
    prompt = list(range(8))
    for name in names:
        router.observe(keys(prompt), name)
    for name in names[-4:]:
        router.forget(name)
    assert router.choose(keys(prompt), loads).reason is Reason.UNKNOWN  # the last four were remembered


def test_router_spreads_prompts_shorter_than_a_page_by_load():
    names = [f"r{i}" for i in range(4)]
    router, loads = Router(names, slack=1000), Loads(names)
    for _ in range(400):
        loads.add(router.choose(keys([1, 2]), loads).replica, 1)
    assert max(loads[name] for name in names) - min(loads[name] for name in names) < 40


def test_loads_without_a_replica_forget_its_sequences():
    loads = Loads(["a", "b"])
    loads.add("a", 3)
    loads.add("b", 1)
    loads.remove("a")
    assert (loads.total, len(loads), loads["a"], loads.mean) == (1, 1, 0, 1.0)


def test_router_looks_at_the_beginning_of_a_prompt_however_long_it_is():
    """A prompt of a million tokens would hold the event loop, and take the places of all others."""
    tokens = range(PAGE * (MAX_PROMPT_PAGES + 50))
    assert len(page_keys(tokens, "", page_tokens=PAGE)) == MAX_PROMPT_PAGES


def test_router_gives_the_places_of_replicas_that_are_gone_to_those_that_are_there():
    router, prompt = Router(["old", "r1", "r2", "r3"]), keys(list(range(8)))
    router.observe(prompt, "old")
    for gone in ("r1", "r2", "r3"):
        router.observe(prompt, gone)
        router.forget(gone)
    router.add("new")
    router.observe(prompt, "new")
    assert all(router._holders[key] == ("new", "old") for key in prompt)


def test_router_remembers_nothing_of_a_replica_that_takes_no_more():
    """It finishes what it has, and its answers would take the places of prompts that can be found."""
    router = Router(["a", "b"])
    router.forget("a")
    router.observe(keys(list(range(8))), "a")
    assert router.num_pages == 0
