"""Where the engine's process begins: `python -m playhead.serve.engine_entry FD [GPU]`.

The driver takes a third of a second to make its context on a GPU, and needs no Python for it. It does so here, while
torch is imported. Torch finds the context made.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

DRIVER = "libcuda.so.1"


def make_context(gpu: int) -> None:
    """Have the driver make the context that torch will use. Where that fails, torch tries again and says why."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return
    if driver.cuInit(0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), gpu)


def end_with(descriptor: int) -> None:
    """End this process when the other end of its socket is closed. While it imports, nothing else would notice."""
    ended = select.poll()
    ended.register(descriptor, 0)  # an end is told without being asked for
    ended.poll()
    os._exit(0)


def main(descriptor: int, gpu: str) -> int:
    """Import the engine beside the driver's work, then run it."""
    # Ctrl-C and a service's stop signal reach every process. The server drains first, and then closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=end_with, args=(descriptor,), name="playhead end", daemon=True).start()
    if gpu:
        threading.Thread(target=make_context, args=(int(gpu),), name="playhead context", daemon=True).start()
    # Here and not at the top: this import is what the thread runs beside.
    from playhead.serve.engine_process import serve_engine

    return serve_engine(descriptor)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
