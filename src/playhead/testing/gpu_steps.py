"""Whole steps as a GPU runs them, on a CPU: the GPU's attention, fused products and kernels, interpreted.

    with by_gpu_kernels():
        worker = tiny_worker(Mode.FULL, model=TINY_GEMMA3)
        worker.run(chunks)  # captured and replayed on the tape, each op by the kernel that a GPU would launch

Needs TRITON_INTERPRET=1 before Triton is imported. Numbers are float32, as a CPU takes long for half precision and the
interpreter errs in it; products run by the kernels that a GPU has for half precision. Left out are products by Gluon's
ring, which Triton's interpreter does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from playhead.graph.op_facts import tensors_in
from playhead.kernels.op import NAMESPACE
from playhead.kernels.triton import head_tiles, projection_tiles
from playhead.layers.linear import PlainWeights
from playhead.step import build

CUDA = DispatchKeySet(DispatchKey.CUDA)
DTYPES = (*projection_tiles.DTYPES, torch.float32)


class ByGPUKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ops of ours run the body they have for CUDA. `called` are their names."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.called: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's own answer imports its compiler, for seconds (see `OpObserver`)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A trace for all sizes has tensors without memory.
        if func.namespace != NAMESPACE or any(isinstance(one, FakeTensor) for one in tensors_in(args)):
            return func(*args, **(kwargs or {}))
        self.called.add(func.overloadpacket.__name__)
        return func.redispatch(CUDA, *args)


@contextmanager
def by_gpu_kernels() -> Iterator[ByGPUKernels]:
    """In here a new worker on the CPU has the steps of one on a GPU, and runs them by its kernels."""
    with (
        patch.object(build, "attention_backend", build.gpu_attention),
        patch.object(PlainWeights, "finish_loading", lambda self, decoder: None),  # matrices lie as a GPU has them
        patch.object(projection_tiles, "DTYPES", DTYPES),
        patch.object(head_tiles, "DTYPES", DTYPES),
        patch.object(build, "cpu_binders", dict),  # a tape that binds nothing calls the ops again
        patch.object(torch.Tensor, "is_cuda", property(lambda self: True)),
        torch._C._AutoDispatchBelowAutograd(),  # before recorders, autograd would cut some ops into those of torch
        ByGPUKernels() as kernels,
    ):
        yield kernels
