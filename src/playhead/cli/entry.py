"""Where `playhead` starts and ends: quiet on Ctrl-C even while torch is imported, and without needless collections."""

from __future__ import annotations

import gc
import sys

INTERRUPTED = 130  # what a shell reports for a process that SIGINT ended
OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main() -> None:
    """Run the command line."""
    # Importing torch makes half a million objects that live as long as the process. Python would look through them
    # hundreds of times for garbage, and twice more when it exits: a fifth of a short run.
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    try:
        # Here and not at the top: an interrupt in the import should leave no traceback.
        from playhead.cli.main import app

        app(prog_name="playhead")
    except KeyboardInterrupt:
        print(file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()
