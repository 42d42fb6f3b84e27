"""One engine behind a socket, as a backend on the event loop has it: its sequences, its steps, its end. No torch.

    backend                                  RemoteEngine                          the engine's process
    run(sample), abort(samples)  ----------> orders  ---------------------------->
    sample.came, stream.came     <---------- one frame per step <----------------
    on_ended(sample), on_lost()  <---------- a sequence is done; the socket ended

Whether the process is a child of this one or runs elsewhere is known to its `EngineHost` alone.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from playhead.engine.snapshot import EngineSnapshot
from playhead.errors import EngineStopped
from playhead.logs import event
from playhead.serve import wire
from playhead.serve.contact import Contact
from playhead.serve.limits import SNAPSHOT_S, Clock, Pulse, ServeLimits
from playhead.serve.link import EngineHost, EngineLink
from playhead.serve.remote_stream import Sample

LOG = logging.getLogger(__name__)


class EngineOwner(Protocol):
    """The backend of an engine. It hears these on the event loop."""

    def on_ended(self, engine: RemoteEngine, sample: Sample) -> None:
        """A sequence has ended. Its consumer is told next."""

    def on_lost(self, engine: RemoteEngine) -> None:
        """The engine had been loaded, and is gone. `samples` are those it was running."""


class RemoteEngine:
    """`samples` are the sequences that it has, by number. `name` is for metrics and logs.

    With `silent_s` an engine that was silent for so long is lost. Without, only one whose socket has ended.
    """

    def __init__(
        self, owner: EngineOwner, limits: ServeLimits, clock: Clock, *, name: str = "", silent_s: float | None = None
    ) -> None:
        self._owner, self.name, self._clock, self._silent_s = owner, name, clock, silent_s
        self._pulse = Pulse(limits, clock)
        self._contact: Contact | None = None  # once there is a process to be heard
        self._link = EngineLink(self._on_frame, self._on_link_lost, self._on_bytes)
        self._loaded: asyncio.Future[wire.Ready] | None = None
        self._asked: deque[asyncio.Future[EngineSnapshot]] = deque()
        self._num_steps = 0
        self.last_snapshot: EngineSnapshot | None = None
        self._is_open = False
        self.samples: dict[int, Sample] = {}

    @property
    def pid(self) -> int:
        """The process's id, on the machine where it runs."""
        return self._link.pid

    @property
    def is_stuck(self) -> bool:
        """Whether it has work and gets on with none of it."""
        return self._pulse.is_stuck

    async def load(self, host: EngineHost, begin: wire.Begin) -> wire.Ready:
        """Have a process load a model. What its files are refused for is raised."""
        self._loaded = asyncio.get_running_loop().create_future()
        await self._link.connect(host)
        if self._silent_s is not None:
            self._contact = Contact(self._silent_s, self._clock)
        self._link.send(begin)
        ready = await self._loaded
        if self._contact is not None:
            self._contact.loaded()
        self.last_snapshot, self._is_open = ready.snapshot, True
        self._pulse.beat()
        return ready

    def run(self, sample: Sample) -> None:
        """Have it run a sequence, from its beginning or from where the sequence is."""
        self.samples[sample.number] = sample
        self._link.send(submission(sample))
        self._pulse.saw(self._num_steps, has_work=True)

    def abort(self, samples: Sequence[Sample]) -> None:
        """Nobody wants these sequences any more. Those that it does not have are left alone."""
        numbers = tuple(one.number for one in samples if self.samples.pop(one.number, None) is not None)
        if numbers:
            self._link.send(wire.Abort(numbers))

    def check(self) -> None:
        """Look whether it is there, and whether it gets on. A timer does this every `CHECK_S` seconds."""
        self._pulse.saw(self._num_steps, has_work=bool(self.samples))
        if self._contact is None:
            return
        self._link.send(self._contact.look())
        if self._contact.is_lost:
            event(LOG, logging.ERROR, "engine silent", replica=self.name, seconds=self._contact.silent_s)
            self._contact = None
            self._link.drop()

    async def snapshot(self, after_step: int = 0) -> EngineSnapshot:
        """The engine between two steps, or as it was when it last answered."""
        if self._is_open:
            answer: asyncio.Future[EngineSnapshot] = asyncio.get_running_loop().create_future()
            self._asked.append(answer)
            self._link.send(wire.Ask(after_step))
            done, _ = await asyncio.wait({answer}, timeout=SNAPSHOT_S)
            if done and not answer.cancelled():
                self.last_snapshot = answer.result()
        if self.last_snapshot is None:
            raise EngineStopped("engine")
        return self.last_snapshot

    async def end(self) -> None:
        """End the process. A second call does nothing."""
        self._is_open = False
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(EngineStopped("engine"))
        await self._link.end()

    # What the process says.

    def _on_link_lost(self) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(EngineStopped("engine: its process ended while it started"))
            return  # whoever waits for it decides what to do
        for answer in self._asked:
            answer.cancel()
        self._asked.clear()
        if self._is_open:
            self._is_open = False
            self._owner.on_lost(self)

    def _on_bytes(self) -> None:
        if self._contact is not None:
            self._contact.came()

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == wire.Kind.STEP:
            self._on_step(wire.read_step(payload))
            return
        news = wire.read_news(payload)
        if isinstance(news, wire.Beat):
            self._on_beat(news)
        elif isinstance(news, wire.Reports):
            if (sample := self.samples.get(news.number)) is not None:
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
        self._pulse.saw(step.num_steps, has_work=bool(self.samples))
        at = 0
        for number, count, end, cached in zip(step.numbers, step.counts, step.ends, step.cached, strict=True):
            tokens = step.tokens[at : at + count]
            at += count
            sample = self.samples.get(number)
            if sample is None:
                continue  # aborted, or its stop string was found
            sample.came(tokens, wire.ENDS[end], cached)
            if end:
                del self.samples[number]
                self._owner.on_ended(self, sample)
            sample.stream.came(sample)

    def _on_beat(self, beat: wire.Beat) -> None:
        self._num_steps = beat.num_steps
        self._pulse.saw(beat.num_steps, has_work=bool(self.samples))
        self._pulse.used(beat.cpu_s)
        if beat.is_preparing:
            self._pulse.beat()
        if self._contact is not None:
            self._contact.beat(beat)

    def _on_failed(self, news: wire.Failed) -> None:
        """A sequence failed: the other samples of its request end with it."""
        sample = self.samples.pop(news.number, None)
        if sample is not None:
            self._owner.on_ended(self, sample)
            sample.stream.give_up(wire.request_error(news.error, sample.stream.request_id))

    def _on_shown(self, news: wire.Shown) -> None:
        if self._asked:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_result(news.snapshot)


def submission(sample: Sample) -> wire.Submit:
    """A sequence as the process takes it. Texts stay here: it finds no stop string and makes no text.

    Of a sequence that goes on, the logprobs of the prompt have come: the process need not compute the prompt for them.
    """
    request, so_far = sample.request, sample.tokens
    params = replace(request.params, stop=(), detokenize=False)
    return wire.Submit(
        number=sample.number,
        ids=array(wire.WORD, request.prompt).tobytes(),
        params=wire.params_fields(replace(params, prompt_logprobs=None) if so_far else params),
        max_new_tokens=request.max_new_tokens,
        bad_words=request.bad_words,
        ending_ids=tuple(request.ending_ids),
        late_ids=tuple(request.late_ids),
        salt=request.salt,
        priority=request.priority,
        output=array(wire.WORD, so_far).tobytes(),
    )
