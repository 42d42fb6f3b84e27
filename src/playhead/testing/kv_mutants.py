"""The bugs of KV memory that we know of, as patches of `playhead.kv`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from playhead.errors import OutOfPages
from playhead.kv import cache as cache_module
from playhead.kv import plan as plan_module
from playhead.kv.allocator import SlabArena
from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import next_slide, window_frontier
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.prefix import PrefixCache, PrefixHit
from playhead.kv.sequence import SequenceKV, Stride
from playhead.kv.tables import Int32Array, RowTables, WindowMapping
from playhead.testing.mutant import Mutant, Patch, mutant, swapped
from playhead.testing.translation_mutants import TRANSLATION_MUTANTS
from playhead.types import Row


@mutant("double free of window pages", source="K10", killed_by=("reference pool (K5, K8)",))
def double_free_of_windows() -> Patch:
    """The end of a request gives window pages back that had slid out before."""

    def release(self: HybridKVCache, seqs: Sequence[SequenceKV]) -> None:
        for seq in seqs:
            seq.frontiers = [0] * len(seq.frontiers)
        original(self, seqs)

    original = HybridKVCache._release
    return swapped(HybridKVCache, "_release", release)


@mutant("leak on abort", source="K10", killed_by=("rules (K6)",))
def leak_on_abort() -> Patch:
    """An aborted request leaves its window pages behind."""

    def abort(self: HybridKVCache, seq: SequenceKV) -> None:
        self.allocator.drop(seq.pages)
        self.rows.give_back(seq.row)
        del self.sequences[seq.request]

    return swapped(HybridKVCache, "abort", abort)


@mutant("free while in flight", source="K10: overlapped scheduling", killed_by=("rules (K6)",))
def free_while_in_flight() -> Patch:
    """Pages go back at once, although a launched step may still touch them."""

    def free(self: HybridAllocator, group_index: int, pages: list[int]) -> None:
        if pages:
            self._reclaim(group_index, pages)

    return swapped(HybridAllocator, "_free", free)


@mutant("two-pool allocation without roll-back", source="K10", killed_by=("rules (K6)",))
def no_roll_back() -> Patch:
    """When a later group is out of pages, what the earlier ones gave stays taken."""
    allocate = HybridAllocator.allocate

    def careless(self: HybridAllocator, num_pages: int) -> list[int]:
        try:
            return allocate(self, num_pages)
        except OutOfPages:
            for group in self.groups:
                if group.num_available < num_pages:
                    break
                group.take(num_pages)
            raise

    return swapped(HybridAllocator, "allocate", careless)


@mutant("window frontier a page ahead", source="K10", killed_by=("reference pool (K5, K8)",))
def frontier_one_page_ahead() -> Patch:
    """The window lets go of the page its oldest visible token is in."""

    def ahead(num_tokens: int, window: int, page_size: int) -> int:
        return window_frontier(num_tokens + page_size, window, page_size)

    return swapped(cache_module, "window_frontier", ahead)


@mutant("window frontier pages behind", source="issue: window + chunk + page", killed_by=("rules (K6)",))
def frontier_one_page_behind() -> Patch:
    """A window that slides keeps pages nobody sees: more than window + chunk + page."""
    slide = HybridKVCache._slide

    def behind(num_tokens: int, window: int, page_size: int) -> int:
        return max(0, window_frontier(num_tokens, window, page_size) - 2)

    def lazily(self: HybridKVCache, seqs: Sequence[SequenceKV]) -> None:
        with swapped(cache_module, "window_frontier", behind):
            slide(self, seqs)

    return swapped(HybridKVCache, "_slide", lazily)


@mutant("window slides late", source="a shortcut around pages that cannot move yet", killed_by=("rules (K6)",))
def slides_late() -> Patch:
    """Whoever skips the look at a window until its next page can go must not skip too long."""

    def later(frontier: int, window: int, page_size: int) -> int:
        return next_slide(frontier, window, page_size) + 2 * page_size

    return swapped(cache_module, "next_slide", later)


@mutant("prefix hit with expired window", source="K10", killed_by=("rules (K6)",))
def hit_with_expired_window() -> Patch:
    """A prefix counts as found when its full pages are there, whatever became of their windows."""

    def all_of_it(self: PrefixCache, pages: array[int]) -> int:
        return len(pages)

    return swapped(PrefixCache, "_longest_valid", all_of_it)


@mutant("recycled row", source="K10", killed_by=("rules (K6)",))
def recycled_row() -> Patch:
    """A row is given to the next request as the last one left it."""

    def give_back(self: RowTables, row: Row) -> None:
        self._free.append(row)

    return swapped(RowTables, "give_back", give_back)


@mutant("page numbers wrap at 16 bits", source="K10: dtype wrap", killed_by=("device mapping",))
def dtype_wraps() -> Patch:
    """Window pages pass through 16 bits on their way to the device."""
    take = WindowMapping.take_unpublished

    def wrapping(self: WindowMapping) -> tuple[Int32Array, ...]:
        changes = take(self)
        for pairs in changes:
            pairs[:, 1] = pairs[:, 1].astype("int16")
        return changes

    return swapped(WindowMapping, "take_unpublished", wrapping)


@mutant("locations beyond int32", source="a limit that no test noticed", killed_by=("int32 locations",))
def locations_beyond_int32() -> Patch:
    """An arena is planned whose last locations do not fit the device's int32."""
    return swapped(plan_module, "MAX_LOCS", 2**40)


@mutant("uncomputed tokens cached", source="found while building", killed_by=("rules (K6)",))
def placed_counts_as_computed() -> Patch:
    """A preempted request's tokens are cached although the step that would have computed them was never launched."""
    finish = HybridKVCache.finish

    def eager(self: HybridKVCache, seq: SequenceKV, tokens: Sequence[int]) -> None:
        seq.num_launched_tokens = seq.num_tokens
        finish(self, seq, tokens)

    return swapped(HybridKVCache, "finish", eager)


@mutant("prefixes shared across salts", source="K9: cache salt A vs B", killed_by=("rules (K6)",))
def salts_share() -> Patch:
    """A lookup searches every salt's tree: a request learns what another key's prompt was."""
    match = PrefixCache.match

    def anywhere(self: PrefixCache, salt: str, key: bytes) -> PrefixHit:
        return max((match(self, known, key) for known in [salt, *self._roots]), key=lambda hit: len(hit.pages))

    return swapped(PrefixCache, "match", anywhere)


@mutant("windows moved from a shared page", source="found by our own state machine", killed_by=("rules (K6)",))
def shared_page_stolen() -> Patch:
    """A page's windows are moved away under another sequence that holds it too."""
    adopt = HybridKVCache._adopt

    def regardless(self: HybridKVCache, seq: SequenceKV, index: int, theirs: int) -> None:
        with swapped(HybridAllocator, "num_holders", lambda self, group_index, page: 1):
            adopt(self, seq, index, theirs)

    return swapped(HybridKVCache, "_adopt", regardless)


@mutant("sink handed out", source="S2.1", killed_by=("rules (K6)",))
def sink_handed_out() -> Patch:
    """The arena lends slab 0 too, where padded rows write."""

    def from_zero(self: SlabArena, num_slabs: int) -> None:
        self.num_slabs = num_slabs
        self._free, self._first_fresh = [], 0

    return swapped(SlabArena, "__init__", from_zero)


@mutant("windows of a stride never slide", source="one count for many sequences", killed_by=("strides",))
def stride_never_slides() -> Patch:
    def counts(self: HybridKVCache, stride: Stride) -> None:
        stride.num_launched = stride.num_placed

    return swapped(HybridKVCache, "_commit_stride", counts)


@mutant("a sequence that left goes on growing", source="one count for many sequences", killed_by=("strides",))
def grows_after_leaving() -> Patch:
    join = SequenceKV.join

    def stays(self: SequenceKV, stride: Stride) -> None:
        if stride.seqs:
            join(self, stride)

    return swapped(SequenceKV, "join", stays)


@mutant("a stride taken back keeps its places", source="one count for many sequences", killed_by=("strides",))
def stride_keeps_places() -> Patch:
    retract = HybridKVCache.retract

    def forgets(self: HybridKVCache) -> None:
        self._advanced = None
        retract(self)

    return swapped(HybridKVCache, "retract", forgets)


KV_MUTANTS: tuple[Mutant, ...] = (
    *TRANSLATION_MUTANTS,
    double_free_of_windows,
    leak_on_abort,
    free_while_in_flight,
    no_roll_back,
    frontier_one_page_ahead,
    frontier_one_page_behind,
    slides_late,
    hit_with_expired_window,
    recycled_row,
    dtype_wraps,
    locations_beyond_int32,
    placed_counts_as_computed,
    salts_share,
    shared_page_stolen,
    sink_handed_out,
    stride_never_slides,
    grows_after_leaving,
    stride_keeps_places,
)
