"""What the first of several ranks tells the others of a step, and how another rank follows: arrays, no objects.

Every rank has the same worker over its own part of the weights. The first one plans; the others run the step over the
same slots and meet it in its collectives. They plan nothing, so they keep no account of requests or pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from playhead.kv.device_tables import DeviceWrite
from playhead.sampling_params import SamplingKind
from playhead.step.inputs import StepRequests
from playhead.step.prompt_report import PromptReport

if TYPE_CHECKING:
    from playhead.step.worker import Worker

Arrays = Sequence[npt.NDArray[Any]]
Batch = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepOrder:
    """One step. Without a `batch` the slots hold it already. `report` are prompt tokens whose logprobs are wanted."""

    kind: SamplingKind
    is_decode: bool
    is_masked: bool
    num_requests: int
    num_tokens: int
    batch: Batch | None
    report: PromptReport | None

    def arrays(self) -> list[npt.NDArray[Any]]:
        """All of it. The values of the batch are in the order in which the worker's inputs are declared."""
        num_best = -1 if self.report is None else self.report.num_best
        flags = (self.is_decode, self.is_masked, self.batch is not None)
        numbers = np.array((self.kind, *flags, self.num_requests, self.num_tokens, num_best), dtype=np.int64)
        report = () if self.report is None else (self.report.index, self.report.tokens)
        return [numbers, *report, *(() if self.batch is None else self.batch.values())]

    @classmethod
    def of(cls, arrays: Arrays, worker: Worker) -> StepOrder:
        """The step that these arrays tell a worker of."""
        numbers, *rest = arrays
        kind, is_decode, is_masked, has_batch, num_requests, num_tokens, num_best = numbers.tolist()
        report = None
        if num_best >= 0:
            index, tokens, *rest = rest
            report = PromptReport(index=index, tokens=tokens, num_best=num_best)
        inputs = worker.decode_inputs if is_decode else worker.prefill_inputs
        names = (one.slot.name for one in inputs)
        return cls(
            kind=SamplingKind(kind),
            is_decode=bool(is_decode),
            is_masked=bool(is_masked),
            num_requests=num_requests,
            num_tokens=num_tokens,
            batch=dict(zip(names, rest, strict=True)) if has_batch else None,
            report=report,
        )


class Leader(Protocol):
    """How the first rank's worker reaches the other ranks. An exception inside one of the contexts ends all ranks."""

    def waiting(self) -> AbstractContextManager[None]:
        """While this rank waits for the results of a step, in which all ranks meet."""

    def tell_writes(self, writes: Sequence[DeviceWrite]) -> None: ...

    def leading(self, order: StepOrder) -> AbstractContextManager[None]: ...

    def leading_tail(self) -> AbstractContextManager[None]: ...

    def leading_captures(self) -> AbstractContextManager[None]: ...

    def leading_audit(self) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...


def step_order(requests: StepRequests, kind: SamplingKind, batch: Batch | None, *, is_masked: bool) -> StepOrder:
    """A step as the other ranks are told of it."""
    is_decode, num_requests = requests.is_decode, len(requests.chunks)
    return StepOrder(
        kind=kind,
        is_decode=is_decode,
        is_masked=is_masked,
        num_requests=num_requests,
        num_tokens=requests.chunks.num_tokens,
        batch=batch,
        report=None if is_decode else PromptReport.wanted(requests),
    )


class Follower:
    """Runs what the first rank has told of, step by step."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._tail: Callable[[], object] | None = None

    def write(self, writes: Sequence[DeviceWrite]) -> None:
        """Changes of the tables on the device."""
        self._worker.publisher.send(writes)

    @torch.no_grad()
    def step(self, order: StepOrder) -> None:
        """A step, up to its tail if masks are to be waited for."""
        tail = self._decode(order) if order.is_decode else self._tokens(order)
        if order.is_masked:
            self._tail = tail
        elif tail is not None:
            tail()

    def tail(self) -> None:
        """The choice of tokens of a masked step. Masks are the first rank's, which chooses."""
        assert self._tail is not None, "a tail follows its step"
        self._tail()
        self._tail = None

    def _decode(self, order: StepOrder) -> Callable[[], object] | None:
        worker, num_requests = self._worker, order.num_requests
        if not order.is_masked:
            worker.decoder_for(order.kind).run_or_go_on(order.batch, num_requests)
            return None
        masked = worker.prepare_masks()
        runner = masked.decoder_for(order.kind)
        runner.run_or_go_on(order.batch, num_requests)

        def tail() -> None:
            masked.registry.open_late(())
            runner.finish()

        return tail

    def _tokens(self, order: StepOrder) -> Callable[[], object]:
        worker, num_requests = self._worker, order.num_requests
        assert order.batch is not None, "a step over tokens is filled"
        hidden = worker.run_filled_tokens(order.batch, num_requests, order.num_tokens, order.report)[0].output

        def tail() -> None:
            inputs = dict(worker.sampling_inputs(num_requests))
            if order.is_masked:
                masked = worker.prepare_masks()
                masked.registry.open_late(())
                inputs |= masked.sent(num_requests)
            worker.forward.sample_last(hidden, inputs, order.kind)

        return tail
