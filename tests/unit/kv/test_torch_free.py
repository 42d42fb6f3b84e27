"""What the scheduler and the planner import must not pull torch in."""

from __future__ import annotations

import subprocess
import sys


def test_planning_and_accounting_import_no_torch():
    code = "import sys, playhead.kv.ledger, playhead.kv.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
