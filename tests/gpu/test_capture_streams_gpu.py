"""Captures in other threads, after a capture that CUDA refused, and by more backends than torch has streams."""

from __future__ import annotations

import gc

import pytest
import torch

from playhead.errors import GraphError
from playhead.graph import CudaBackend
from playhead.graph.backends.base import record
from playhead.graph.backends.cuda_nodes import kernel_nodes
from playhead.testing.threads import Beside


class Product:
    """A product with few rows and a long sum: the BLAS library splits it and adds up in its workspace."""

    def __init__(self) -> None:
        self.left = torch.randn(16, 16384, device="cuda", dtype=torch.bfloat16)
        self.right = torch.randn(16384, 64, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty(16, 64, device="cuda", dtype=torch.bfloat16)

    def __call__(self) -> torch.Tensor:
        return torch.mm(self.left, self.right, out=self.out)

    def check(self, backend: CudaBackend) -> None:
        """Captured without running it before, it gives what it gives eagerly; all its addresses are accounted for."""
        recording, _ = record(backend, self, is_warm=True)
        self.out.fill_(float("nan"))
        recording.replay()
        torch.testing.assert_close(self.out, self.left @ self.right, atol=1.0, rtol=0.02)  # of sums of about 128
        snapshot = torch.cuda.memory_snapshot()
        own = [(s["address"], s["total_size"]) for s in snapshot if tuple(s["segment_pool_id"]) in recording.pools]
        own += [(tensor.data_ptr(), tensor.nbytes) for tensor in (self.left, self.right, self.out)]
        for node in kernel_nodes(recording.graph):
            for address in node.addresses:
                assert any(start <= address < start + size for start, size in own), f"{node.name}: {address:#x}"


def test_a_thread_captures_what_another_one_warmed_up():
    backend, product = CudaBackend(), Product()
    product.check(backend)
    thread = Beside(lambda: product.check(backend))
    thread.start()
    thread.result()


def test_a_capture_that_cuda_refused_leaves_the_next_one_whole():
    backend, product = CudaBackend(), Product()

    def waits() -> torch.Tensor:
        found = product()
        torch.cuda.current_stream().synchronize()
        return found

    for _ in range(2):
        with pytest.raises(RuntimeError, match="capturing"):
            record(backend, waits, is_warm=True)
    product.check(backend)
    torch.randn(3, device="cuda")  # random numbers are not in a capture either
    gc.collect()  # the refused graphs are in tracebacks; a collection inside a later capture would end that one


def test_backends_one_after_another_meet_no_earlier_workspace():
    product = Product()
    for _ in range(40):
        product.check(CudaBackend())


def test_backends_at_once_share_no_stream_and_too_many_are_refused():
    backends = [CudaBackend() for _ in range(4)]
    assert len({backend.stream.cuda_stream for backend in backends}) == 4
    with pytest.raises(GraphError, match="capture streams"):
        backends.extend(CudaBackend() for _ in range(40))
    assert len({backend.stream.cuda_stream for backend in backends}) == len(backends) <= 32
    backends.clear()
    CudaBackend("cuda:0")  # the same device by another name
