"""How much work something does, in figures that a busy machine does not change: lines, calls of ops, bytes alive."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def executed_lines(work: Callable[[], object]) -> int:
    """Lines of Python that `work` executes. A loop of a thousand rounds counts a thousand times its body."""
    count = 0

    def on_event(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return on_event

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # what a collection calls is not the work's
    sys.settrace(on_event)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count


class CalledOps(TorchDispatchMode):
    """The ops that reach torch's dispatcher inside it, in order; `calls` has their arguments beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    @property
    def called(self) -> list[Any]:
        return [func for func, _ in self.calls]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


class LiveTensors(TorchDispatchMode):
    """Watches the memory of tensors made inside it; `peak_bytes` is the most that was alive after any op.

    An op that is handed a storage, such as a mapped file's, makes no memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._num_bytes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_leaves((args, kwargs))
        known = {x.untyped_storage()._cdata for x in given if isinstance(x, torch.Tensor)}
        known |= {x._cdata for x in given if isinstance(x, torch.UntypedStorage)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in known:
                self._num_bytes[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        self._num_bytes = {ref: size for ref, size in self._num_bytes.items() if not ref.expired()}
        self.peak_bytes = max(self.peak_bytes, sum(self._num_bytes.values()))
        return result
