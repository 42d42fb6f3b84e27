"""The prefix cache of a simulated replica: which prefixes it has, and which of them go when memory is short. No torch.

A prompt is a path of parts that other prompts may begin with too: a system prompt, then the turns of a conversation.
The real cache (`kv/prefix.py`) keeps pages in a tree; here a part is one entry. A part that nobody can ask for again
(the tail of a finished request) only takes memory, so such tails are counted in lumps and have no names.

In a model with windows a hit needs the window before it, and the real cache keeps a window that a request slides past
only if a lookup ended there before. So a part can be present and not be hit: the first request to ask for it marks it
as wanted and computes it again, and from then on it is whole.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence

MOST_LUMPS = 256


class Part:
    """A part that is present. Mutable: it is found, marked and completed."""

    __slots__ = ("is_wanted", "is_whole", "num_bytes", "num_pins", "tick")

    def __init__(self, num_bytes: int, tick: int, *, is_whole: bool) -> None:
        self.num_bytes, self.tick, self.num_pins = num_bytes, tick, 0
        self.is_whole, self.is_wanted = is_whole, False


class SimPrefixCache:
    """Bytes by part, least recently used first. `num_bytes` leaves out what running requests hold for themselves."""

    __slots__ = ("_lump_bytes", "_num_pinned", "_parts", "_tails", "_tick", "num_bytes", "num_pinned_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self.num_bytes = self.num_pinned_bytes = 0
        self._parts: OrderedDict[Hashable, Part] = OrderedDict()
        self._tails: deque[list[int]] = deque()  # [tick, bytes]
        self._tick = self._num_pinned = 0
        self._lump_bytes = max(1, capacity_bytes // MOST_LUMPS)

    def __len__(self) -> int:
        return len(self._parts)

    def num_hit(self, path: Sequence[Hashable]) -> int:
        """How many parts of this path a request need not compute. The last one present is wanted from now on."""
        last, num_hit = None, 0
        for i, part in enumerate(path):
            found = self._parts.get(part)
            if found is None:
                break
            last = found
            if found.is_whole:
                num_hit = i + 1
        if last is not None:
            last.is_wanted = True
        return num_hit

    def pin(self, path: Sequence[Hashable]) -> None:
        """A running request uses these parts, which are present: they stay until it lets go of them."""
        self._tick += 1
        for name in reversed(path):  # a longer path goes before the shorter one that it needs
            part = self._parts[name]
            part.tick = self._tick
            self._parts.move_to_end(name)
            if not part.num_pins:
                self._num_pinned += 1
                self.num_pinned_bytes += part.num_bytes
            part.num_pins += 1

    def unpin(self, path: Sequence[Hashable]) -> None:
        """A request that used these parts is done with them."""
        for name in path:
            part = self._parts[name]
            part.num_pins -= 1
            if not part.num_pins:
                self._num_pinned -= 1
                self.num_pinned_bytes -= part.num_bytes

    def add(self, name: Hashable, num_bytes: int, *, is_whole: bool) -> None:
        """A part that was computed. One that is present gets the windows that it lacks, if they are wanted."""
        part = self._parts.get(name)
        if part is None:
            self._parts[name] = Part(num_bytes, self._tick, is_whole=is_whole)
            self.num_bytes += num_bytes
        else:
            part.is_whole = part.is_whole or is_whole or part.is_wanted

    def add_tail(self, num_bytes: int) -> None:
        """What a finished request leaves and nobody can ask for."""
        self.num_bytes += num_bytes
        if self._tails and self._tails[-1][1] < self._lump_bytes:
            self._tails[-1][1] += num_bytes
        else:
            self._tails.append([self._tick, num_bytes])

    def shrink_to(self, most_bytes: int) -> None:
        """Give up what was used longest ago until no more than this is left, as far as it is not pinned."""
        while self.num_bytes > most_bytes:
            part, tick = self._oldest_part()
            if self._tails and (part is None or self._tails[0][0] <= tick):
                gone = min(self._tails[0][1], self.num_bytes - most_bytes)
                self._tails[0][1] -= gone
                self.num_bytes -= gone
                if not self._tails[0][1]:
                    self._tails.popleft()
            elif part is not None:
                self.num_bytes -= self._parts.pop(part).num_bytes
            else:
                return

    def _oldest_part(self) -> tuple[Hashable | None, int]:
        """The part used longest ago that no request uses now, and when. Parts in use count as just used."""
        for _ in range(len(self._parts) if len(self._parts) > self._num_pinned else 0):
            name, part = next(iter(self._parts.items()))
            if not part.num_pins:
                return name, part.tick
            part.tick = self._tick
            self._parts.move_to_end(name)
        return None, 0
