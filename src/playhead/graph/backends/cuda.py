"""CUDA graphs through torch: one memory pool and one capture stream for all recordings of a backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from playhead.graph.backends.base import Recording
from playhead.graph.backends.cuda_nodes import num_graph_nodes
from playhead.graph.oplog import OpLog, OpObserver
from playhead.graph.outputs import Outputs


class CudaRecording:
    """A captured CUDA graph. The log knows what each op read and wrote, but keeps no tensor alive."""

    def __init__(self, graph: torch.cuda.CUDAGraph, observer: OpObserver, num_bytes: int) -> None:
        self.graph, self.observer, self.num_bytes = graph, observer, num_bytes
        self.pool: tuple[int, int] = graph.pool()
        self.log: OpLog = observer.log

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
        self._backend, self._observer = backend, observer
        # The graph itself is kept beside its executable so that the audit can read its nodes.
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._free_before = torch.cuda.mem_get_info(backend.device)[0]
        with ExitStack() as stack:  # an error below must not leave the capture stream current
            stack.enter_context(torch.cuda.stream(backend.stream))
            # Thread-local: other threads of a server may touch CUDA while a bucket is captured late.
            self._graph.capture_begin(pool=backend.pool, capture_error_mode="thread_local")
            stack.callback(self._graph.capture_end)
            stack.enter_context(observer.watching())
            self._stack = stack.pop_all()

    def close(self) -> CudaRecording:
        self._stack.close()
        self._graph.instantiate()
        num_bytes = max(0, self._free_before - torch.cuda.mem_get_info(self._backend.device)[0])
        return CudaRecording(self._graph, self._observer, num_bytes)

    def abandon(self) -> None:
        try:
            self._stack.close()
        except RuntimeError:
            # The capture was invalidated by what went wrong inside it; that error is the one to show.
            self._graph.reset()


class CudaBackend:
    """Records CUDA graphs. Replays of one backend run one after another: they share intermediate memory."""

    name = "cuda"

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        # A pool lives as long as some graph uses it, and its handle is useless afterwards: this one is never dropped.
        self._anchor = torch.cuda.CUDAGraph()
        # It multiplies, so that the workspace which the BLAS library keeps for this stream is in the pool as well; the
        # library itself starts up outside.
        square = torch.zeros((16, 16), dtype=torch.bfloat16, device=self.device)
        product = square @ square
        with torch.cuda.graph(self._anchor, stream=self.stream):
            torch.mm(square, square, out=product)
        self._anchored = square, product

    @property
    def pool(self) -> Any:
        return self._anchor.pool()

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(self.stream), torch.no_grad():
                work()
        finally:  # work launched after an error must not overtake what was launched before it
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            torch.cuda.synchronize(self.device)

    def open(self, after: Recording | None = None) -> OpenCudaGraph:
        observer = OpObserver(keep_calls=False)
        if isinstance(after, CudaRecording):
            observer.adopt(after.observer)
        return OpenCudaGraph(self, observer)
