"""The account of every page: free + pending + held + cached + quarantined = all, each page once.

`check` compares counts that different code keeps and costs microseconds: it runs every step in production. Only when
they differ does it `audit`, which recounts everything from the sequences, the tree and the free lists; pages that
cannot be trusted are quarantined, the rest of the server goes on. In strict mode (tests) every check is an audit, and
raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from playhead.kv.cache import HybridKVCache
from playhead.kv.hybrid import FULL
from playhead.kv.mapping import NO_PAGE
from playhead.kv.violations import Violation, ViolationKind
from playhead.types import Row

SINK_PAGE = 0


class Ledger:
    """Checks one cache. Holds nothing but what it has already reported."""

    def __init__(self, cache: HybridKVCache) -> None:
        self._cache = cache
        self._known_gaps = [0] * len(cache.allocator.groups)

    def check(self) -> list[Violation]:
        """What is wrong now; nothing, at almost no cost, when the counts agree. Raises in strict mode."""
        gaps = [self._gap(index) for index in range(len(self._cache.allocator.groups))]
        if not self._cache.violations.strict and gaps == self._known_gaps:
            return []
        found = self.audit()
        for violation in found:
            self._cache.violations.add(violation)
            self._quarantine(violation)
        self._known_gaps = [self._gap(index) for index in range(len(gaps))]
        return found

    def audit(self) -> list[Violation]:
        """Everything that is wrong, recounted from scratch. Changes nothing."""
        found: list[Violation] = []
        for group_index in range(len(self._cache.allocator.groups)):
            holders = self._count_holders(group_index)
            found += self._audit_holders(group_index, holders)
            found += self._audit_states(group_index, holders)
        found += self._audit_slabs()
        for window in range(self._cache.allocator.num_windows):
            found += self._audit_mapping(window)
        found += self._audit_rows()
        return found

    def _gap(self, group_index: int) -> int:
        """Pages that left the free lists but are in no other state; negative when one is in two."""
        allocator = self._cache.allocator
        accounted = (
            allocator.num_held[group_index] + allocator.num_cached[group_index] + allocator.num_pending[group_index]
        )
        return allocator.groups[group_index].num_taken - accounted

    def _quarantine(self, violation: Violation) -> None:
        for index, group in enumerate(self._cache.allocator.groups):
            if group.name == violation.group and violation.page > SINK_PAGE:
                self._cache.allocator.groups[index].quarantine(violation.page)

    # Recounting.

    def _count_holders(self, group_index: int) -> Counter[int]:
        """How many sequences count on each page of a group, from the sequences themselves."""
        mapping = self._cache.allocator.mapping
        holders: Counter[int] = Counter()
        for seq in self._cache.sequences.values():
            if group_index == FULL:
                holders.update(seq.pages)
            else:
                window = group_index - 1
                held = seq.pages[seq.frontiers[window] :]
                holders.update(mapping.window_page(window, page) for page in held)
        return holders

    def _cached_pages(self, group_index: int) -> list[int]:
        """Pages the prefix cache keeps, from the tree itself."""
        mapping = self._cache.allocator.mapping
        pages = [page for node in self._cache.prefix.nodes() for page in node.pages]
        if group_index == FULL:
            return pages
        windows = (mapping.window_page(group_index - 1, page) for page in pages)
        return [page for page in windows if page != NO_PAGE]

    def _audit_holders(self, group_index: int, holders: Counter[int]) -> list[Violation]:
        allocator = self._cache.allocator
        name = allocator.groups[group_index].name
        found = []
        for page in range(self._cache.plan.num_pages(group_index)):
            counted = allocator.num_holders(group_index, page)
            if counted != holders[page]:
                detail = f"counted {counted} holders, {holders[page]} sequences hold it"
                found.append(Violation(kind=ViolationKind.WRONG_COUNT, group=name, page=page, detail=detail))
        return found

    def _audit_states(self, group_index: int, holders: Counter[int]) -> list[Violation]:
        """Every page of the group's slabs in exactly one state."""
        allocator = self._cache.allocator
        group = allocator.groups[group_index]
        kept = Counter(self._cached_pages(group_index))
        in_use, pending = {*holders, *kept}, Counter(allocator.pending_pages(group_index))
        taken, quarantined = set(group.taken_pages()), set(group.quarantined_pages())
        found: list[Violation] = []

        def wrong(kind: ViolationKind, pages: Iterable[int], detail: str) -> None:
            found.extend(Violation(kind=kind, group=group.name, page=page, detail=detail) for page in pages)

        wrong(ViolationKind.TWO_STATES, (in_use | pending.keys()) - taken, "in use and free")
        wrong(ViolationKind.TWO_STATES, in_use & pending.keys(), "in use and given up")
        wrong(ViolationKind.TWO_STATES, in_use & {SINK_PAGE}, "the sink is in use")
        wrong(ViolationKind.TWO_STATES, [page for page, count in kept.items() if count > 1], "twice in the tree")
        wrong(ViolationKind.TWO_STATES, [page for page, count in pending.items() if count > 1], "given up twice")
        wrong(ViolationKind.LEAK, taken - in_use - pending.keys() - quarantined, "taken, but in no other state")
        if len(taken) + group.num_free != group.num_pages:
            wrong(ViolationKind.LEAK, [-1], f"{len(taken)} taken, {group.num_free} free, of {group.num_pages}")
        return found

    def _audit_slabs(self) -> list[Violation]:
        allocator = self._cache.allocator
        sharing = [
            g for g, layout in zip(allocator.groups, self._cache.plan.layout.groups, strict=True) if layout.has_bytes
        ]
        num_lent = sum(group.num_slabs for group in sharing)
        free = list(allocator.arena.free_slabs())
        if len(set(free)) == len(free) and len(free) + num_lent + 1 == self._cache.plan.num_slabs:
            return []
        detail = f"{len(free)} slabs free, {num_lent} lent, 1 sink, of {self._cache.plan.num_slabs}"
        return [Violation(kind=ViolationKind.LEAK, group="arena", page=-1, detail=detail)]

    def _audit_mapping(self, window: int) -> list[Violation]:
        """One-to-one, and a window page under a full page exactly while somebody holds or retains both."""
        allocator = self._cache.allocator
        mapping, name = allocator.mapping, allocator.groups[window + 1].name
        kept_idle = set(self._cache.prefix.idle_windows(window))
        found = []

        def wrong(page: int, detail: str) -> None:
            found.append(Violation(kind=ViolationKind.BAD_MAPPING, group=name, page=page, detail=detail))

        for full_page in range(self._cache.plan.num_pages(FULL)):
            page = mapping.window_page(window, full_page)
            if page == NO_PAGE:
                if full_page in kept_idle:
                    wrong(full_page, "listed as cached, but has no window page")
                continue
            if mapping.full_page(window, page) != full_page:
                wrong(page, f"full page {full_page} maps here, but the way back leads to another")
            is_held = bool(allocator.num_holders(window + 1, page))
            if is_held == (full_page in kept_idle):
                wrong(
                    page, f"under full page {full_page}: {'held and listed as cached' if is_held else 'kept by nobody'}"
                )
            if not is_held and not allocator.is_retained(full_page):
                wrong(page, f"kept under full page {full_page}, which is not retained")
        return found

    def _audit_rows(self) -> list[Violation]:
        """A row shows its sequence's pages, window pages from the frontier on, and the sink everywhere else."""
        rows, mapping = self._cache.rows, self._cache.allocator.mapping
        by_row = {seq.row: seq for seq in self._cache.sequences.values()}
        found = []
        for group_index, table in enumerate(rows.tables):
            for row in range(len(table)):
                shown = {index: page for index, page in enumerate(table[row].tolist()) if page != NO_PAGE}
                seq = by_row.get(Row(row))
                wanted = {} if seq is None else dict(enumerate(seq.pages))
                if group_index != FULL and seq is not None:
                    window = group_index - 1
                    wanted = {
                        i: mapping.window_page(window, p) for i, p in wanted.items() if i >= seq.frontiers[window]
                    }
                if shown != wanted:
                    detail = f"row {row} shows {shown}, its sequence has {wanted}"
                    name = self._cache.allocator.groups[group_index].name
                    found.append(Violation(kind=ViolationKind.BAD_ROW, group=name, page=-1, detail=detail))
        return found


def report(cache: HybridKVCache) -> str:
    """The account as a table, one line per group."""
    allocator = cache.allocator
    head = f"{'group':<12}{'pages':>10}{'free':>10}{'pending':>10}{'held':>10}{'cached':>10}{'quarantined':>13}"
    lines = [head]
    for index, group in enumerate(allocator.groups):
        lines.append(
            f"{group.name:<12}{group.num_pages:>10}{group.num_free:>10}{allocator.num_pending[index]:>10}"
            f"{allocator.num_held[index]:>10}{allocator.num_cached[index]:>10}{group.num_quarantined:>13}"
        )
    lines.append(
        f"{allocator.arena.num_free} of {allocator.arena.num_slabs} slabs free, {len(cache.sequences)} sequences"
    )
    for kind, count in cache.violations.num_by_kind.items():
        lines.append(f"{count} x {kind.value}; the last: {cache.violations.kept[-1]}")
    return "\n".join(lines)
