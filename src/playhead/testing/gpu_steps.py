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

from playhead.attention.base import AttentionBackend, LayerAttention
from playhead.attention.ordered import OrderedBackend
from playhead.attention.triton import TritonBackend
from playhead.graph.op_facts import tensors_in
from playhead.kernels.op import NAMESPACE
from playhead.kernels.triton import head_tiles, projection_tiles
from playhead.layers.linear import PlainLinear, order_sums
from playhead.models.decoder import Decoder
from playhead.step import build

CUDA = DispatchKeySet(DispatchKey.CUDA)
DTYPES = (*projection_tiles.DTYPES, torch.float32)


class ByGPUKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ops of ours run the body they have for CUDA. `num_calls` counts them by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_calls: dict[str, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's own answer imports its compiler, for seconds (see `OpObserver`)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A trace for all sizes has tensors without memory.
        if func.namespace != NAMESPACE or any(isinstance(one, FakeTensor) for one in tensors_in(args)):
            return func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.num_calls[name] = self.num_calls.get(name, 0) + 1
        return func.redispatch(CUDA, *args)


def prepare_as_a_gpu(
    decoder: Decoder, page_table_RP: torch.Tensor, layers: tuple[LayerAttention, ...], *, batch_invariant: bool
) -> AttentionBackend:
    """What `build.prepare_sums` does on a GPU. Matrices lie as a GPU has them, by output."""
    for module in decoder.modules():
        if isinstance(module, PlainLinear):
            module.weight.data = module.weight.data.contiguous()
    max_bs = page_table_RP.shape[0] - 1
    if not batch_invariant:
        return TritonBackend(page_table_RP, layers, max_bs=max_bs)
    order_sums(decoder)
    return OrderedBackend(page_table_RP, layers, max_bs=max_bs)


@contextmanager
def by_gpu_kernels() -> Iterator[ByGPUKernels]:
    """In here a new worker on the CPU has the steps of one on a GPU, and runs them by its kernels."""
    with (
        patch.object(build, "prepare_sums", prepare_as_a_gpu),
        patch.object(projection_tiles, "DTYPES", DTYPES),
        patch.object(head_tiles, "DTYPES", DTYPES),
        patch.object(build, "cpu_binders", dict),  # a tape that binds nothing calls the ops again
        patch.object(torch.Tensor, "is_cuda", property(lambda self: True)),
        torch._C._AutoDispatchBelowAutograd(),  # before recorders, autograd would cut some ops into those of torch
        ByGPUKernels() as kernels,
    ):
        yield kernels
