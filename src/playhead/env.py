"""Environment switches, all for debugging. Read when they are asked for, never at import."""

from __future__ import annotations

import os

STRICT_LEDGER = "PLAYHEAD_STRICT_LEDGER"


def wants_strict_ledger() -> bool:
    """Whether engines that were not told otherwise raise at the first violation of the account of KV pages."""
    return os.environ.get(STRICT_LEDGER, "") not in ("", "0")
