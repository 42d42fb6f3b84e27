"""Streams to capture on, each with the memory that the BLAS library keeps for it.

The library keeps a workspace for every thread and stream, for as long as the process lives, and a captured product has
its address. torch has 32 streams and hands them out in turn, so a later backend could get a stream whose workspace
lies in an earlier backend's pool. Here the workspaces have a pool of their own, and a stream serves one backend at a
time.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from playhead.errors import GraphError

NUM_STREAMS_OF_TORCH = 32


class _InThisThread(threading.local):
    multiplies = False


class CaptureStream:
    """A stream and the pool of its workspaces."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self._square = torch.zeros((16, 16), dtype=torch.bfloat16, device=stream.device)
        self._product = torch.empty_like(self._square)
        self._thread = _InThisThread()
        self._products: list[torch.cuda.CUDAGraph] = []  # kept: a pool without a graph is given back
        self.multiply_once()

    @property
    def pool(self) -> Any:
        return self._products[0].pool()

    def multiply_once(self) -> None:
        """The calling thread's workspace comes into the pool. Its library starts up outside: no capture allows that."""
        if self._thread.multiplies:
            return
        self._square.zero_()  # a thread has no context before its first kernel, and BLAS warns that it makes one
        torch.mm(self._square, self._square, out=self._product)
        self._products.append(self.record_product(self.pool if self._products else None))
        self._thread.multiplies = True

    def record_product(self, pool: Any = None) -> torch.cuda.CUDAGraph:
        """A graph that takes no memory but a workspace, where there is none yet."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
            torch.mm(self._square, self._square, out=self._product)
        return graph


class CaptureStreams:
    """All capture streams of a process. They are lent and come back; none is ever dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[int] = set()
        self._idle: dict[int, list[CaptureStream]] = {}

    def take(self, device: torch.device) -> CaptureStream:
        with self._lock:
            index = torch.cuda.current_device() if device.index is None else device.index
            idle = self._idle.setdefault(index, [])
            return idle.pop() if idle else CaptureStream(self._new_stream(device))

    def give_back(self, stream: CaptureStream) -> None:
        self._idle[stream.stream.device_index].append(stream)  # the garbage collector may call this: it takes no lock

    def _new_stream(self, device: torch.device) -> torch.cuda.Stream:
        for _ in range(NUM_STREAMS_OF_TORCH):
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if stream.cuda_stream not in self._known:
                self._known.add(stream.cuda_stream)
                return stream
        raise GraphError(
            f"capture streams: found all {NUM_STREAMS_OF_TORCH} of {device} in use; wanted one for another backend. "
            "Close an engine first."
        )


CAPTURE_STREAMS = CaptureStreams()
