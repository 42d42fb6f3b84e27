"""What a callable did to memory: every dispatched op with the bytes it read and wrote.

Backends record under an `OpObserver`. It refuses what a replay cannot reproduce (host syncs, shapes that depend on
data, kernels that bypass the dispatcher), naming the op and the line that called it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from playhead.errors import CaptureError
from playhead.graph.leases import BridgeLeases, storage_of

Op = Callable[..., Any]

FOREIGN_FRAMES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))

# Memory without contents: a replay has nothing to redo.
UNINITIALISED = ("aten::empty.", "aten::empty_like.", "aten::empty_strided.", "aten::new_empty.")

# Python-level calls that reach the data without passing the dispatcher.
ESCAPES: dict[Callable[..., Any], tuple[str, str]] = {
    torch.Tensor.tolist: ("reads tensor data on the host", "Keep the value in a tensor, or make it a slot."),
    torch.Tensor.numpy: ("reads tensor data on the host", "Keep the value in a tensor, or make it a slot."),
    torch.Tensor.__array__: ("reads tensor data on the host", "Keep the value in a tensor, or make it a slot."),
    torch.Tensor.cpu: ("reads tensor data on the host", "Keep the value on the device, or make it a slot."),
    torch.Tensor.data_ptr: (
        "a kernel outside the dispatcher takes this address",
        "Register the kernel with torch.library.custom_op and its mutates_args.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Bytes of one storage touched by one op. `internal` memory was made while recording."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRecord:
    """One dispatched op. `statics` are its arguments that are not tensors: a replay cannot change them."""

    name: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    statics: str
    where: str
    is_view: bool

    @property
    def signature(self) -> str:
        """What must be equal in two recordings of the same step, whatever values were in the inputs."""
        shapes = [(access.shape, str(access.dtype), access.internal) for access in self.reads + self.writes]
        return f"{self.name} {shapes} {self.statics}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLog:
    """The ops of one recording, in order. Views are listed but are not work."""

    ops: tuple[OpRecord, ...]

    def count(self, name: str) -> int:
        """How many ops have this name, with or without overload: 'aten::index' counts 'aten::index.Tensor'."""
        return sum(op.name == name or op.name.split(".")[0] == name for op in self.ops)

    @property
    def num_nodes(self) -> int:
        return sum(not op.is_view for op in self.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One op to issue again. `fresh` are the outputs it made, in order; None stands for an alias of an input."""

    name: str
    func: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fresh: tuple[torch.Tensor | None, ...]


def user_line() -> str:
    """file:line of the innermost frame that is neither torch nor this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*FOREIGN_FRAMES, "<")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def byte_span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one-past-last byte a strided tensor can touch."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def tensors_in(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def written_args(func: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments the op's schema declares as mutated."""
    declared = func._schema.arguments  # type: ignore[attr-defined]
    written = []
    for i, argument in enumerate(declared):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += tensors_in(args[i] if i < len(args) else kwargs.get(argument.name))
    return written


class EscapeGuard(TorchFunctionMode):
    """Refuses Python calls that read data or take addresses outside a dispatched op."""

    def __init__(self) -> None:
        super().__init__()
        self.inside_op = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.inside_op and func in ESCAPES:
            why, fix = ESCAPES[func]
            raise CaptureError(f"Tensor.{func.__name__}", user_line(), why, fix)
        return func(*args, **(kwargs or {}))


class OpObserver(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records ops while it is entered. With `keep_calls` it also keeps what is needed to issue them again."""

    def __init__(self, *, keep_calls: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._keep_calls = keep_calls
        self._records: list[OpRecord] = []
        self._internal: set[int] = set()
        self._guard = EscapeGuard()
        self.leases: BridgeLeases | None = None

    @property
    def log(self) -> OpLog:
        return OpLog(ops=tuple(self._records))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch's own answer wraps `__torch_dispatch__`, and the wrapper imports `torch._dynamo` in the first recorded
        # op. That import takes as long as half of torch, and a cycle in it keeps all frames on the stack: engine,
        # worker and KV memory would outlive an LLM that is dropped, until the garbage collector runs.
        return False

    def adopt(self, earlier: OpObserver) -> None:
        """Memory made by an earlier part of the same recording is internal here too."""
        self._internal |= earlier._internal

    @contextmanager
    def watching(self) -> Iterator[OpObserver]:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._guard)
            stack.enter_context(self)
            yield self

    def __torch_dispatch__(
        self, func: Op, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        outer, self._guard.inside_op = self._guard.inside_op, True
        try:
            self._refuse(func, args, kwargs)
            result = func(*args, **kwargs)
            self._record(func, args, kwargs, result)
        finally:
            self._guard.inside_op = outer
        return result

    def run_opaque(self, name: str, fn: Callable[..., Any], args: Sequence[Any], mutated: Sequence[int]) -> Any:
        """Run compiled code as one op: it reads its arguments, writes those in `mutated`, and makes its results."""
        outer, self._guard.inside_op = self._guard.inside_op, True
        try:
            with _disable_current_modes():
                result = fn(*args)
            written = [args[i] for i in mutated]
            self._watch_bridges(name, tensors_in(args), tensors_in(result), is_view=False)
            self._append(name, tensors_in(args), written, tensors_in(result), "")
        finally:
            self._guard.inside_op = outer
        if self._keep_calls:
            fresh = self._fresh(args, tensors_in(result))
            self.calls.append(Call(name=name, func=fn, args=tuple(args), kwargs={}, fresh=fresh))
        return result

    def _refuse(self, func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name, tags = op_name(func), func.tags  # type: ignore[attr-defined]
        if torch.Tag.data_dependent_output in tags:
            raise CaptureError(
                name, user_line(), "the host waits for a tensor's value", "Keep it in a tensor, or make it a slot."
            )
        if name.startswith(("aten::index.", "aten::index_put")):
            indices = tensors_in(args[1])
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                raise CaptureError(
                    name, user_line(), "a mask as index makes the shape depend on data", "Use torch.where."
                )
        elif torch.Tag.dynamic_output_shape in tags:
            raise CaptureError(
                name, user_line(), "the shape of its result depends on data", "Compute a fixed shape and mask it."
            )
        if name.startswith("aten::lift_fresh"):
            raise CaptureError(
                name, user_line(), "a host constant would be baked into the graph", "Make it a slot or a buffer."
            )
        devices = {tensor.device.type for tensor in tensors_in((args, kwargs)) if tensor.dim() > 0}
        target = kwargs.get("device")
        if target is not None and name.startswith("aten::_to_copy"):
            devices.add(torch.device(target).type)
        if len(devices) > 1:
            raise CaptureError(
                name, user_line(), f"moves data between {sorted(devices)}", "Make the host value a slot."
            )

    def _record(self, func: Op, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        written = written_args(func, args, kwargs)
        outputs = tensors_in(result)
        fresh = self._fresh((args, kwargs), outputs)
        statics = repr([leaf for leaf in tree_leaves((args, kwargs)) if not isinstance(leaf, torch.Tensor)])
        name = op_name(func)
        made = [tensor for tensor in fresh if tensor is not None]
        is_view = not written and not made
        self._watch_bridges(name, tensors_in((args, kwargs)), outputs, is_view=is_view)
        read = [t for t in tensors_in((args, kwargs)) if not any(t is w for w in written)]
        self._append(name, [] if is_view else read, written, made, statics, is_view=is_view)
        if self._keep_calls and not is_view:
            # Kept even where nothing is redone: the outputs' memory must live as long as the recording.
            self.calls.append(Call(name=name, func=func, args=args, kwargs=kwargs, fresh=fresh))

    def _watch_bridges(
        self, name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], *, is_view: bool
    ) -> None:
        if self.leases is not None:
            if not is_view:
                self.leases.refuse_expired(name, user_line(), inputs)
            self.leases.follow(inputs, outputs)

    def _append(
        self,
        name: str,
        read: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
        statics: str,
        *,
        is_view: bool = False,
    ) -> None:
        reads, writes = tuple(map(self._access, read)), tuple(map(self._access, written))
        for tensor in made:
            self._internal.add(storage_of(tensor))
        writes += tuple(map(self._access, made))
        self._records.append(
            OpRecord(name=name, reads=reads, writes=writes, statics=statics, where=user_line(), is_view=is_view)
        )

    def _fresh(self, inputs: object, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        storages = {storage_of(tensor) for tensor in tensors_in(inputs)}
        return tuple(None if storage_of(out) in storages else out for out in outputs)

    def _access(self, tensor: torch.Tensor) -> Access:
        start, stop = byte_span(tensor)
        internal = storage_of(tensor) in self._internal
        return Access(start=start, stop=stop, shape=tuple(tensor.shape), dtype=tensor.dtype, internal=internal)


def op_name(func: Op) -> str:
    """'aten::mm.default' for torch.ops.aten.mm.default."""
    overload: str = func._overloadname  # type: ignore[attr-defined]
    return f"{func._schema.name}.{overload}"  # type: ignore[attr-defined]


def current_observer() -> OpObserver | None:
    """The observer that is recording now, if one is."""
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, OpObserver) else None
