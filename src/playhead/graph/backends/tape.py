"""The CPU's graph: a list of ops over fixed memory.

Replay issues the recorded ops again on the recorded tensors and writes each result into the tensor the recording
made. Python of the model does not run, views alias, addresses are fixed: an input that nobody refreshed shows here
exactly as it does in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch

from playhead.graph.backends.base import Outputs, Recording
from playhead.graph.oplog import UNINITIALISED, OpLog, OpObserver, tensors_in


class TapeRecording:
    """Ops in order, with the memory they made."""

    def __init__(self, observer: OpObserver) -> None:
        self.observer = observer
        self.log: OpLog = observer.log
        self._calls = tuple(call for call in observer.calls if not call.name.startswith(UNINITIALISED))
        made = {t.untyped_storage().data_ptr(): t for call in observer.calls for t in call.fresh if t is not None}
        self._memory = tuple(made.values())

    @property
    def num_nodes(self) -> int:
        return len(self._calls)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._memory)

    def replay(self) -> None:
        with torch.no_grad():
            for call in self._calls:
                result = call.func(*call.args, **call.kwargs)
                if any(tensor is not None for tensor in call.fresh):
                    for recorded, again in zip(call.fresh, tensors_in(result), strict=True):
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
