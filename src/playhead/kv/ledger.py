"""The account of every page: free + pending + held + cached + quarantined = all, each page once.

`check` compares counts that different code keeps and costs microseconds: the engine runs it after every step. `audit`
recounts everything from the sequences, the tree and the free lists. It runs when counts differ, and otherwise so seldom
that it takes 1% of the time (`KVWatch`). Pages that are wrong are quarantined, and the account is counted again without
them (`restore.py`); the caller ends the requests that touched them, and all other requests go on. In strict mode
(tests) every check is an audit, and raises.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from playhead.kv.audit import audit
from playhead.kv.cache import HybridKVCache
from playhead.kv.tables import FULL
from playhead.kv.violations import Violation, ViolationKind
from playhead.logs import event

SINK_PAGE = 0
LOG = logging.getLogger(__name__)

REST_PER_AUDIT = 100
"""An audit of 60 ms, which two million pages take, is followed by 6 s without one: it costs 1% of the time."""

MIN_BUSY_STEPS = 100
"""Steps between two audits of a busy engine: a small pool is audited in microseconds, and not after every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a check found: violations, and which of them touch each running request. Empty when all is well."""

    violations: tuple[Violation, ...] = ()
    by_request: dict[str, Violation]

    def __bool__(self) -> bool:
        return bool(self.violations)


NOTHING = Findings(by_request={})


class Ledger:
    """Checks one cache."""

    def __init__(self, cache: HybridKVCache) -> None:
        self._cache = cache

    def check(self, *, full: bool = False) -> Findings:
        """What is wrong now; nothing, at almost no cost, when the counts agree. Raises in strict mode.

        With `full` everything is recounted. Nothing is said while the account waits to be counted again.
        """
        cache = self._cache
        if cache.in_doubt:
            return NOTHING
        reported = tuple(cache.violations.new)
        if not (full or reported or cache.violations.strict or self._differs()):
            return NOTHING
        found = audit(cache)
        for violation in found:
            cache.violations.add(violation)
        cache.violations.new.clear()
        if not (reported or found):
            return NOTHING
        findings = Findings(violations=(*reported, *found), by_request=self._touching((*reported, *found)))
        self._quarantine(findings.violations)
        cache.distrust()
        return findings

    def audit(self) -> list[Violation]:
        """Everything that is wrong, recounted from scratch. Changes nothing."""
        return audit(self._cache)

    def _differs(self) -> bool:
        """Whether a group has pages that left the free lists but are in no other state, or in two; or rows are lost."""
        cache, allocator = self._cache, self._cache.allocator
        for index, group in enumerate(allocator.groups):
            in_a_state = allocator.num_held[index] + allocator.num_cached[index] + allocator.num_pending[index]
            if group.num_taken != in_a_state:
                return True
        return cache.rows.num_free + len(cache.sequences) != cache.plan.limits.max_running

    def _quarantine(self, violations: Iterable[Violation]) -> None:
        for group in self._cache.allocator.groups:
            group.distrust({one.page for one in violations if one.group == group.name and one.page > SINK_PAGE})

    def _touching(self, violations: Iterable[Violation]) -> dict[str, Violation]:
        """The sequences that have one of these pages, now or by what their rows show, or a row that is wrong."""
        cache, groups = self._cache, self._cache.allocator.groups
        by_page = {(one.group, one.page): one for one in violations if one.page > SINK_PAGE}
        by_row = {one.row: one for one in violations if one.row is not None}
        touched: dict[str, Violation] = {}
        for name, seq in cache.sequences.items():
            if seq.row in by_row:
                touched[name] = by_row[seq.row]
            for index, group in enumerate(groups):
                shown = set(cache.rows.tables[index][seq.row, : len(seq.pages)].tolist())
                for page in shown | set(seq.pages if index == FULL else ()):
                    if (group.name, page) in by_page:
                        touched[name] = by_page[group.name, page]
        return touched


class KVWatch:
    """Checks counts after every step; recounts everything every so many steps, or as often as costs little.

    With `every_steps=None` an audit comes when the last one's time has passed `REST_PER_AUDIT` times, and at once if
    the engine is idle by then.
    """

    def __init__(
        self, cache: HybridKVCache, *, every_steps: int | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._ledger, self._clock = Ledger(cache), clock
        self._every_steps = every_steps
        self._num_since_audit = 0
        self._next_audit_s = 0.0
        self._logged: set[ViolationKind] = set()

    def look(self, *, is_idle: bool) -> Findings:
        """What is wrong after this step. Each kind of violation is logged once."""
        self._num_since_audit += 1
        if self._is_due(is_idle):
            started_s = self._clock()
            findings = self._ledger.check(full=True)
            ended_s = self._clock()
            self._num_since_audit, self._next_audit_s = 0, ended_s + REST_PER_AUDIT * (ended_s - started_s)
        else:
            findings = self._ledger.check()
        for violation in findings.violations:
            if violation.kind not in self._logged:
                self._logged.add(violation.kind)
                # More of this kind is counted, not logged.
                event(
                    LOG,
                    logging.ERROR,
                    "KV pages put in quarantine",
                    kind=violation.kind,
                    violation=violation,
                    requests_ended=len(findings.by_request),
                )
        return findings

    def _is_due(self, is_idle: bool) -> bool:
        if self._every_steps is not None:
            return self._num_since_audit >= self._every_steps
        return (is_idle or self._num_since_audit >= MIN_BUSY_STEPS) and self._clock() >= self._next_audit_s
