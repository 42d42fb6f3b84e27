"""When the account of KV pages is checked while an engine runs, and what is logged about it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import Findings, Ledger
from playhead.kv.violations import ViolationKind

logger = logging.getLogger(__name__)

REST_PER_AUDIT = 100
"""An audit of 60 ms, which two million pages take, is followed by 6 s without one: it costs 1% of the time."""

MIN_BUSY_STEPS = 100
"""Steps between two audits of a busy engine: a small pool is audited in microseconds, and not after every step."""


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
                logger.error(
                    "KV memory: %s; %d requests ended, pages quarantined. More of this kind is counted, not logged.",
                    violation,
                    len(findings.by_request),
                )
        return findings

    def _is_due(self, is_idle: bool) -> bool:
        if self._every_steps is not None:
            return self._num_since_audit >= self._every_steps
        return (is_idle or self._num_since_audit >= MIN_BUSY_STEPS) and self._clock() >= self._next_audit_s
