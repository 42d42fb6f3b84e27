"""An engine in a process of its own. On a GPU this is the default: beside busy Python a step would take far longer.

Tokenizer, chat template, stop strings and texts are here; torch is not. A process that dies is started again once:
requests of which no token has come run again, the others end with `EngineStopped`. After `HEALTHY_S` without a death it
may die once more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions
from playhead.engine.snapshot import EngineSnapshot
from playhead.engine.tokenizer_files import tokenizer_at, tokenizer_path_here
from playhead.errors import EngineStopped, PlayheadError, QueueFull, RequestError
from playhead.logs import event
from playhead.models.text.tokenizer import Tokenizer
from playhead.serve import wire
from playhead.serve.backend import BackendState, ModelFacts
from playhead.serve.engine_child import EngineChild, start_child
from playhead.serve.limits import CHECK_S, SNAPSHOT_S, Clock, Lifetimes, Pulse, ServeLimits
from playhead.serve.link import EngineLink
from playhead.serve.remote_stream import RemoteStream, Sample

LOG = logging.getLogger(__name__)
HEALTHY_S = 600.0


class RemoteBackend:
    """A `Backend` over an engine's process. `name` is what clients call the model; the model's own name if left out."""

    def __init__(
        self,
        model: str = EMBEDDED,
        config: EngineConfig | None = None,
        limits: ServeLimits | None = None,
        *,
        name: str | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._config, self._limits, self._clock = config or EngineConfig(), limits or ServeLimits(), clock
        self._begin = wire.Begin(model, wire.config_fields(self._config), name)
        self._lifetimes, self._pulse = Lifetimes(self._limits, clock), Pulse(self._limits, clock)
        self._state = BackendState.STARTING
        self._child: EngineChild | None = None
        self._link: EngineLink | None = None
        self._loaded: asyncio.Future[wire.Ready] | None = None
        self._facts: ModelFacts | None = None
        self._reader: PromptReader | None = None
        self._last_snapshot: EngineSnapshot | None = None
        self._asked: deque[asyncio.Future[EngineSnapshot]] = deque()
        self._streams: dict[str, RemoteStream] = {}
        self._samples: dict[int, Sample] = {}
        self._next_number = 1
        self._num_steps = 0
        self._restarted_s: float | None = None
        self.num_restarts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> BackendState:
        is_stuck = self._state is BackendState.READY and self._pulse.is_stuck
        return BackendState.WEDGED if is_stuck else self._state

    @property
    def facts(self) -> ModelFacts:
        assert self._facts is not None, "facts are known once start has returned"
        return self._facts

    @property
    def reader(self) -> PromptReader:
        assert self._reader is not None, "the reader is known once start has returned"
        return self._reader

    @property
    def retry_after_s(self) -> int:
        return self._lifetimes.retry_after_s

    @property
    def pid(self) -> int | None:
        """The engine's process. None while there is none."""
        return None if self._link is None else self._link.pid

    def adopt(self, child: EngineChild) -> None:
        """Load the model in this process, which was started already."""
        self._child = child

    async def start(self) -> None:
        """Start the process and wait until its model is loaded. What the model's files are refused for is raised."""
        early = self._read_tokenizer_early()
        try:
            ready = await self._load()
        except BaseException:
            await self.close()
            raise
        params = wire.params_of(ready.default_params)
        self._facts = ModelFacts(**ready.facts, default_params=params)
        self._reader = PromptReader(
            tokenizer=await (early or asyncio.to_thread(tokenizer_at, Path(ready.tokenizer_path), self._config)),
            vocab_size=self._facts.vocab_size,
            max_context=self._facts.max_model_len,
            default_params=params,
        )
        self._state = BackendState.READY
        self._keep(self._keep_checking())

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> RemoteStream:
        """Queue a request, or `QueueFull` or `EngineStopped`."""
        where = f"request {request_id!r}"
        if self._state is not BackendState.READY:
            raise EngineStopped(where)
        if request_id in self._streams:
            raise RequestError(where, "an id in use", "a new id", "Wait for the other to end.")
        self._check_room(where, checked.params.n)
        stream = RemoteStream(request_id, checked, options, abort=self._abort)
        stream.add_samples(self._next_number, self.reader)
        self._next_number += len(stream.samples)
        self._streams[request_id] = stream
        self._lifetimes.add(stream)
        self._send(stream)
        return stream

    def check_room(self) -> None:
        self._check_room("request", 1)

    def _check_room(self, where: str, num_more: int) -> None:
        num_there, most = len(self._samples), self._limits.max_requests(self.facts.max_running)
        if num_there and num_there + num_more > most:
            raise QueueFull.of(where, num_there, num_more, most)

    async def snapshot(self, *, after_step: int = 0) -> EngineSnapshot:
        """The engine between two steps."""
        if self._state is BackendState.READY and self._link is not None:
            answer: asyncio.Future[EngineSnapshot] = asyncio.get_running_loop().create_future()
            self._asked.append(answer)
            self._link.send(wire.Ask(after_step))
            done, _ = await asyncio.wait({answer}, timeout=SNAPSHOT_S)
            if done and not answer.cancelled():
                self._last_snapshot = answer.result()
        if self._last_snapshot is None:
            raise EngineStopped("engine")
        return self._last_snapshot

    def check(self) -> None:
        """End requests that are past a limit, and look whether the engine gets on. A timer does this."""
        self._lifetimes.check()
        self._pulse.saw(self._num_steps, has_work=bool(self._samples))

    async def close(self) -> None:
        """End the process. A second call does nothing."""
        self._state = BackendState.DEAD
        for task in self._tasks:
            task.cancel()
        self._fail_streams(list(self._streams.values()))
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(EngineStopped("engine"))
        link, self._link = self._link, None
        if link is not None:
            await link.end()
        if self._reader is not None:
            self._reader.close()

    def _read_tokenizer_early(self) -> asyncio.Future[Tokenizer] | None:
        """Read the tokenizer while the engine loads. One of the hub waits until the engine has fetched it."""
        path = tokenizer_path_here(self._begin.model, self._config)
        if path is None:
            return None
        reading = asyncio.ensure_future(asyncio.to_thread(tokenizer_at, path, self._config))
        # Files that cannot be used fail the engine too, whose error is raised.
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        return reading

    # The process.

    async def _load(self) -> wire.Ready:
        """Start a process and wait until it is ready."""
        self._loaded = asyncio.get_running_loop().create_future()
        link = self._link = EngineLink(self._on_frame, self._on_lost)
        child, self._child = self._child or start_child(self._config), None
        await link.connect(child)
        link.send(self._begin)
        ready = await self._loaded
        self._last_snapshot, self._num_steps = ready.snapshot, 0
        self._pulse = Pulse(self._limits, self._clock)
        return ready

    def _on_lost(self, link: EngineLink) -> None:
        """The process has died, or was ended."""
        if link is not self._link:
            return
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(EngineStopped("engine: its process ended while it started"))
            return  # whoever waits for it decides what to do
        event(LOG, logging.ERROR, "engine process died", requests=len(self._streams))
        for answer in self._asked:
            answer.cancel()
        self._asked.clear()
        now, last = self._clock(), self._restarted_s
        if last is not None and now - last < HEALTHY_S:
            self._state = BackendState.DEAD
            self._fail_streams(list(self._streams.values()))
            self._keep(link.end())
            return
        self._restarted_s, self._state = now, BackendState.RESTARTING
        self._fail_streams([stream for stream in self._streams.values() if stream.has_begun])
        self._keep(self._restart(link))

    async def _restart(self, dead: EngineLink) -> None:
        """Start another process, and give it the requests of which no token had come."""
        await dead.end()
        try:
            await self._load()
        except PlayheadError:
            self._state = BackendState.DEAD
            self._fail_streams(list(self._streams.values()))
            return
        self._state = BackendState.READY
        self.num_restarts += 1
        for stream in self._streams.values():
            self._send(stream)

    def _fail_streams(self, streams: Sequence[RemoteStream]) -> None:
        for stream in streams:
            stream.give_up(EngineStopped(f"request {stream.request_id!r}"))

    # Requests.

    def _send(self, stream: RemoteStream) -> None:
        """Hand a request's sequences to the process."""
        for sample in stream.samples:
            self._samples[sample.number] = sample
            if self._link is not None:
                self._link.send(submission(sample))
        self._pulse.saw(self._num_steps, has_work=True)

    def _abort(self, samples: Sequence[Sample]) -> None:
        """Nobody wants these sequences any more."""
        numbers = tuple(sample.number for sample in samples if self._samples.pop(sample.number, None) is not None)
        if numbers and self._link is not None:
            self._link.send(wire.Abort(numbers))
        self._forget([sample.stream for sample in samples])

    def _forget(self, streams: Sequence[RemoteStream]) -> None:
        """Free the ids of requests of which nothing runs any more."""
        for stream in streams:
            is_running = any(sample.number in self._samples for sample in stream.samples)
            if not is_running and self._streams.get(stream.request_id) is stream:
                del self._streams[stream.request_id]

    # What the process says.

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == wire.Kind.STEP:
            self._on_step(wire.read_step(payload))
            return
        news = wire.read_news(payload)
        if isinstance(news, wire.Beat):
            self._on_beat(news)
        elif isinstance(news, wire.Reports):
            if (sample := self._samples.get(news.number)) is not None:
                sample.reported(news)
        elif isinstance(news, wire.Failed):
            self._on_failed(news)
        elif isinstance(news, wire.Shown):
            self._on_shown(news)
        elif self._loaded is not None and not self._loaded.done():
            if isinstance(news, wire.Ready):
                self._loaded.set_result(news)
            else:
                self._loaded.set_exception(wire.start_error(news.error))

    def _on_step(self, step: wire.StepTokens) -> None:
        self._num_steps = step.num_steps
        self._pulse.saw(step.num_steps, has_work=bool(self._samples))
        at = 0
        for number, count, end, cached in zip(step.numbers, step.counts, step.ends, step.cached, strict=True):
            tokens = step.tokens[at : at + count]
            at += count
            sample = self._samples.get(number)
            if sample is None:
                continue  # aborted, or its stop string was found
            sample.came(tokens, wire.ENDS[end], cached)
            if end:
                del self._samples[number]
                self._forget([sample.stream])
            sample.stream.came(sample)

    def _on_beat(self, beat: wire.Beat) -> None:
        self._num_steps = beat.num_steps
        self._pulse.saw(beat.num_steps, has_work=bool(self._samples))
        if beat.is_preparing:
            self._pulse.beat()

    def _on_failed(self, news: wire.Failed) -> None:
        """A sequence failed: the other samples of its request end with it."""
        sample = self._samples.pop(news.number, None)
        if sample is not None:
            sample.stream.give_up(wire.request_error(news.error, sample.stream.request_id))

    def _on_shown(self, news: wire.Shown) -> None:
        if self._asked:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_result(news.snapshot)

    # Tasks.

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()


def submission(sample: Sample) -> wire.Submit:
    """A sequence as the process takes it. Texts stay here: it finds no stop string and makes no text."""
    request = sample.request
    return wire.Submit(
        number=sample.number,
        ids=array(wire.WORD, request.prompt).tobytes(),
        params=wire.params_fields(replace(request.params, stop=(), detokenize=False)),
        max_new_tokens=request.max_new_tokens,
        bad_words=request.bad_words,
        salt=request.salt,
        priority=request.priority,
    )
