"""An `idle_rank` that says it captures: `python -m playhead.testing.capturing_rank FD`."""

from __future__ import annotations

import sys

from playhead.testing.idle_rank import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), is_capturing=True))
