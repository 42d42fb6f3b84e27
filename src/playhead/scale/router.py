"""Which replica a prompt goes to: the one that has most of it in its prefix cache, unless that one has too much to do.

    keys = page_keys(prompt, salt, page_tokens=16)    one key per whole page; a key stands for all pages up to it
    choice = router.choose(keys, loads)               longest known prefix, then load, then the ring
    router.observe(keys, choice.replica)              that replica has these pages from now on

A prompt of which nothing is known goes where a ring of hashed names says. So fronts that know nothing of each other
send equal prompts to the same replica, and a replica more or less moves few prompts. Integers and dictionaries: no Ray,
no sockets, no torch. A simulator runs this class.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

KEY_BYTES = 8  # two prompts of the same key would share a replica, and nothing else
POINTS_PER_REPLICA = 32
MAX_HOLDERS = 4  # of one page: a prefix that more replicas have is found at one of these
MAX_PAGES = 1 << 18
MAX_PROMPT_PAGES = 1 << 12
"""Pages from a prompt's start on that are looked at, 65,536 tokens of 16 each. A prompt of a million tokens would hold
the event loop for half a second, and a few of them would take the places of all other prompts."""

PageKey = bytes


class Reason(StrEnum):
    """Why a replica was chosen."""

    PREFIX = "prefix"
    """It has the longest known prefix."""
    SPILLED = "spilled"
    """Others have the prefix, and too much to do."""
    UNKNOWN = "unknown"
    """No replica is known to have any page of the prompt."""


class Choice(NamedTuple):
    """A replica, why it was chosen, and how many pages of the prompt it is known to have."""

    replica: str
    reason: Reason
    num_known_pages: int


class Loads:
    """How many sequences each replica has, running and waiting. Mutable: it is a set of counters.

    >>> loads = Loads(["a", "b"])
    >>> loads.add("a", 3)
    >>> loads["a"], loads["b"], loads.mean
    (3, 0, 1.5)
    """

    def __init__(self, replicas: Iterable[str] = ()) -> None:
        self._counts = dict.fromkeys(replicas, 0)
        self.total = 0

    def __getitem__(self, replica: str) -> int:
        return self._counts.get(replica, 0)

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def mean(self) -> float:
        """Sequences per replica."""
        return self.total / max(1, len(self._counts))

    def add(self, replica: str, num_sequences: int) -> None:
        """So many more sequences; below zero for those that ended. A replica that was not known counts from now on."""
        self._counts[replica] = self._counts.get(replica, 0) + num_sequences
        self.total += num_sequences

    def remove(self, replica: str) -> None:
        """The replica is gone, and its sequences with it."""
        self.total -= self._counts.pop(replica, 0)


def page_keys(tokens: Sequence[int], salt: str, *, page_tokens: int) -> list[PageKey]:
    """A key for each of the first `MAX_PROMPT_PAGES` whole pages.

    Equal keys mean an equal salt and equal tokens up to the page's end.

    >>> first, second = (page_keys(tokens, "tenant", page_tokens=2) for tokens in ([1, 2, 3, 4, 5], [1, 2, 9, 9]))
    >>> len(first), len(second), first[0] == second[0], first[1] == second[1]
    (2, 2, True, False)
    """
    so_far = hashlib.blake2b(salt.encode(errors="surrogatepass"), digest_size=KEY_BYTES)
    data = memoryview(array("i", tokens[: MAX_PROMPT_PAGES * page_tokens])).cast("B")
    page_bytes = 4 * page_tokens
    keys = []
    for at in range(0, len(data) - page_bytes + 1, page_bytes):
        so_far.update(data[at : at + page_bytes])
        keys.append(so_far.digest())
    return keys


class Router:
    """Replicas by the prefixes they were sent.

    The pages of at most `max_pages` keys are remembered; the keys that were used longest ago go first. A replica has
    too much to do at more than `slack` sequences above `ratio` times the mean. A name is used for one replica only:
    another one under the name of a dead one would inherit its pages.
    """

    def __init__(
        self, replicas: Iterable[str] = (), *, max_pages: int = MAX_PAGES, ratio: float = 1.25, slack: int = 4
    ) -> None:
        self._holders: OrderedDict[PageKey, tuple[str, ...]] = OrderedDict()
        self._max_pages, self._ratio, self._slack = max_pages, ratio, slack
        self._replicas: set[str] = set()
        self._points: list[tuple[bytes, str]] = []
        self.num_chosen: Counter[Reason] = Counter()
        self._add(replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def num_pages(self) -> int:
        """Keys that are remembered."""
        return len(self._holders)

    def add(self, replica: str) -> None:
        """One more replica, which has no page yet."""
        self._add([replica])

    def _add(self, replicas: Iterable[str]) -> None:
        new = [name for name in dict.fromkeys(replicas) if name not in self._replicas]
        self._replicas.update(new)
        self._points += [(point_of(f"{name} {i}".encode()), name) for name in new for i in range(POINTS_PER_REPLICA)]
        self._points.sort()

    def forget(self, replica: str) -> None:
        """A replica takes no more requests. Its pages leave the memory as others come."""
        self._replicas.discard(replica)
        self._points = [point for point in self._points if point[1] != replica]

    def choose(self, keys: Sequence[PageKey], loads: Loads) -> Choice:
        """The replica for a prompt of these pages. There must be a replica."""
        choice = self._choose(keys, loads)
        self.num_chosen[choice.reason] += 1
        return choice

    def _choose(self, keys: Sequence[PageKey], loads: Loads) -> Choice:
        assert self._replicas, "a router without replicas cannot choose"
        if not keys:
            return Choice(self._lesser_of_two(loads), Reason.UNKNOWN, 0)
        limit = self._slack + self._ratio * loads.mean
        holders, num_known = self._longest_known(keys)
        if holders:
            least = min(holders, key=lambda name: loads[name])
            if loads[least] <= limit:
                return Choice(least, Reason.PREFIX, num_known)
        # The first page alone says where an unknown prompt goes: the longer prompts of the same prefix follow it.
        replica = self._on_ring(keys[0], loads, limit)
        if not holders:
            return Choice(replica, Reason.UNKNOWN, 0)
        return Choice(replica, Reason.SPILLED, num_known if replica in holders else 0)

    def observe(self, keys: Sequence[PageKey], replica: str) -> None:
        """This replica has computed these pages, or will before any request that is sent to it from now on.

        One that takes no more requests has nothing to remember: it would take the places of those that do.
        """
        if replica not in self._replicas:
            return
        for key in keys:
            before = self._holders.pop(key, ())
            others = tuple(name for name in before if name != replica and name in self._replicas)
            self._holders[key] = (replica, *others[: MAX_HOLDERS - 1])
        while len(self._holders) > self._max_pages:
            self._holders.popitem(last=False)

    def _longest_known(self, keys: Sequence[PageKey]) -> tuple[list[str], int]:
        """The replicas that have the most pages from the start on, and how many pages that is."""
        found: list[str] = []
        num_known = 0
        for i, key in enumerate(keys):
            here = [name for name in self._holders.get(key, ()) if name in self._replicas]
            # A page without those before it is of no use.
            still = [name for name in here if name in found] if i else here
            if not still:
                break
            found, num_known = still, i + 1
        return found, num_known

    def _lesser_of_two(self, loads: Loads) -> str:
        """For a prompt shorter than a page, which no cache can help: of two replicas by turns, the one with less to do.

        Looking at two spreads the load nearly as well as looking at all.
        """
        turn = self.num_chosen.total()
        points = [point_of(b"%d %d" % (turn, i)) for i in range(2)]
        two = [self._points[bisect_left(self._points, (point, "")) % len(self._points)][1] for point in points]
        return min(two, key=lambda name: loads[name])

    def _on_ring(self, key: bytes, loads: Loads, limit: float) -> str:
        """The first replica from the key's point on that has not too much to do; one has at most the mean."""
        first = bisect_left(self._points, (point_of(key), ""))
        points, count = self._points, len(self._points)
        for i in range(count):
            name = points[(first + i) % count][1]
            if loads[name] <= limit:
                return name
        return min(self._replicas, key=lambda name: loads[name])


def point_of(data: bytes) -> bytes:
    """A place on the ring."""
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()
