"""The rules of KV memory (K6), driven beside a model in plain sets and dicts that knows what every location must hold.

The model learns page numbers from the cache but nothing else: which tokens lie where (K5), which pages a launched
step may touch, and what a prefix lookup must find follow from the rules' own records. A test or a checker calls rules
in any order; each one ends with `check`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playhead.errors import OutOfPages
from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVDtype, KVGeometry, LayerKV, pages_outside_window
from playhead.kv.layout import lay_out
from playhead.kv.ledger import Ledger
from playhead.kv.plan import KVLimits, KVPlan, plan_kv
from playhead.kv.sequence import SequenceKV
from playhead.kv.tables import FULL
from playhead.types import FullLoc, Step

MAX_CONTEXT_TOKENS = 48
CHUNK_TOKENS = 12


def run_step(cache: HybridKVCache) -> None:
    """One step without a device: launched and retired at once."""
    cache.allocator.mapping.take_unpublished()
    cache.retire(cache.launch())


class RuleBroken(AssertionError):
    """The cache did something its rules forbid."""


@dataclass(slots=True, kw_only=True, eq=False)
class ModelRequest:
    """What the model knows of a running request; mutable, it grows. `idents[i]` names token i and all before it."""

    seq: SequenceKV
    salt: str
    tokens: list[int]
    idents: list[int]
    num_prompt_tokens: int
    num_written: int = 0


def small_layer(window: int | None, *, num_kv_heads: int = 1, k_head_dim: int = 8) -> LayerKV:
    """A layer of a few bytes, in fp32 so that values survive exactly."""
    return LayerKV(window=window, num_kv_heads=num_kv_heads, k_head_dim=k_head_dim, v_head_dim=8, dtype=KVDtype.FLOAT32)


def small_plan(layers: Sequence[LayerKV], *, page_size: int, num_slabs: int, max_running: int = 5) -> KVPlan:
    """A plan so tight that every rule meets full pools."""
    geometry = KVGeometry.of(layers, page_size)
    limits = KVLimits(max_context_tokens=MAX_CONTEXT_TOKENS, max_running=max_running, chunk_tokens=CHUNK_TOKENS)
    return plan_kv(num_bytes=num_slabs * lay_out(geometry).slab_bytes, geometry=geometry, limits=limits)


class KVRules:
    """One cache, its model, and the rules."""

    def __init__(self, plan: KVPlan, *, prefix_caching: bool = True) -> None:
        self.cache = HybridKVCache(plan, prefix_caching=prefix_caching, strict=True)
        self.ledger = Ledger(self.cache)
        self.num_rules_run = 0
        self.num_out_of_pages = 0
        self.requests: dict[str, ModelRequest] = {}
        self._prefix_caching = prefix_caching
        self._page_size = plan.geometry.page_size
        self._windows = tuple(group.window or 0 for group in plan.geometry.windows)
        self._names: dict[tuple[int, int | str], int] = {}
        self._next_request = 0
        self._preempted: list[tuple[str, list[int]]] = []
        self._history: list[tuple[str, list[int]]] = []
        self._held_by_full_loc: dict[int, int] = {}
        self._held_by_window_loc: tuple[dict[int, int], ...] = tuple({} for _ in self._windows)
        self._in_flight: dict[Step, list[set[int]]] = {}

    # Rules.

    def admit(self, salt: str, prompt: list[int]) -> None:
        """A new request, whose hit must be exactly what the definition says."""
        if not self.cache.rows.num_free:
            return
        idents = self._idents(salt, prompt)
        expected = self._expected_hit_pages(idents) if self._prefix_caching else 0
        self._next_request += 1
        name = f"r{self._next_request}"
        seq = self.cache.admit(name, prompt, salt=salt)
        if seq.num_hit_tokens != expected * self._page_size:
            raise RuleBroken(f"{name}: hit of {seq.num_hit_tokens} tokens; the definition says {expected} pages")
        self.requests[name] = ModelRequest(
            seq=seq,
            salt=salt,
            tokens=list(prompt),
            idents=idents,
            num_prompt_tokens=len(prompt),
            num_written=seq.num_hit_tokens,
        )
        self._history = [*self._history, (salt, list(prompt))][-8:]
        self.check()

    def share_prefix(self, which: int, num_kept: int, tail: list[int]) -> None:
        """A request that begins like an earlier one."""
        if self._history:
            salt, tokens = self._history[which % len(self._history)]
            self.admit(salt, (tokens[: 1 + num_kept % len(tokens)] + tail)[: MAX_CONTEXT_TOKENS - 8])

    def readmit(self) -> None:
        """A preempted request comes back with all its tokens as prompt."""
        if self._preempted and self.cache.rows.num_free:
            self.admit(*self._preempted.pop())

    def extend(self, which: int, num_tokens: int) -> None:
        """The next chunk of a prompt; a request that has none left decodes."""
        request = self._pick(which)
        if request is None:
            return
        left = request.num_prompt_tokens - request.seq.num_tokens
        if left <= 0:
            self.decode(which, num_tokens)
        else:
            self._extend(request, min(left, num_tokens, CHUNK_TOKENS))

    def decode(self, which: int, token: int) -> None:
        """One token more, if the prompt is done and the context has room."""
        request = self._pick(which)
        if request is None or request.seq.num_tokens < request.num_prompt_tokens:
            return
        if request.seq.num_tokens >= MAX_CONTEXT_TOKENS:
            self.finish(which)
            return
        if len(request.tokens) == request.seq.num_tokens:
            request.tokens.append(token)
            request.idents = self._idents(request.salt, request.tokens)
        self._extend(request, 1)

    def finish(self, which: int) -> None:
        request = self._pick(which)
        if request is not None:
            self._history = [*self._history, (request.salt, list(request.tokens))][-8:]
            self._end(request, lambda: self.cache.finish(request.seq, request.tokens))

    def abort(self, which: int) -> None:
        request = self._pick(which)
        if request is not None:
            self._end(request, lambda: self.cache.abort(request.seq))

    def preempt(self, which: int) -> None:
        request = self._pick(which)
        if request is not None:
            if len(request.tokens) <= MAX_CONTEXT_TOKENS - 8:
                self._preempted.append((request.salt, list(request.tokens)))
            self._end(request, lambda: self.cache.preempt(request.seq, request.tokens))

    def evict(self, num_pages: int) -> None:
        self.cache.prefix.evict(num_pages)
        self.check()

    def flush(self) -> None:
        self.cache.flush_prefixes()
        self.check()

    def fail_alloc(self) -> None:
        """Wants that fit one group but not all of them change nothing in any."""
        allocator = self.cache.allocator
        before = [(group.num_available, group.num_taken) for group in allocator.groups]
        for group in allocator.groups:
            wanted = group.num_available
            try:
                pages = allocator.allocate(wanted)
            except OutOfPages:
                pass
            else:
                for window in range(allocator.num_windows):
                    allocator.drop_windows(window, pages)
                allocator.drop(pages)
        after = [(group.num_available, group.num_taken) for group in allocator.groups]
        if before != after and not self._in_flight:
            raise RuleBroken(f"a failed allocation left (available, taken) at {after}; before: {before}")
        self.check()

    def launch(self) -> None:
        """A step that writes what was placed, and may touch every page a running request counts on."""
        touched = [self._held_pages(index) for index in range(1 + len(self._windows))]
        for request in self.requests.values():
            self._write(request)
        self.cache.allocator.mapping.take_unpublished()
        self._in_flight[self.cache.launch()] = touched
        self.check()

    def retire(self) -> None:
        """The oldest step in flight is done."""
        if self._in_flight:
            step = min(self._in_flight)
            del self._in_flight[step]
            self.cache.retire(step)
            self.check()

    # The oracle.

    def check(self) -> None:
        """Every page in one state, every visible token where its request will look for it, windows bounded."""
        self.num_rules_run += 1
        for index in range(1 + len(self._windows)):
            self._check_states(index)
        for request in self.requests.values():
            self._check_contents(request)

    def _check_states(self, group_index: int) -> None:
        allocator = self.cache.allocator
        group = allocator.groups[group_index]
        free, pending = list(group.free_pages()), list(allocator.pending_pages(group_index))
        held, kept = self._held_pages(group_index), self._retained_pages(group_index)
        cached = kept - held
        states = [set(free), set(pending), held, cached]
        everything = set().union(*states)
        if len(everything) != len(free) + len(pending) + len(held) + len(cached):
            raise RuleBroken(f"group {group.name!r}: a page is in two states: {states}")
        if len(everything) != group.num_pages or 0 in everything:
            raise RuleBroken(f"group {group.name!r}: {len(everything)} pages accounted for, {group.num_pages} exist")
        counts = (allocator.num_held[group_index], allocator.num_cached[group_index])
        if counts != (len(held), len(cached)):
            raise RuleBroken(f"group {group.name!r}: counts {counts}; {len(held)} held, {len(cached)} cached")

    def _check_contents(self, request: ModelRequest) -> None:
        seq, num_written = request.seq, request.num_written
        for position in range(num_written):
            if self._held_by_full_loc.get(self.cache.full_loc(seq, position)) != request.idents[position]:
                raise RuleBroken(f"{seq.request}: token {position} is not at its full location")
        for window, size in enumerate(self._windows):
            for position in range(max(0, num_written - size + 1), num_written):
                loc = self._window_loc(window, self.cache.full_loc(seq, position))
                if self._held_by_window_loc[window].get(loc) != request.idents[position]:
                    raise RuleBroken(f"{seq.request}: token {position} is not at its location in window group {window}")
            num_live = seq.num_tokens - seq.frontiers[window] * self._page_size
            if num_live > size + (seq.num_tokens - num_written) + self._page_size:
                raise RuleBroken(f"{seq.request}: {num_live} live tokens in a window of {size}")

    def _expected_hit_pages(self, idents: list[int]) -> int:
        """The definition: the longest prefix whose full pages are kept, and whose window pages its next token needs."""
        page_size = self._page_size
        kept = {self._held_by_full_loc.get((page + 1) * page_size - 1): page for page in self._retained_pages(FULL)}
        for num_pages in range((len(idents) - 1) // page_size, 0, -1):
            pages = [kept.get(idents[(index + 1) * page_size - 1]) for index in range(num_pages)]
            if None not in pages and all(
                self._has_window(window, pages[index] or 0, idents[index * page_size : (index + 1) * page_size])
                for window, size in enumerate(self._windows)
                for index in range(pages_outside_window(num_pages * page_size, size, page_size), num_pages)
            ):
                return num_pages
        return 0

    def _has_window(self, window: int, full_page: int, idents: list[int]) -> bool:
        first = self._window_loc(window, FullLoc(full_page * self._page_size))
        held = self._held_by_window_loc[window]
        return first != 0 and [held.get(first + i) for i in range(self._page_size)] == idents

    # What the model keeps.

    def _extend(self, request: ModelRequest, num_tokens: int) -> None:
        seq = request.seq
        first, num_pages = seq.num_tokens, len(seq.pages)
        try:
            self.cache.extend(seq, num_tokens)
        except OutOfPages:
            self.num_out_of_pages += 1
            if seq.num_tokens != first or len(seq.pages) != num_pages:
                raise RuleBroken(f"{seq.request}: placed tokens although pages ran out") from None
            self.check()
            return
        for page in seq.pages[num_pages:]:
            self._refuse_in_flight(page)
        self.check()

    def _write(self, request: ModelRequest) -> None:
        """What a forward does with the tokens that were placed for it."""
        for position in range(request.num_written, request.seq.num_tokens):
            loc = self.cache.full_loc(request.seq, position)
            self._held_by_full_loc[loc] = request.idents[position]
            for window in range(len(self._windows)):
                self._held_by_window_loc[window][self._window_loc(window, loc)] = request.idents[position]
        request.num_written = request.seq.num_tokens

    def _refuse_in_flight(self, page: int) -> None:
        pages = [page]
        pages += [self.cache.allocator.mapping.window_page(window, page) for window in range(len(self._windows))]
        for step, touched in self._in_flight.items():
            for index, group_page in enumerate(pages):
                if group_page in touched[index]:
                    raise RuleBroken(f"page {group_page} of group {index} was reused while step {step} runs")

    def _end(self, request: ModelRequest, end: Callable[[], None]) -> None:
        del self.requests[request.seq.request]
        end()
        self.check()

    def _pick(self, which: int) -> ModelRequest | None:
        names = list(self.requests)
        return self.requests[names[which % len(names)]] if names else None

    def _idents(self, salt: str, tokens: list[int]) -> list[int]:
        """A number for each token with its whole past, equal exactly for equal pasts under one salt."""
        ident = self._names.setdefault((0, salt), len(self._names) + 1)
        idents = []
        for token in tokens:
            ident = self._names.setdefault((ident, token), len(self._names) + 1)
            idents.append(ident)
        return idents

    def _window_loc(self, window: int, loc: FullLoc) -> int:
        return self.cache.allocator.mapping.window_loc(window, loc)

    def _held_pages(self, group_index: int) -> set[int]:
        pages: set[int] = set()
        for request in self.requests.values():
            seq = request.seq
            if group_index == FULL:
                pages.update(seq.pages)
            else:
                window = group_index - 1
                held = seq.pages[seq.frontiers[window] :]
                pages.update(self.cache.allocator.mapping.window_page(window, page) for page in held)
        return pages

    def _retained_pages(self, group_index: int) -> set[int]:
        kept = {page for node in self.cache.prefix.nodes() for page in node.pages}
        if group_index == FULL:
            return kept
        mapping = self.cache.allocator.mapping
        return {mapping.window_page(group_index - 1, page) for page in kept} - {0}


def run_random_rules(rules: KVRules, *, seed: int, num_rules: int) -> None:
    """Any rule in any order, decided by a seed. Accounts are audited now and then; at the end nothing is left."""
    rng = random.Random(seed)
    choices = {
        "admit": 3, "share_prefix": 5, "readmit": 1, "extend": 14, "decode": 16, "finish": 2, "abort": 1,
        "preempt": 1, "evict": 1, "flush": 0.3, "fail_alloc": 1, "launch": 6, "retire": 9,
    }  # fmt: skip
    names, weights = list(choices), list(choices.values())
    started = rules.num_rules_run
    while rules.num_rules_run - started < num_rules:
        run_rule(rules, rng.choices(names, weights)[0], rng)
        if rng.random() < 0.05:
            rules.ledger.check()
    drain(rules)


def run_rule(rules: KVRules, name: str, rng: random.Random) -> None:
    """One rule with random arguments: few tokens and few prompts, so that prefixes meet."""
    if name == "admit":
        rules.admit(rng.choice(("", "other")), [rng.randrange(2) for _ in range(rng.randrange(1, 30))])
    elif name == "share_prefix":
        rules.share_prefix(rng.randrange(8), rng.randrange(40), [rng.randrange(3) for _ in range(rng.randrange(1, 9))])
    elif name == "extend":
        rules.extend(rng.randrange(8), rng.randrange(1, CHUNK_TOKENS + 1))
    elif name == "decode":
        rules.decode(rng.randrange(8), rng.randrange(2))
    elif name in ("finish", "abort", "preempt"):
        {"finish": rules.finish, "abort": rules.abort, "preempt": rules.preempt}[name](rng.randrange(8))
    elif name == "evict":
        rules.evict(rng.randrange(1, 6))
    else:
        plain = {
            "readmit": rules.readmit, "flush": rules.flush, "fail_alloc": rules.fail_alloc,
            "launch": rules.launch, "retire": rules.retire,
        }  # fmt: skip
        plain[name]()


def drain(rules: KVRules) -> None:
    """End everything: all memory must be free again."""
    while rules.requests:
        rules.abort(0)
    rules.flush()
    rules.launch()
    while rules.cache.allocator.retired_step < rules.cache.allocator.launched_step:
        rules.retire()
    rules.ledger.check()
    allocator = rules.cache.allocator
    leaked = {group.name: group.num_taken for group in allocator.groups if group.num_taken}
    if leaked or allocator.arena.num_free != allocator.arena.num_slabs - 1:
        raise RuleBroken(f"after the end of all requests pages are still taken: {leaked}")
