"""The prefix cache: a radix tree over pages that knows about windows.

A node is a run of pages with one continuation; its children start with different pages. Nodes own full pages; a
window page hangs under its full page and may expire while the full page stays. A hit of L tokens is valid if the full
pages of [0, L) are there and, in every window group, the window pages of those tokens before L that the token at L
can see. Every tree belongs to one salt: equal prompts under different salts share nothing.

A window page that a running request slides past is kept only if a lookup ended behind it before, or its prompt did:
other window pages would never be hit, and would scatter live ones over the slabs. When memory is short, the oldest goes
first: leaves (whole, because a hybrid prefix without its last window cannot be hit) and single window pages.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from playhead.kv.geometry import pages_outside_window
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.tables import FULL, NO_PAGE

TOKEN_BYTES = 4


def token_key(tokens: Sequence[int]) -> bytes:
    """Tokens as the bytes prefixes are compared by; two tokens make 8 bytes."""
    return array("i", tokens).tobytes()


class Outcome(Enum):
    """What a lookup found, and why it was not more."""

    HIT = "hit"
    """All pages that the tree has of this prefix."""
    HIT_SHORTENED = "hit shortened: window expired"
    """Fewer: the window pages before the end of the longest prefix are gone."""
    REFUSED = "refused: window expired"
    """The tree has pages of this prefix, and the windows of none of them."""
    MISS = "miss"
    """The tree has no page of this prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """Full pages of a valid prefix, in order, and how the lookup went."""

    pages: array[int]
    outcome: Outcome


@dataclass(slots=True, kw_only=True)
class PrefixStats:
    """Lookups so far. Mutable: it is a set of counters."""

    num_by_outcome: Counter[Outcome] = field(default_factory=Counter)
    num_asked_pages: int = 0
    num_hit_pages: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the pages asked for that were found."""
        return self.num_hit_pages / self.num_asked_pages if self.num_asked_pages else 0.0


class PrefixNode:
    """A run of pages. `key` are its tokens' bytes; `tick` is when it was last used. Mutable: nodes split and grow."""

    __slots__ = ("children", "key", "pages", "parent", "salt", "tick")

    def __init__(self, *, salt: str, key: bytes, pages: array[int], parent: PrefixNode | None) -> None:
        self.salt = salt
        self.key = key
        self.pages = pages
        self.parent = parent
        self.children: dict[bytes, PrefixNode] = {}
        self.tick = 0


class PrefixCache:
    """Pages kept for later requests. The allocator counts who holds them; this class decides what is worth keeping."""

    def __init__(self, allocator: HybridAllocator) -> None:
        self.stats = PrefixStats()
        self.num_pages = 0
        self._allocator = allocator
        self._page_bytes = TOKEN_BYTES * allocator.page_size
        self._windows = tuple(group.window or 0 for group in allocator.plan.geometry.windows)
        self._roots: dict[str, PrefixNode] = {}
        self._tick = 0
        self._num_nodes = 0
        self._leaves: list[tuple[int, int, PrefixNode]] = []
        self._num_pushed = 0
        # Cached window pages by the full page above them, oldest first, with the tick of their last use.
        self._idle: tuple[OrderedDict[int, int], ...] = tuple(OrderedDict() for _ in self._windows)
        self._is_wanted = bytearray(allocator.plan.num_pages(FULL))

    # Lookup and insertion.

    def match(self, salt: str, key: bytes) -> PrefixHit:
        """The longest valid prefix of these tokens. Its pages are not held yet: the caller does that at once."""
        path = self._walk(salt, key)
        self._touch(path)
        pages: array[int] = array("i")
        for node, used in path:
            pages += node.pages if used == len(node.pages) else node.pages[:used]
        num_valid = self._longest_valid(pages)
        self.want_hit_behind(pages)
        if num_valid == len(pages):
            outcome = Outcome.HIT if num_valid else Outcome.MISS
        else:
            outcome = Outcome.HIT_SHORTENED if num_valid else Outcome.REFUSED
        self.stats.num_by_outcome[outcome] += 1
        self.stats.num_asked_pages += len(key) // self._page_bytes
        self.stats.num_hit_pages += num_valid
        return PrefixHit(pages=pages[:num_valid], outcome=outcome)

    def insert(self, salt: str, key: bytes, pages: array[int]) -> array[int]:
        """Retain the pages of these tokens, as far as the tree has none for them.

        Returns the tree's own pages for the tokens it knew before; the caller must use those and drop its copies.
        """
        assert len(key) == len(pages) * self._page_bytes, "a key covers whole pages, and each of them"
        path = self._walk(salt, key)
        known: array[int] = array("i")
        for node, used in path:
            known += node.pages[:used]
        if len(known) < len(pages):
            if not path:
                end = self._root(salt)
            else:
                node, used = path[-1]
                end = node if used == len(node.pages) else self._split(node, used)
                path[-1] = (end, used)
            grown = self._grow(end, key[len(known) * self._page_bytes :], pages[len(known) :])
            if not path or grown is not path[-1][0]:
                path.append((grown, len(grown.pages)))
        self._touch(path)
        return known

    def touch(self, salt: str, key: bytes) -> None:
        """These tokens were just used: what a request gives up behind this call is evicted last."""
        self._touch(self._walk(salt, key))

    # Window pages change hands.

    def windows_idle(self, window_group: int, full_pages: Sequence[int], *, slid: bool) -> None:
        """No sequence holds the window pages under these any more. Those worth keeping stay until memory is short."""
        for page in full_pages:
            if slid and not self._is_wanted[page]:
                self._allocator.forget_windows(window_group, page)
            else:
                self._idle[window_group][page] = self._tick

    def windows_busy(self, window_group: int, full_pages: Sequence[int]) -> None:
        """The window pages under these are held again."""
        for page in full_pages:
            self._idle[window_group].pop(page, None)

    def want_hit_behind(self, pages: array[int]) -> None:
        """A request may continue behind these pages: their last window is worth keeping when it slides out."""
        if not self._windows or not pages:
            return
        num_tokens = len(pages) * self._allocator.page_size
        first = pages_outside_window(num_tokens, max(self._windows), self._allocator.page_size)
        for page in pages[first:]:
            self._is_wanted[page] = 1

    # Eviction.

    def evict(self, num_pages: int) -> int:
        """Give up about this many pages, the least useful first; returns how many went, 0 when nothing can go."""
        num_evicted = 0
        while num_evicted < num_pages:
            num_gone = self._evict_oldest(num_pages - num_evicted)
            if not num_gone:
                break
            num_evicted += num_gone
        return num_evicted

    def flush(self) -> None:
        """Forget everything. Pages that sequences hold stay theirs."""
        for node in list(self.nodes()):
            self._forget(node.pages)
            node.parent = None
        self._roots.clear()
        self._leaves.clear()
        self._num_nodes = 0

    def restore(self) -> None:
        """Forget everything, beside an account that is counted again: nothing in it is given back."""
        self._roots.clear()
        self._leaves.clear()
        for idle in self._idle:
            idle.clear()
        self._is_wanted = bytearray(len(self._is_wanted))
        self.num_pages = self._num_nodes = 0

    def nodes(self) -> Iterator[PrefixNode]:
        """Every node that has pages, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.pages:
                yield node
            stack.extend(node.children.values())

    def idle_windows(self, window_group: int) -> Iterator[int]:
        """Full pages whose window page is cached, for the ledger."""
        return iter(self._idle[window_group])

    # The tree.

    def _walk(self, salt: str, key: bytes) -> list[tuple[PrefixNode, int]]:
        """Nodes along these tokens, each with how many of its pages match; only the last may match in part."""
        path: list[tuple[PrefixNode, int]] = []
        node = self._roots.get(salt)
        position, page_bytes = 0, self._page_bytes
        while node is not None and position + page_bytes <= len(key):
            child = node.children.get(key[position : position + page_bytes])
            if child is None:
                break
            if key.startswith(child.key, position):
                used = len(child.pages)
            else:
                used = _common_bytes(child.key, key[position : position + len(child.key)]) // page_bytes
            path.append((child, used))
            position += used * page_bytes
            node = child if used == len(child.pages) else None
        return path

    def _root(self, salt: str) -> PrefixNode:
        if salt not in self._roots:
            self._roots[salt] = PrefixNode(salt=salt, key=b"", pages=array("i"), parent=None)
        return self._roots[salt]

    def _split(self, node: PrefixNode, num_pages: int) -> PrefixNode:
        """Cut a node in two and return the upper half; the lower half keeps the node's identity."""
        assert node.parent is not None, "a root has no pages to split"
        cut = num_pages * self._page_bytes
        upper = PrefixNode(salt=node.salt, key=node.key[:cut], pages=node.pages[:num_pages], parent=node.parent)
        upper.tick = node.tick
        node.parent.children[upper.key[: self._page_bytes]] = upper
        node.key, node.pages, node.parent = node.key[cut:], node.pages[num_pages:], upper
        upper.children[node.key[: self._page_bytes]] = node
        self._num_nodes += 1
        return upper

    def _grow(self, end: PrefixNode, key: bytes, pages: array[int]) -> PrefixNode:
        """Put pages behind a node: into it if it is a leaf, as a child otherwise. Returns the node they are in."""
        key = key[: len(pages) * self._page_bytes]
        self._allocator.retain(pages)
        self.num_pages += len(pages)
        if end.parent is not None and not end.children:
            end.key += key
            end.pages += pages
            return end
        child = PrefixNode(salt=end.salt, key=key, pages=pages, parent=end)
        end.children[key[: self._page_bytes]] = child
        self._num_nodes += 1
        return child

    def _touch(self, path: list[tuple[PrefixNode, int]]) -> None:
        self._tick += 1
        for node, _ in path:
            node.tick = self._tick
        if path and not path[-1][0].children:
            self._push(path[-1][0])

    # Validity.

    def _longest_valid(self, pages: array[int]) -> int:
        """The most pages a hit can have: for each length, no window page it needs may be missing."""
        if not self._windows or not pages:
            return len(pages)
        page_ids = np.frombuffer(pages, dtype=np.int32)
        page_size = self._allocator.page_size
        tables = [self._allocator.mapping.table(window_group) for window_group in range(len(self._windows))]
        first_needed = [pages_outside_window(len(pages) * page_size, size, page_size) for size in self._windows]
        if all((table[page_ids[first:]] != NO_PAGE).all() for table, first in zip(tables, first_needed, strict=True)):
            return len(pages)
        lengths = np.arange(len(pages), dtype=np.int32)
        is_valid = np.ones(len(pages), dtype=np.bool_)
        for table, size in zip(tables, self._windows, strict=True):
            num_missing = np.zeros(len(pages) + 1, dtype=np.int32)
            np.cumsum(table[page_ids] == NO_PAGE, out=num_missing[1:])
            # The array form of pages_outside_window.
            first = np.maximum(0, lengths * page_size - size + 1) // page_size
            is_valid &= num_missing[:-1] == num_missing[first]
        return int(np.flatnonzero(is_valid)[-1])

    # Eviction, inside.

    def _push(self, leaf: PrefixNode) -> None:
        self._num_pushed += 1
        heapq.heappush(self._leaves, (leaf.tick, self._num_pushed, leaf))
        # Outdated entries are dropped when they come up; a cache that is only read must not collect them for ever.
        if len(self._leaves) > 64 + 4 * self._num_nodes:
            self._leaves = [entry for entry in self._leaves if self._is_current(entry)]
            heapq.heapify(self._leaves)

    def _is_current(self, entry: tuple[int, int, PrefixNode]) -> bool:
        tick, _, node = entry
        return tick == node.tick and node.parent is not None and not node.children and self._is_idle(node.pages[-1])

    def _is_idle(self, full_page: int) -> bool:
        return not self._allocator.num_holders(FULL, full_page)

    def _oldest_leaf(self) -> PrefixNode | None:
        """The leaf unused for longest whose end no sequence holds and no running step can touch."""
        while self._leaves and not self._is_current(self._leaves[0]):
            heapq.heappop(self._leaves)
        if not self._leaves:
            return None
        leaf = self._leaves[0][2]
        return leaf if self._allocator.is_settled(FULL, leaf.pages[-1]) else None

    def _oldest_window(self) -> tuple[int, int, int] | None:
        """(tick, window, full page) of the oldest cached window page no running step can touch."""
        oldest = []
        for window_group, pages in enumerate(self._idle):
            if pages:
                page, tick = next(iter(pages.items()))
                window_page = self._allocator.mapping.window_page(window_group, page)
                if self._allocator.is_settled(window_group + 1, window_page):
                    oldest.append((tick, window_group, page))
        return min(oldest, default=None)

    def _evict_oldest(self, num_pages: int) -> int:
        """Give up one leaf or one window page; of two as old, the leaf, which takes its windows along."""
        leaf, found = self._oldest_leaf(), self._oldest_window()
        if leaf is not None and (found is None or leaf.tick <= found[0]):
            return self._evict_leaf(leaf, num_pages)
        if found is None:
            return 0
        _, window_group, page = found
        del self._idle[window_group][page]
        self._allocator.forget_windows(window_group, page)
        return 1

    def _evict_leaf(self, leaf: PrefixNode, num_pages: int) -> int:
        """Give up a leaf from its end to its last held page; without windows, no more than is wanted."""
        assert leaf.parent is not None, "a root has no pages to evict"
        start = len(leaf.pages)
        stop = 0 if self._windows else max(0, start - num_pages)
        while start > stop and self._is_idle(leaf.pages[start - 1]):
            start -= 1
        gone = leaf.pages[start:]
        self._forget(gone)
        if start:
            leaf.key, leaf.pages = leaf.key[: start * self._page_bytes], leaf.pages[:start]
            return len(gone)
        parent = leaf.parent
        del parent.children[leaf.key[: self._page_bytes]]
        leaf.parent = None
        self._num_nodes -= 1
        if not parent.children:
            if parent.parent is None:
                del self._roots[parent.salt]
            else:
                self._push(parent)
        return len(gone)

    def _forget(self, full_pages: array[int]) -> None:
        for window_group in range(len(self._windows)):
            self.windows_busy(window_group, full_pages)
        for page in full_pages:
            self._is_wanted[page] = 0
        self.num_pages -= len(full_pages)
        self._allocator.forget(full_pages)


def _common_bytes(a: bytes, b: bytes) -> int:
    """Length of the common beginning: 4 for b"tape" and b"tapes"."""
    length = min(len(a), len(b))
    left, right = np.frombuffer(a, np.uint8, length), np.frombuffer(b, np.uint8, length)
    differing = np.flatnonzero(left != right)
    return int(differing[0]) if len(differing) else length
