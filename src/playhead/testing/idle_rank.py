"""A rank that lives and does nothing: `python -m playhead.testing.idle_rank FD`, until it is told something.

Tests start it in the place of `playhead.parallel.rank`. It needs no torch. `capturing_rank` says that it captures.
"""

from __future__ import annotations

import select
import socket
import sys

from playhead.parallel import wire
from playhead.parallel.wire import Kind

BEAT_S = 0.05


def main(descriptor: int, *, is_capturing: bool = False) -> int:
    connection = socket.socket(fileno=descriptor)
    while not select.select([connection], [], [], BEAT_S)[0]:
        connection.sendall(wire.framed(Kind.BEAT, wire.BEAT.pack(0, 0, is_capturing)))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
