"""A step without its work: ops on tensors that have a shape, a type and a device, and no numbers.

In a `Rehearsal` nothing reaches the device. Ops of torch give the shapes of their results. Ops of ours run the body
they have for CUDA, up to the launches of its kernels, which the rehearsing caller replaces. Real tensors may be given:
they are neither read nor written. torch's `FakeTensorMode` does this too, but its first use imports for three seconds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._python_dispatch import TorchDispatchMode

from playhead.kernels.collectives import first_rank_tells_, gather_columns, largest_over_ranks_, sum_over_ranks_
from playhead.kernels.op import NAMESPACE

META, CUDA = torch.device("meta"), DispatchKeySet(DispatchKey.CUDA)
# Their bodies would meet other ranks, and launch no kernel of ours.
COLLECTIVES = frozenset(
    one.overload for one in (first_rank_tells_, gather_columns, largest_over_ranks_, sum_over_ranks_)
)


class Rehearsal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """In here an op makes `Shape`s on `device`. Ops on the host alone run as ever.

    An op of ours that was called with such arguments before launches nothing new, so its body does not run again.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._results: dict[tuple[Any, ...], Any] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's own answer imports its compiler, for seconds (see `OpObserver`)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == NAMESPACE and func not in COLLECTIVES:
            call = func, *map(signature, args)
            if call not in self._results:
                with self:
                    self._results[call] = func.redispatch(CUDA, *args)
            return self._results[call]
        if not any(is_elsewhere(value) for value in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        if "out" in kwargs:
            return kwargs["out"]  # its shape is known; torch's checks of it import sympy, for seconds
        found = func(*without_memory(args), **{name: without_memory(value) for name, value in kwargs.items()})
        return self._shaped(found)

    def _shaped(self, found: Any) -> Any:
        if isinstance(found, list | tuple):
            return type(found)(self._shaped(one) for one in found)
        return Shape(found, self._device) if isinstance(found, Tensor) else found


class Shape(Tensor):
    """A tensor without memory that says it is on a device. `meta` is its like on torch's device for shapes."""

    meta: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, meta: Tensor, device: torch.device) -> Shape:
        made: Shape = Tensor._make_wrapper_subclass(
            cls, meta.shape, meta.stride(), meta.storage_offset(), dtype=meta.dtype, device=device
        )
        made.meta = meta
        return made

    def data_ptr(self) -> int:
        """An address aligned as the real one would be: torch's memory begins at multiples of 512 bytes."""
        return int(self.storage_offset()) * self.element_size()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError(f"{func} on a shape, outside of a rehearsal")


def signature(value: Any) -> Any:
    """What of an argument can decide which kernels are launched."""
    if isinstance(value, list):
        return tuple(map(signature, value))
    if not isinstance(value, Tensor):
        return value
    return value.dtype, value.shape, value.stride(), value.data_ptr() % 16


def is_elsewhere(value: Any) -> bool:
    """Whether an argument of an op is a device other than the host, or a tensor, or several, on such a device."""
    if isinstance(value, list | tuple):
        return any(is_elsewhere(one) for one in value)
    device = value.device if isinstance(value, Tensor) else value
    return isinstance(device, torch.device) and device.type not in ("cpu", "meta")


def without_memory(value: Any) -> Any:
    """The same argument on torch's device for shapes."""
    if isinstance(value, list | tuple):
        return type(value)(without_memory(one) for one in value)
    if isinstance(value, Shape):
        return value.meta
    if isinstance(value, torch.device):
        return META
    if not isinstance(value, Tensor) or value.device == META:
        return value
    num_items = value.untyped_storage().nbytes() // value.element_size()
    like = torch.empty(num_items, dtype=value.dtype, device=META)
    return like.as_strided(value.shape, value.stride(), value.storage_offset())
