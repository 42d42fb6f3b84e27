"""What backends over engines in other processes have in common: a model, requests by their id, and room for more."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions
from playhead.errors import EngineStopped, QueueFull, RequestError
from playhead.serve.backend import ModelFacts
from playhead.serve.limits import CHECK_S, Clock, Lifetimes, ServeLimits
from playhead.serve.remote_reader import RemoteReader
from playhead.serve.remote_stream import RemoteStream, Sample


class RemoteFront(ABC):
    """The part of a `Backend` that does not care how many engines there are."""

    def __init__(self, limits: ServeLimits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._lifetimes = Lifetimes(limits, clock)
        self._model: RemoteReader | None = None
        self._streams: dict[str, RemoteStream] = {}
        self._next_number = 1

    @property
    def facts(self) -> ModelFacts:
        if self._model is None:
            raise EngineStopped("engine")
        return self._model.facts

    @property
    def reader(self) -> PromptReader:
        assert self._model is not None, "the reader is known once start has returned"
        return self._model.reader

    @property
    def max_sequences(self) -> int:
        return self._limits.max_requests(self.facts.max_running * self.most_engines)

    @property
    def retry_after_s(self) -> int:
        return self._lifetimes.retry_after_s

    @property
    @abstractmethod
    def num_sequences(self) -> int:
        """Sequences that run or wait."""

    @property
    @abstractmethod
    def num_engines(self) -> int:
        """Engines that share the sequences; one, if there is none now."""

    @property
    @abstractmethod
    def most_engines(self) -> int:
        """Engines that there can be: some of them may be lost now, or not be needed."""

    @abstractmethod
    def check(self) -> None:
        """End requests that are past a limit, and look after the engines. A timer does this."""

    @abstractmethod
    def _is_running(self, sample: Sample) -> bool: ...

    @abstractmethod
    def _abort(self, samples: Sequence[Sample]) -> None:
        """Nobody wants these sequences any more."""

    def check_room(self) -> None:
        self._check_room("request", 1)

    def _check_room(self, where: str, num_more: int) -> None:
        num_there, most = self.num_sequences, self._limits.max_requests(self.facts.max_running * self.num_engines)
        if num_there and num_there + num_more > most:
            raise QueueFull.of(where, num_there, num_more, most)

    def _queue(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> RemoteStream:
        """A request's stream with its sequences, which nobody runs yet; or `QueueFull`."""
        where = f"request {request_id!r}"
        if request_id in self._streams:
            raise RequestError(where, "an id in use", "a new id", "Wait for the other to end.")
        self._check_room(where, checked.params.n)
        stream = RemoteStream(request_id, checked, options, abort=self._abort)
        stream.add_samples(self._next_number, self.reader)
        self._next_number += len(stream.samples)
        self._streams[request_id] = stream
        self._lifetimes.add(stream)
        return stream

    def _forget(self, streams: Iterable[RemoteStream]) -> None:
        """Free the ids of requests of which nothing runs any more."""
        for stream in streams:
            is_running = any(map(self._is_running, stream.samples))
            if not is_running and self._streams.get(stream.request_id) is stream:
                del self._streams[stream.request_id]

    def _fail(self, streams: Iterable[RemoteStream]) -> None:
        for stream in list(streams):
            stream.give_up(EngineStopped(f"request {stream.request_id!r}"))

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()
