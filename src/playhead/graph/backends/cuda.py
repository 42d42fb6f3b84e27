"""CUDA graphs through torch: one memory pool and one capture stream for all recordings of a backend."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from playhead.graph.backends.base import Recording
from playhead.graph.backends.cuda_nodes import begin_capture, num_graph_nodes
from playhead.graph.backends.cuda_stream import CAPTURE_STREAMS
from playhead.graph.oplog import OpLog, OpObserver
from playhead.graph.outputs import Outputs


class CudaRecording:
    """A captured CUDA graph. The log knows what each op read and wrote, but keeps no tensor alive."""

    def __init__(self, opened: OpenCudaGraph, num_bytes: int) -> None:
        self.graph, self.observer, self.num_bytes = opened.graph, opened.observer, num_bytes
        self.log: OpLog = opened.observer.log
        self._backend = opened.backend  # its stream's workspaces are this graph's as long as it may be replayed

    @property
    def pools(self) -> tuple[Any, ...]:
        """Where its own memory is: intermediate values, and what the BLAS library works in."""
        return self._backend.pool, self._backend.capture_stream.pool

    @property
    def num_nodes(self) -> int:
        """Nodes the driver reports; ops in the log where the driver cannot be asked."""
        nodes = num_graph_nodes(self.graph)
        return self.log.num_nodes if nodes is None else nodes

    def replay(self) -> None:
        self.graph.replay()


class OpenCudaGraph:
    """Work issued until `close` is captured, on the backend's stream."""

    def __init__(self, backend: CudaBackend, observer: OpObserver) -> None:
        self.backend, self.observer = backend, observer
        # The graph itself is kept beside its executable so that the audit can read its nodes.
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._free_before = torch.cuda.mem_get_info(backend.device)[0]
        with ExitStack() as stack:  # an error below must not leave the capture stream current
            stack.enter_context(torch.cuda.stream(backend.stream))
            # Thread-local: other threads of a server may touch CUDA while a bucket is captured late.
            self.graph.capture_begin(pool=backend.pool, capture_error_mode="thread_local")
            stack.callback(self.graph.capture_end)
            stack.enter_context(observer.watching())
            self._stack = stack.pop_all()

    def close(self) -> CudaRecording:
        self._stack.close()
        self.graph.instantiate()
        return CudaRecording(self, max(0, self._free_before - torch.cuda.mem_get_info(self.backend.device)[0]))

    def abandon(self) -> None:
        try:
            self._stack.close()
        except RuntimeError:
            # The capture was invalidated by what went wrong inside it; that error is the one to show.
            self._end_for_torch()
            self.graph.reset()

    def _end_for_torch(self) -> None:
        """Undo what torch set up for the capture. torch itself does not, if the driver has no graph to give.

        torch's memory pools and random numbers would count as captured for ever, and every later capture would be
        refused. So the driver begins an empty capture, and torch ends that one.
        """
        with torch.cuda.stream(self.backend.stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the empty graph
            if begin_capture(self.backend.stream):
                self.graph.capture_end()


class CudaBackend:
    """Records CUDA graphs. Replays of one backend run one after another: they share intermediate memory."""

    name = "cuda"

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)
        self.capture_stream = CAPTURE_STREAMS.take(self.device)
        weakref.finalize(self, CAPTURE_STREAMS.give_back, self.capture_stream)
        # A pool lives as long as some graph uses it, and its handle is useless afterwards: this one is never dropped.
        self._anchor = self.capture_stream.record_product()

    @property
    def stream(self) -> torch.cuda.Stream:
        return self.capture_stream.stream

    @property
    def pool(self) -> Any:
        return self._anchor.pool()

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        self.capture_stream.multiply_once()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(self.stream), torch.no_grad():
                work()
        finally:  # work launched after an error must not overtake what was launched before it
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            torch.cuda.synchronize(self.device)

    def open(self, after: Recording | None = None) -> OpenCudaGraph:
        self.capture_stream.multiply_once()
        observer = OpObserver(keep_calls=False)
        if isinstance(after, CudaRecording):
            observer.adopt(after.observer)
        return OpenCudaGraph(self, observer)
