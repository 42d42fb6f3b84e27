"""When the account of KV pages is checked while an engine runs, and what is logged about it."""

from __future__ import annotations

import logging

from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import Findings, Ledger
from playhead.kv.violations import ViolationKind

logger = logging.getLogger(__name__)


IDLE_SHARE = 20


class KVWatch:
    """Checks counts after every step; recounts everything every so many steps, and sooner when the engine is idle.

    Sooner, not at once: many short requests, one after the other, would wait for a recount each.
    """

    def __init__(self, cache: HybridKVCache, *, every_steps: int) -> None:
        self._ledger = Ledger(cache)
        self._every_steps = every_steps
        self._num_since_audit = 0
        self._logged: set[ViolationKind] = set()

    def look(self, *, is_idle: bool) -> Findings:
        """What is wrong after this step. Each kind of violation is logged once."""
        self._num_since_audit += 1
        is_due = self._num_since_audit >= (self._every_steps // IDLE_SHARE if is_idle else self._every_steps)
        findings = self._ledger.check(full=is_due)
        if is_due:
            self._num_since_audit = 0
        for violation in findings.violations:
            if violation.kind not in self._logged:
                self._logged.add(violation.kind)
                logger.error(
                    "KV memory: %s; %d requests ended, pages quarantined. More of this kind is counted, not logged.",
                    violation,
                    len(findings.by_request),
                )
        return findings
