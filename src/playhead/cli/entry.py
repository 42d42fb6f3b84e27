"""Where `playhead` starts: Ctrl-C leaves quietly even while torch is being imported."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # what a shell reports for a process that SIGINT ended


def main() -> None:
    """Run the command line."""
    try:
        # Here and not at the top: the import takes a second or two, and an interrupt in it should leave no traceback.
        from playhead.cli.main import app

        app(prog_name="playhead")
    except KeyboardInterrupt:
        print(file=sys.stderr)
        sys.exit(INTERRUPTED)
