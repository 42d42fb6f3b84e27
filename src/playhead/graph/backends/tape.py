"""The CPU's graph: a list of ops over fixed memory.

Replay issues the recorded ops again on the recorded tensors and writes each result into the tensor the recording
made. Python of the model does not run, views alias, addresses are fixed: an input that was not refreshed shows here
exactly as it does in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from playhead.bound_ops import bound
from playhead.graph.backends.base import Recording
from playhead.graph.backends.out_variants import bind_outputs, out_variant
from playhead.graph.oplog import UNINITIALISED, Call, Op, OpLog, OpObserver, tensors_in
from playhead.graph.outputs import Outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeStep:
    """One op of a replay. `copies` are results that it makes anew and that must go where the recording had them."""

    func: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    copies: tuple[torch.Tensor | None, ...]

    @classmethod
    def of(cls, call: Call) -> TapeStep:
        """The cheapest way to redo a call: without torch if it can be bound, else straight into the recorded memory."""
        work = bound(call.func, call.args, call.kwargs)
        if work is not None:
            return cls(func=work, args=(), kwargs={}, copies=())
        variant = out_variant(call.func) if any(tensor is not None for tensor in call.fresh) else None
        outputs = bind_outputs(variant[1], call.fresh) if variant is not None else None
        if variant is not None and outputs is not None:
            return cls(func=variant[0], args=call.args, kwargs=call.kwargs | outputs, copies=())
        copies = call.fresh if any(tensor is not None for tensor in call.fresh) else ()
        return cls(func=call.func, args=call.args, kwargs=call.kwargs, copies=copies)


class TapeRecording:
    """Ops in order, with the memory they made."""

    def __init__(self, observer: OpObserver) -> None:
        self.observer = observer
        self.log: OpLog = observer.log
        self._steps = tuple(TapeStep.of(call) for call in observer.calls if not call.name.startswith(UNINITIALISED))
        made = {t.untyped_storage().data_ptr(): t for call in observer.calls for t in call.fresh if t is not None}
        self._memory = tuple(made.values())

    @property
    def num_nodes(self) -> int:
        return len(self._steps)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._memory)

    def replay(self) -> None:
        # Padded rows may hold anything, and numpy would warn about them.
        with torch.no_grad(), np.errstate(all="ignore"):
            for step in self._steps:
                result = step.func(*step.args, **step.kwargs)
                if step.copies:
                    for recorded, again in zip(step.copies, tensors_in(result), strict=True):
                        if recorded is not None:
                            recorded.copy_(again)


class OpenTape:
    def __init__(self, observer: OpObserver) -> None:
        self._observer = observer
        self._stack = ExitStack()
        self._stack.enter_context(observer.watching())

    def close(self) -> TapeRecording:
        self._stack.close()
        return TapeRecording(self._observer)

    def abandon(self) -> None:
        self._stack.close()


class TapeBackend:
    """Records on the CPU. Each recording keeps all its intermediate memory."""

    name = "tape"

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        with torch.no_grad():
            work()

    def open(self, after: Recording | None = None) -> OpenTape:
        observer = OpObserver(keep_calls=True)
        if isinstance(after, TapeRecording):
            observer.adopt(after.observer)
        return OpenTape(observer)
