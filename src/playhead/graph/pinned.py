"""Host values on their way to a CUDA device: pinned memory, copied in stream order."""

from __future__ import annotations

import torch

from playhead.errors import GraphError

try:
    from cuda.bindings import runtime
except ImportError:
    runtime = None


class CudaChannel:
    """Pinned host memory to a CUDA device, on the current stream.

    Copy and event go straight to the runtime: through torch they cost twice as much host time, every step. Without
    `cuda-bindings` (CUDA builds of torch bring it) torch does both.
    """

    def __init__(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        self._dst, self._src, self._device_index = dst, src, dst.device.index
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # An event has no handle before its first record, and belongs to the device of that record's stream.
        self._event.record(torch.cuda.current_stream(dst.device))
        self._handle = self._event.cuda_event
        if runtime is not None:
            kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
            self._copy = (dst.data_ptr(), src.data_ptr(), src.nbytes, kind)

    def send(self) -> None:
        if runtime is None:
            self._dst.copy_(self._src, non_blocking=True)
            self._event.record(torch.cuda.current_stream(self._device_index))
            return
        stream = torch._C._cuda_getCurrentRawStream(self._device_index)
        (copied,) = runtime.cudaMemcpyAsync(*self._copy, stream)
        (recorded,) = runtime.cudaEventRecord(self._handle, stream)
        if copied or recorded:
            raise GraphError(
                f"staging copy of {self._src.nbytes} bytes: found {copied!r} and {recorded!r}; wanted success. "
                "An earlier kernel may have failed: run with CUDA_LAUNCH_BLOCKING=1."
            )

    def wait(self) -> None:
        self._event.synchronize()


class CudaPort:
    """For CUDA devices."""

    def host_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8).pin_memory()

    def channel(self, dst: torch.Tensor, src: torch.Tensor) -> CudaChannel:
        return CudaChannel(dst, src)
