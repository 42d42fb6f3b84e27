"""The KV memory a scheduler works with: sequences that grow, slide, finish and share prefixes.

Every step: `extend` each sequence of the step, `publish` the pool's mapping, `begin`, run it, `commit`; later `retire`
the step. With `commit` the step's tokens count as written: prompts are offered to the prefix cache and windows slide. A
step that fails is never committed, so the prefix cache never knows a page that was not computed. Torch-free: the
engine, the simulation and the state machine run this same code.

Every change is all or nothing. Sequences are the truth, and a change touches its sequence in one assignment; who holds
which page is an account that follows from them. A change marks the account `in_doubt` while it works. If it is cut
short, by any exception, the mark stays, and the account is counted again from the sequences (`restore.py`) as soon as
no step is in flight.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import compress

import numpy as np

from playhead.errors import ContextTooLong, LedgerError, OutOfPages
from playhead.kv.geometry import next_slide, num_pages_for, window_frontier
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.plan import KVPlan
from playhead.kv.prefix import TOKEN_BYTES, PrefixCache, token_key
from playhead.kv.restore import restore
from playhead.kv.sequence import NEVER, SequenceKV, Stride
from playhead.kv.tables import FULL, Int32Array, RowTables
from playhead.kv.violations import ViolationLog
from playhead.types import FullLoc, Step


class HybridKVCache:
    """All KV pages, the sequences that hold them and the prefixes that are kept."""

    def __init__(self, plan: KVPlan, *, prefix_caching: bool = True, strict: bool = False) -> None:
        self.plan = plan
        self.violations = ViolationLog(strict=strict)
        self.allocator = HybridAllocator(plan, self.violations)
        self.prefix = PrefixCache(self.allocator)
        self.sequences: dict[str, SequenceKV] = {}
        self.num_preempted = 0
        self.in_doubt = False
        """Whether a change of the account was cut short: nothing can be had before it is counted again."""
        self.num_restored = 0
        self._extended: dict[str, SequenceKV] = {}
        self._advanced: Stride | None = None
        self.prefix_caching = prefix_caching
        """Whether pages of prompts and answers stay for others."""
        self._page_size = plan.geometry.page_size
        self._page_bytes = TOKEN_BYTES * self._page_size
        self._windows = tuple(group.window or 0 for group in plan.geometry.windows)
        self.rows = RowTables(
            num_groups=len(plan.geometry.groups),
            max_running=plan.limits.max_running,
            max_pages=num_pages_for(plan.limits.max_context_tokens, self._page_size),
        )

    # The life of a sequence.

    def admit(self, request: str, prompt: Sequence[int], *, salt: str = "", reads_prefixes: bool = True) -> SequenceKV:
        """A sequence with a row, standing behind the longest prefix the cache has, if it may read prefixes.

        At least one prompt token is left to compute: its output is what the request asks for.
        """
        if len(prompt) > self.plan.limits.max_context_tokens:
            raise ContextTooLong(request, len(prompt), self.plan.limits.max_context_tokens)
        if request in self.sequences:
            raise LedgerError(
                f"admit: request {request!r} is running already; wanted a new name. Finish or abort the other first"
            )
        key = token_key(prompt) if self.prefix_caching else b""
        with Change(self):
            seq = SequenceKV(
                request=request,
                salt=salt,
                row=self.rows.take(),
                prompt_key=key,
                pages=array("i"),
                frontiers=[0] * len(self._windows),
                num_hit_tokens=0,
                offered_key=b"",
            )
            if self.prefix_caching and reads_prefixes:
                num_pages = (len(prompt) - 1) // self._page_size
                self._continue_from(seq, self.prefix.match(salt, self._whole_pages(key, num_pages)).pages)
            self.sequences[request] = seq
        return seq

    def extend(self, seq: SequenceKV, num_new_tokens: int) -> None:
        """Places for the next tokens, or `OutOfPages` with no token placed."""
        end = seq.num_tokens + num_new_tokens
        if end > self.plan.limits.max_context_tokens:
            raise ContextTooLong(seq.request, end, self.plan.limits.max_context_tokens)
        num_missing = num_pages_for(end, self._page_size) - len(seq.pages)
        if num_missing > 0:
            self._append_pages(seq, num_missing)
        self._extended[seq.request] = seq
        seq.num_tokens = end

    def places_left(self, rows: Int32Array, ends: Int32Array) -> Int32Array:
        """How many tokens from these positions on the sequences of these rows have pages for."""
        return np.minimum(self.num_places_of(rows), np.int32(self.plan.limits.max_context_tokens)) - ends

    def join(self, stride: Stride, seqs: Sequence[SequenceKV]) -> None:
        """These sequences grow together with those of a stride from now on, by `advance`."""
        stride.add(seqs)
        for seq in seqs:
            seq.join(stride)

    def advance(self, stride: Stride) -> None:
        """A place for one more token of each sequence of a stride. Their pages are there (`places_left`)."""
        self._advanced = stride
        stride.num_placed += 1

    def retract(self) -> None:
        """Take back all places of tokens that no step has written. Their pages stay reserved."""
        if self._advanced is not None:
            self._advanced.num_placed = self._advanced.num_launched
            self._advanced = None
        for seq in self._extended.values():
            seq.num_tokens = seq.num_launched_tokens
        self._extended.clear()

    def reserve(self, seqs: Sequence[SequenceKV], ends: Int32Array) -> None:
        """Pages for the tokens of each sequence before its end, for all or for none. No token is placed.

        A step that finds its next places reserved needs nothing from the host.
        """
        rows = np.array([seq.row for seq in seqs], dtype=np.int32)
        num_pages = -(-np.minimum(ends, self.plan.limits.max_context_tokens) // self._page_size)
        counts = np.maximum(num_pages - self.rows.num_pages[rows], 0)
        if counts.any():
            with suppress(OutOfPages), Change(self):
                self._append_to_all(seqs, rows, counts)

    def _append_to_all(self, seqs: Sequence[SequenceKV], rows: Int32Array, counts: Int32Array) -> None:
        pages, mapping = array("i", self._allocate(int(counts.sum()))), self.allocator.mapping
        fulls = np.array(pages)
        under = (mapping.table(window_group)[fulls] for window_group in range(mapping.num_groups))
        self.rows.append(rows, counts, [fulls, *under])
        first = 0
        for seq, count in zip(seqs, counts.tolist(), strict=True):
            seq.pages.extend(pages[first : first + count])
            first += count

    def has_vacancy(self, num_tokens: int) -> bool:
        """Whether every group could place this many tokens without preempting. Cached prefixes may go for it."""
        num_pages = num_pages_for(num_tokens, self._page_size)
        available = zip(self.allocator.groups, self.allocator.num_cached, strict=True)
        return all(group.num_available + num_cached >= num_pages for group, num_cached in available)

    def num_places(self, seq: SequenceKV) -> int:
        """Tokens that the sequence has pages for, used or reserved."""
        return len(seq.pages) * self._page_size

    def num_places_of(self, rows: Int32Array) -> Int32Array:
        """The same for the sequences of many rows."""
        return self.rows.num_pages[rows] * np.int32(self._page_size)

    def finish(self, seq: SequenceKV, tokens: Sequence[int]) -> None:
        """The request is done; the pages of its known tokens stay for others, as far as they are whole."""
        try:
            if self.prefix_caching and not self.in_doubt:
                known = min(len(tokens), seq.num_launched_tokens) // self._page_size
                with Change(self):
                    self._offer(seq, self._whole_pages(token_key(tokens), known))
        finally:
            self._release([seq])  # the request has ended even if the offer raised

    def preempt(self, seq: SequenceKV, tokens: Sequence[int]) -> None:
        """Take a running request's memory; it will be admitted again and computed anew, or found in the cache."""
        self.num_preempted += 1
        self.finish(seq, tokens)

    def abort(self, seq: SequenceKV) -> None:
        """The request is gone; nothing is kept beyond what its prompt had already given to the cache."""
        self._release([seq])

    def finish_all(self, ended: Sequence[tuple[SequenceKV, Sequence[int]]]) -> None:
        """The same as `finish` for requests that are done together. If no prefixes stay, all pages go at once."""
        if not self.prefix_caching:
            self._release([seq for seq, _ in ended])
            return
        for seq, tokens in ended:
            self.finish(seq, tokens)

    def flush_prefixes(self) -> None:
        """Forget all cached prefixes; running sequences keep their pages."""
        if not self.in_doubt:  # in doubt: the recount empties the cache
            with Change(self):
                self.prefix.flush()

    # Steps.

    def launch(self) -> Step:
        """Begin and commit a step at once: for callers without a device, whose steps cannot fail."""
        step = self.begin()
        self.commit()
        return step

    def begin(self) -> Step:
        """The number of the step that computes what was extended; refused while the device's mapping is behind."""
        return self.allocator.launch()

    def commit(self) -> None:
        """The step that was begun is on its way: what was extended counts as written.

        Pages that its sequences no longer need are given up here, and can be reused when the step has retired.
        """
        stride = self._advanced
        if stride is not None and stride.num_placed < stride.next_look and not (self._extended or self.in_doubt):
            stride.num_launched, self._advanced = stride.num_placed, None  # the account stays as it is
            return
        with Change(self):
            for seq in self._extended.values():
                seq.num_launched_tokens = seq.num_tokens
            self._look_at(self._extended.values())
            self._extended.clear()
            if self._advanced is not None:
                self._commit_stride(self._advanced)
                self._advanced = None

    def _commit_stride(self, stride: Stride) -> None:
        """The same for a stride, of which those sequences are looked at that may have something to give up."""
        stride.num_launched = num_launched = stride.num_placed
        if num_launched < stride.next_look:
            return
        (places,) = (stride.looks_at <= num_launched).nonzero()
        due = [stride.seqs[place] for place in places.tolist()]
        here = [seq.growth.stride is stride and self.sequences.get(seq.request) is seq for seq in due]
        self._look_at(list(compress(due, here)))
        # Sequences that have left are never due again: otherwise every later step would look at them.
        looks_at = [stride.looks_at_next(seq) if is_here else NEVER for seq, is_here in zip(due, here, strict=True)]
        stride.looks_at[places] = looks_at
        stride.next_look = int(stride.looks_at.min())

    def _look_at(self, seqs: Iterable[SequenceKV]) -> None:
        """Offer the prompts' pages and slide the windows of sequences whose tokens count as written.

        A prompt's window slides before the next prompt is offered, which may find only what others still hold.
        """
        sliding: list[SequenceKV] = []
        for seq in seqs:
            is_under_way = not seq.is_offered
            if is_under_way:
                self._offer_prompt(seq)
            if seq.num_launched_tokens >= seq.slides_at:
                sliding.append(seq)
                if is_under_way:
                    self._slide(sliding)
                    sliding = []
        if sliding:
            self._slide(sliding)

    def retire(self, step: Step) -> None:
        """This step is done: what was given up while it ran can be reused."""
        if self.in_doubt:
            self.allocator.retired_step = step
            self.settle()
        else:
            with Change(self):
                self.allocator.retire(step)

    # Doubt.

    def distrust(self) -> None:
        """The account was found wrong: count it again, now or when no step is in flight."""
        self.in_doubt = True
        self.settle()

    def settle(self) -> bool:
        """Count the account again if it is in doubt; False if that must wait for the steps in flight."""
        if self.in_doubt and self.allocator.retired_step == self.allocator.launched_step:
            restore(self)
            self.num_restored += 1
            self.in_doubt = False
        return not self.in_doubt

    # What a step needs to know.

    def full_locs(self, rows: Int32Array, positions: Int32Array) -> Int32Array:
        """Full locations of tokens, each at a position of a row.

        With pages 3 and 7 of size 4 in row 2, positions 2 to 5 of it are at 14, 15, 28, 29.
        """
        pages = positions // np.int32(self._page_size)
        locs: Int32Array = (self.rows.tables[FULL][rows, pages] - pages) * np.int32(self._page_size) + positions
        return locs

    def full_loc(self, seq: SequenceKV, position: int) -> FullLoc:
        """One token's full location."""
        return FullLoc(seq.pages[position // self._page_size] * self._page_size + position % self._page_size)

    # Prefixes.

    def _continue_from(self, seq: SequenceKV, pages: array[int]) -> None:
        """Hold a hit's pages, and in each window group only those its next token can see."""
        seq.num_tokens = seq.num_launched_tokens = seq.num_hit_tokens = len(pages) * self._page_size
        seq.offered_key = self._whole_pages(seq.prompt_key, len(pages))
        seq.pages = pages
        self.allocator.hold(pages)
        for window_group, size in enumerate(self._windows):
            seq.frontiers[window_group] = window_frontier(seq.num_tokens, size, self._page_size)
            self._hold_windows(window_group, pages[seq.frontiers[window_group] :])
        self._write_row(seq, 0, pages)

    def _offer_prompt(self, seq: SequenceKV) -> None:
        """Give the cache the prompt's pages that are filled by now."""
        seq.is_offered = not self.prefix_caching or len(seq.offered_key) + self._page_bytes > len(seq.prompt_key)
        if seq.is_offered:
            return
        filled = self._whole_pages(seq.prompt_key, seq.num_launched_tokens // self._page_size)
        if len(filled) > len(seq.offered_key):
            self._offer(seq, filled)
            if len(filled) + self._page_bytes > len(seq.prompt_key):
                # The likeliest next requests: this prompt again, with one token left to compute, or a longer one.
                for end in {len(filled), len(seq.prompt_key) - TOKEN_BYTES}:
                    self.prefix.want_hit_behind(seq.pages[: end // self._page_bytes])

    def _offer(self, seq: SequenceKV, key: bytes) -> None:
        """Insert a sequence's first pages; where the tree has these tokens already, use its pages and drop ours."""
        known = self.prefix.insert(seq.salt, key, seq.pages[: len(key) // self._page_bytes])
        for index, theirs in enumerate(known):
            if theirs != seq.pages[index]:
                self._adopt(seq, index, theirs)
        seq.offered_key = key

    def _adopt(self, seq: SequenceKV, index: int, theirs: int) -> None:
        """Exchange one of a sequence's own pages for the tree's page with the same contents.

        If the tree's page has lost its window page, ours moves over: a prefix that was computed again can be hit again.
        """
        allocator, ours = self.allocator, seq.pages[index]
        if allocator.num_holders(FULL, ours) > 1:
            return  # after a flush two sequences may share a page the tree has lost; its windows are not ours to move
        allocator.hold([theirs])
        for window_group, frontier in enumerate(seq.frontiers):
            if index >= frontier and allocator.has_window(window_group, theirs):
                self._hold_windows(window_group, [theirs])
                self._drop_windows(window_group, [ours], slid=False)
        allocator.move_windows(ours, theirs)
        allocator.drop([ours])
        seq.pages[index] = theirs
        self._write_row(seq, index, seq.pages[index : index + 1])

    # Pages.

    def _allocate(self, num_pages: int) -> list[int]:
        """Pages in all groups, at the cache's expense where there are no free ones."""
        while True:
            try:
                return self.allocator.allocate(num_pages)
            except OutOfPages as shortage:
                if not self.prefix.evict(shortage.wanted - shortage.free):
                    raise

    def _append_pages(self, seq: SequenceKV, num_pages: int) -> None:
        with Change(self):
            pages = array("i", self._allocate(num_pages))
            self._write_row(seq, len(seq.pages), pages)
            seq.pages.extend(pages)

    def _slide(self, seqs: Sequence[SequenceKV]) -> None:
        """Let window pages go that neither the next token nor a hit at the last whole page can see."""
        passed_pages: list[list[int]] = [[] for _ in self._windows]
        page_size = self._page_size
        for seq in seqs:
            num_tokens, slides_at = seq.num_launched_tokens, self.plan.limits.max_context_tokens + 1
            for window_group, size in enumerate(self._windows):
                passed, frontier = seq.frontiers[window_group], window_frontier(num_tokens, size, page_size)
                if frontier > passed:
                    passed_pages[window_group] += seq.pages[passed:frontier]
                    self.rows.clear(window_group + 1, seq.row, passed, frontier)
                    seq.frontiers[window_group] = passed = frontier
                slides_at = min(slides_at, next_slide(passed, size, page_size))
            seq.slides_at = slides_at
        for window_group, pages in enumerate(passed_pages):
            if pages:
                self._drop_windows(window_group, pages, slid=True)

    def _release(self, seqs: Sequence[SequenceKV]) -> None:
        """Sequences are gone with their names; the account follows, at once or when it is counted again."""
        if not seqs:
            return
        for seq in seqs:
            self._extended.pop(seq.request, None)
        if self.in_doubt:
            for seq in seqs:
                del self.sequences[seq.request]
            self.settle()
            return
        with Change(self):
            for seq in seqs:
                del self.sequences[seq.request]
                if seq.offered_key:
                    self.prefix.touch(seq.salt, seq.offered_key)
            for window_group in range(len(self._windows)):
                seen: list[int] = []
                for seq in seqs:
                    seen += seq.pages[seq.frontiers[window_group] :]
                self._drop_windows(window_group, seen, slid=False)
            pages: list[int] = []
            for seq in seqs:
                pages += seq.pages
            self.allocator.drop(pages)
            for seq in seqs:
                self.rows.give_back(seq.row)

    def _hold_windows(self, window_group: int, full_pages: Sequence[int]) -> None:
        self.prefix.windows_busy(window_group, full_pages)
        self.allocator.hold_windows(window_group, full_pages)

    def _drop_windows(self, window_group: int, full_pages: Sequence[int], *, slid: bool) -> None:
        kept = self.allocator.drop_windows(window_group, full_pages)
        if kept:
            self.prefix.windows_idle(window_group, kept, slid=slid)

    def _write_row(self, seq: SequenceKV, first: int, pages: Sequence[int]) -> None:
        """Show these pages in a sequence's row, from entry `first` on."""
        self.rows.write(FULL, seq.row, first, pages)
        for window_group, frontier in enumerate(seq.frontiers):
            start = max(first, frontier)
            window_pages = self.allocator.mapping.window_pages(window_group, pages[start - first :])
            self.rows.write(window_group + 1, seq.row, start, window_pages)

    def _whole_pages(self, key: bytes, num_pages: int) -> bytes:
        """The bytes of the first whole pages of a key, at most this many."""
        return key[: min(num_pages, len(key) // self._page_bytes) * self._page_bytes]


class Change:
    """The account may be wrong inside, and is right or in doubt after."""

    def __init__(self, cache: HybridKVCache) -> None:
        self._cache = cache

    def __enter__(self) -> None:
        if self._cache.in_doubt and not self._cache.settle():
            raise LedgerError(
                "KV cache: a change was cut short and the account must be counted again; wanted the steps in flight "
                "retired first. Call settle() until it returns True"
            )
        self._cache.in_doubt = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None or issubclass(kind, OutOfPages):  # by contract of all who raise it, nothing has changed
            self._cache.in_doubt = False
        else:
            self._cache.settle()
