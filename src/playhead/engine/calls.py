"""The calls on one engine that a program has open: every call gets its own outputs, whoever runs the steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence

import torch

from playhead.engine.engine import Engine, used_after_close
from playhead.engine.front import RequestOptions, never_queued
from playhead.errors import MisuseError, PlayheadError
from playhead.inputs import Prompt
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams


class Calls:
    """All open calls on an engine. A step serves all of them: each output waits in the inbox of its call."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._num_names = 0
        self._inboxes: dict[str, deque[RequestOutput]] = {}
        self._arrived: deque[RequestOutput] = deque()

    @property
    def engine(self) -> Engine:
        """The engine underneath, until `close`."""
        if self._engine is None:
            raise used_after_close()
        return self._engine

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._inboxes)

    def new_name(self) -> str:
        """A request id that no other request has."""
        self._num_names += 1
        return f"r{self._num_names}"

    def close(self) -> None:
        """End every open call with what it has so far, and the engine with them. A second call does nothing."""
        engine = self._engine
        if engine is None:
            return
        engine.check_use()
        for request_id, inbox in sorted(self._inboxes.items()):
            output = engine.abort(request_id)
            if output is not None:
                inbox.append(output)
        engine.close()
        device, self._engine, engine = engine.worker.device, None, None
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what was this engine's is the device's again, for other processes too

    def outputs_of(
        self, requests: Sequence[tuple[str, Prompt, SamplingParams]], options: RequestOptions
    ) -> Generator[RequestOutput, None, None]:
        """Every output of these requests, each with a new id, as they come. All are checked before the first runs.

        The engine is given more as it has room. Closing the generator aborts what is left.
        """
        self.engine.check_use()
        checked = [(request_id, self.engine.reader.check(prompt, params)) for request_id, prompt, params in requests]
        waiting, inbox, mine = deque(checked), deque[RequestOutput](), set[str]()
        try:
            while waiting or mine:
                while waiting and self.engine.can_take:
                    request_id, prompt = waiting.popleft()
                    self._inboxes[request_id] = inbox
                    mine.add(request_id)
                    try:
                        self.engine.submit(request_id, prompt, options)
                    except MisuseError:
                        raise
                    except PlayheadError as error:
                        inbox.append(never_queued(request_id, prompt, error))
                if not inbox:
                    if not self.engine.has_work:
                        raise PlayheadError(
                            f"request {min(mine)!r} vanished without a final output. This is a bug in Playhead; "
                            "please report it."
                        )
                    self._step()
                while inbox:
                    output = inbox.popleft()
                    if output.finished:
                        mine.discard(output.request_id)
                        del self._inboxes[output.request_id]
                    yield output
        finally:
            for request_id in mine:
                self._inboxes.pop(request_id, None)
                if self._engine is not None:
                    self._engine.abort(request_id)

    def _step(self) -> None:
        """One step of the engine. Its outputs go to the inboxes of the calls that asked for them."""
        self._arrived.extend(self.engine.step())
        while self._arrived:  # one by one, so that an interrupt loses no output
            output = self._arrived[0]
            if output.request_id in self._inboxes:
                self._inboxes[output.request_id].append(output)
            self._arrived.popleft()


class Stream:
    """One request's outputs; if it failed, its error is raised in the place of the last one."""

    def __init__(self, outputs: Generator[RequestOutput, None, None]) -> None:
        self._outputs, self._is_busy = outputs, False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> RequestOutput:
        if self._is_busy:
            raise MisuseError("stream: asked for its next output while it makes one. Give every thread its own stream.")
        self._is_busy = True
        try:
            output = next(self._outputs)
        finally:
            self._is_busy = False
        if output.error is not None:
            raise output.error
        return output

    def close(self) -> None:
        """Abort the request, unless it has ended."""
        self._outputs.close()
