"""What a callable did to memory: every dispatched op with the bytes it read and wrote.

Backends record under an `OpObserver`. It refuses what a replay cannot reproduce (host syncs, shapes that depend on
data, kernels that bypass the dispatcher), naming the op and the line that called it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode

from playhead.errors import CaptureError
from playhead.graph.leases import BridgeLeases, storage_of
from playhead.graph.op_facts import Op, OpFacts, facts_of, split_leaves, tensors_in

FOREIGN_FRAMES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))

MASKS = (torch.bool, torch.uint8)

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


# What a recording keeps of one tensor and of one op, in the order of the fields of `Access` and `OpRecord`. A start has
# hundreds of thousands of these. Plain tuples are made four times as fast as dataclasses, and the garbage collector
# stops looking at them.
NotedAccess = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, bool]
NotedOp = tuple[str, tuple[NotedAccess, ...], tuple[NotedAccess, ...], tuple[object, ...], str]

Storages = dict[int, int]
"""The storage of each tensor of an op, by the tensor's identity: it is asked for once."""


@dataclass(frozen=True, slots=True)  # positional, made from a `NotedAccess`
class Access:
    """Bytes of one storage touched by one op. `internal` memory was made while recording."""

    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    internal: bool

    @property
    def stop(self) -> int:
        return self.start + num_spanned(self.shape, self.stride) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)  # positional, made from a `NotedOp`
class OpRecord:
    """One dispatched op. `statics` are its arguments that are not tensors: a replay cannot change them."""

    name: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    statics: tuple[object, ...]
    where: str

    @classmethod
    def of(cls, noted: NotedOp) -> OpRecord:
        name, reads, writes, statics, where = noted
        return cls(name, tuple(Access(*one) for one in reads), tuple(Access(*one) for one in writes), statics, where)

    @property
    def is_view(self) -> bool:
        return not self.writes

    @property
    def signature(self) -> str:
        """What must be equal in two recordings of the same step, whatever values were in the inputs."""
        shapes = [(access.shape, str(access.dtype), access.internal) for access in self.reads + self.writes]
        return f"{self.name} {shapes} {self.statics}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLog:
    """The ops of one recording, in order. Views are listed but are not work."""

    noted: tuple[NotedOp, ...]

    @property
    def ops(self) -> tuple[OpRecord, ...]:
        """Every op, with names for what was noted of it."""
        return tuple(OpRecord.of(noted) for noted in self.noted)

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


class Issued(NamedTuple):
    """One op on its way, with the tensors among its arguments and the rest of them."""

    func: Op
    facts: OpFacts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor]
    statics: list[object]


def user_line() -> str:
    """file:line of the innermost frame that is neither torch nor this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return line_in(frame.f_code.co_filename, frame.f_lineno)


@cache
def line_in(file_name: str, number: int) -> str:
    """One text for all ops of a line."""
    return f"{file_name}:{number}"


@cache
def is_foreign(file_name: str) -> bool:
    """Whether a file is torch's, this package's or none at all."""
    return file_name.startswith((*FOREIGN_FRAMES, "<"))


def byte_span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one-past-last byte a strided tensor can touch."""
    start = tensor.data_ptr()
    return start, start + num_spanned(tensor.shape, tensor.stride()) * tensor.element_size()


def num_spanned(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided tensor, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


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
        self._noted: list[NotedOp] = []
        self._internal: set[int] = set()
        self._guard = EscapeGuard()
        self.leases: BridgeLeases | None = None

    @property
    def log(self) -> OpLog:
        return OpLog(noted=tuple(self._noted))

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
        facts = facts_of(func)
        outer, self._guard.inside_op = self._guard.inside_op, True
        try:
            if facts.makes_memory:
                return self._make_memory(func, facts, args, kwargs or {})
            inputs, statics = split_leaves((args, kwargs) if kwargs else args)
            issued = Issued(func, facts, args, kwargs or {}, inputs, statics)
            self._refuse(issued)
            result = func(*args, **issued.kwargs)
            self._record(issued, tensors_in(result))
        finally:
            self._guard.inside_op = outer
        return result

    def run_opaque(self, name: str, fn: Callable[..., Any], args: Sequence[Any], mutated: Sequence[int]) -> Any:
        """Run compiled code as one op: it reads its arguments, writes those in `mutated`, and makes its results."""
        outer, self._guard.inside_op = self._guard.inside_op, True
        try:
            with _disable_current_modes():
                result = fn(*args)
            inputs, outputs = tensors_in(args), tensors_in(result)
            storages = {id(tensor): storage_of(tensor) for tensor in (*inputs, *outputs)}
            self._watch_bridges(name, inputs, outputs, is_view=False)
            self._append(name, inputs, [args[i] for i in mutated], outputs, (), storages)
        finally:
            self._guard.inside_op = outer
        if self._keep_calls:
            fresh = fresh_among(outputs, inputs, storages)
            self.calls.append(Call(name=name, func=fn, args=tuple(args), kwargs={}, fresh=fresh))
        return result

    def _refuse(self, issued: Issued) -> None:
        facts = issued.facts
        if facts.refusal is not None:
            raise CaptureError(facts.name, user_line(), *facts.refusal)
        if facts.takes_indices and any(index.dtype in MASKS for index in tensors_in(issued.args[1])):
            raise CaptureError(
                facts.name, user_line(), "a mask as index makes the shape depend on data", "Use torch.where."
            )
        if len(issued.inputs) < 2 and not facts.may_move:
            return
        devices = {tensor.device for tensor in issued.inputs if tensor.dim() > 0}
        if facts.may_move and issued.kwargs.get("device") is not None:
            devices.add(torch.device(issued.kwargs["device"]))
        if len(devices) > 1 and len(kinds := {device.type for device in devices}) > 1:
            raise CaptureError(
                facts.name, user_line(), f"moves data between {sorted(kinds)}", "Make the host value a slot."
            )

    def _make_memory(self, func: Op, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """Up to half of a step's ops do no more. There is nothing to refuse, and the result is the recording's own."""
        made: torch.Tensor = func(*args, **kwargs)
        storage = storage_of(made)
        self._internal.add(storage)
        self._noted.append((facts.name, (), (self._note(made, storage),), (), user_line()))
        if self._keep_calls:
            self.calls.append(Call(name=facts.name, func=func, args=args, kwargs=kwargs, fresh=(made,)))
        return made

    def _record(self, issued: Issued, outputs: Sequence[torch.Tensor]) -> None:
        func, facts, args, kwargs, inputs, statics = issued
        storages = {id(tensor): storage_of(tensor) for tensor in (*inputs, *outputs)}
        fresh = fresh_among(outputs, inputs, storages)
        made = [tensor for tensor in fresh if tensor is not None]
        written = facts.written_among(args, kwargs) if facts.written else []
        is_view = not written and not made
        self._watch_bridges(facts.name, inputs, outputs, is_view=is_view)
        if is_view:
            inputs = []
        elif written:
            are_written = set(map(id, written))
            inputs = [tensor for tensor in inputs if id(tensor) not in are_written]
        self._append(facts.name, inputs, written, made, statics, storages)
        if self._keep_calls and not is_view:
            # Kept even where nothing is redone: the outputs' memory must live as long as the recording.
            self.calls.append(Call(name=facts.name, func=func, args=args, kwargs=kwargs, fresh=fresh))

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
        statics: Sequence[object],
        storages: Storages,
    ) -> None:
        reads = tuple([self._note(tensor, storages[id(tensor)]) for tensor in read])
        self._internal.update([storages[id(tensor)] for tensor in made])
        writes = tuple([self._note(tensor, storages[id(tensor)]) for tensor in (*written, *made)])
        self._noted.append((name, reads, writes, tuple(statics), user_line()))

    def _note(self, tensor: torch.Tensor, storage: int) -> NotedAccess:
        return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, storage in self._internal


def fresh_among(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], storages: Storages
) -> tuple[torch.Tensor | None, ...]:
    """The outputs, with None for each that shares its memory with an input."""
    given = {storages[id(tensor)] for tensor in inputs}
    return tuple([None if storages[id(out)] in given else out for out in outputs])


def current_observer() -> OpObserver | None:
    """The observer that is recording now, if one is."""
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, OpObserver) else None
