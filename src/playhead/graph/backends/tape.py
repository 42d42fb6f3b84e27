"""The CPU's graph: a list of ops over fixed memory.

Replay issues the recorded ops again on the recorded tensors and writes each result into the tensor the recording
made. Python of the model does not run, views alias, addresses are fixed: an input that was not refreshed shows here
exactly as it does in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import Context
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from playhead.graph.backends.base import Recording
from playhead.graph.backends.out_variants import bind_outputs, out_variant
from playhead.graph.op_facts import UNINITIALISED, Op, tensors_in
from playhead.graph.oplog import Call, OpLog, OpObserver
from playhead.graph.outputs import Outputs

# For ops that write into their arguments and return nothing: `bind(*args, **kwargs)` gives a function that repeats the
# call without torch, on the values its memory has by then.
Binders = Mapping[Op, Callable[..., Callable[[], None]]]
NO_BINDERS: Binders = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeStep:
    """One op of a replay. `copies` are results that it makes anew and that must go where the recording had them."""

    func: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    copies: tuple[torch.Tensor | None, ...]

    @classmethod
    def of(cls, call: Call, binders: Binders) -> TapeStep:
        """The cheapest way to redo a call: without torch if it can be bound, else straight into the recorded memory."""
        bind = binders.get(call.func)
        if bind is not None:
            return cls(func=bind(*call.args, **call.kwargs), args=(), kwargs={}, copies=())
        variant = out_variant(call.func) if any(tensor is not None for tensor in call.fresh) else None
        outputs = bind_outputs(variant[1], call.fresh) if variant is not None else None
        if variant is not None and outputs is not None:
            return cls(func=variant[0], args=call.args, kwargs=call.kwargs | outputs, copies=())
        copies = call.fresh if any(tensor is not None for tensor in call.fresh) else ()
        return cls(func=call.func, args=call.args, kwargs=call.kwargs, copies=copies)


class TapeRecording:
    """Ops in order, with the memory they made."""

    def __init__(self, observer: OpObserver, binders: Binders) -> None:
        self.observer = observer
        self.log: OpLog = observer.log
        redone = (call for call in observer.calls if not call.name.startswith(UNINITIALISED))
        self._steps = tuple(TapeStep.of(call, binders) for call in redone)
        made = {t.untyped_storage().data_ptr(): t for call in observer.calls for t in call.fresh if t is not None}
        self._memory = tuple(made.values())
        # Where nothing has gradients, replays need not turn them off.
        given = (tensors_in((call.args, call.kwargs)) for call in observer.calls)
        self._has_grad = any(tensor.requires_grad for tensors in given for tensor in tensors)
        self._quiet = Context()
        self._quiet.run(np.seterr, all="ignore")  # padded rows may hold anything, and numpy would warn about them

    @property
    def num_nodes(self) -> int:
        return len(self._steps)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._memory)

    def replay(self) -> None:
        # In a step `torch.no_grad` takes 28 us and `np.errstate` 15: their Python is not in the caches by then.
        if self._has_grad:
            with torch.no_grad():
                self._quiet.run(self._replay)
        else:
            self._quiet.run(self._replay)

    def _replay(self) -> None:
        for step in self._steps:
            result = step.func(*step.args, **step.kwargs)
            if step.copies:
                for recorded, again in zip(step.copies, tensors_in(result), strict=True):
                    if recorded is not None:
                        recorded.copy_(again)


class OpenTape:
    def __init__(self, observer: OpObserver, binders: Binders) -> None:
        self._observer, self._binders = observer, binders
        self._stack = ExitStack()
        self._stack.enter_context(observer.watching())

    def close(self) -> TapeRecording:
        self._stack.close()
        return TapeRecording(self._observer, self._binders)

    def abandon(self) -> None:
        self._stack.close()


class TapeBackend:
    """Records on the CPU. Each recording keeps all its intermediate memory.

    `binders` say which ops a replay repeats without torch. Without them replays do the same work, and take longer.
    """

    name = "tape"

    def __init__(self, binders: Binders = NO_BINDERS) -> None:
        self._binders = binders

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        with torch.no_grad():
            work()

    def open(self, after: Recording | None = None) -> OpenTape:
        observer = OpObserver(keep_calls=True)
        if isinstance(after, TapeRecording):
            observer.adopt(after.observer)
        return OpenTape(observer, self._binders)
