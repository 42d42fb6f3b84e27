"""An engine for asyncio: every request is an `async for`, and one thread runs the steps.

engine = AsyncEngine("embedded", max_num_seqs=4)
async for output in engine.generate("The whale", SamplingParams(max_tokens=20)):
    print(output.outputs[0].text)

PlayheadError
├── EngineStopped   closed, or dead; the request was not taken or will not be finished
├── StepFailed      a step raised, and this request was in flight; the engine takes new ones
└── MisuseError     a second event loop, a forked child, or an engine that is at work for an LLM

An error of one request raises for its own consumer alone: `RequestError` or `RequestFailed`. How requests and outputs
go between the event loop and the thread stands in `serving.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import NoReturn, TypedDict, TypeVar, Unpack

import torch

from playhead.engine.build import build_engine
from playhead.engine.config import EMBEDDED, EngineConfig, ModelName
from playhead.engine.conversations import ChatKeywords, Conversation, chat_options
from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, RequestOptions, checked_params
from playhead.engine.keywords import EngineKeywords
from playhead.engine.output_kind import OutputView
from playhead.engine.serving import Errand, Serving, Ticket, TicketStream, WhenFull
from playhead.engine.timeline import EngineStats
from playhead.engine.use import used_after_close
from playhead.engine.user_tokenizer import UserTokenizer
from playhead.errors import NO_POOLING, AbsentFeature, ConfigError, EngineStopped, MisuseError, RequestError, shown
from playhead.inputs import Prompt, refuse_keywords
from playhead.outputs import CompletionOutput, RequestOutput
from playhead.sampling_params import SamplingParams

T = TypeVar("T")


class ForeignKeywords(TypedDict, total=False):
    """Keywords of vLLM's `generate` that ask for something Playhead does not have."""

    lora_request: object
    prompt_adapter_request: object
    tokenization_kwargs: object
    trace_headers: object
    data_parallel_rank: object


class AsyncEngineArgs:
    """A model and its settings, for `AsyncEngine.from_engine_args`, as scripts for vLLM have them.

    >>> AsyncEngine.from_engine_args(AsyncEngineArgs("embedded", max_model_len=64))
    AsyncEngine('embedded', cpu, float32, context 64, not started)
    """

    def __init__(self, model: ModelName = EMBEDDED, **settings: Unpack[EngineKeywords]) -> None:
        self.model, self.settings = model, settings


class AsyncEngine:
    """A model for many callers on one event loop.

    The first request starts the engine's thread; `close`, `shutdown` or `async with` ends it. While it runs, no
    other caller may use the engine. An engine whose event loop has ended serves the next one.

    `max_num_seqs` sequences run at a time, and `max_queued_requests` more wait in the engine (by default four times as
    many). When those places are taken, a request waits in line, first come, first served; with `when_full="refuse"` it
    raises `RequestError` at once instead.

    >>> import asyncio
    >>> async def ask(engine: AsyncEngine, prompt: str) -> int:
    ...     async for output in engine.generate(prompt, SamplingParams(max_tokens=4, ignore_eos=True)):
    ...         pass
    ...     return len(output.outputs[0].token_ids)
    >>> async def main() -> list[int]:
    ...     engine = AsyncEngine("embedded", max_model_len=128, max_num_seqs=2)
    ...     counts = await asyncio.gather(*(ask(engine, prompt) for prompt in ("The whale", "Call me", "My lord")))
    ...     engine.shutdown()
    ...     return counts
    >>> asyncio.run(main())
    [4, 4, 4]
    """

    def __init__(
        self,
        model: ModelName = EMBEDDED,
        config: EngineConfig | None = None,
        *,
        max_queued_requests: int | None = None,
        when_full: WhenFull | str = WhenFull.WAIT,
        **settings: Unpack[EngineKeywords],
    ) -> None:
        queue = checked_queue(max_queued_requests, when_full)
        self._begin(build_engine(model, config, **settings), queue, owns_engine=True)

    @classmethod
    def of(
        cls,
        engine: Engine,
        *,
        max_queued_requests: int | None = None,
        when_full: WhenFull | str = WhenFull.WAIT,
    ) -> AsyncEngine:
        """An AsyncEngine on an existing engine. After `close` or `shutdown` others may use that engine again."""
        made = cls.__new__(cls)
        made._begin(engine, checked_queue(max_queued_requests, when_full), owns_engine=False)
        return made

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs) -> AsyncEngine:
        """vLLM's way to make one."""
        return cls(engine_args.model, **engine_args.settings)

    def _begin(self, engine: Engine, queue: tuple[int | None, WhenFull], *, owns_engine: bool) -> None:
        max_queued, when_full = queue
        max_running = engine.worker.config.limits.max_running
        max_requests = max_running + (engine.max_waiting if max_queued is None else max_queued)
        serving = Serving(engine, max_requests=max_requests, when_full=when_full)
        self._serving_or_none: Serving | None = serving
        self._name = engine.facts
        self._owns_engine, self._is_closed, self._numbers = owns_engine, False, itertools.count(1)
        # The thread ends when this engine is dropped, and when the program ends.
        self._end = weakref.finalize(self, serving.end)

    async def __aenter__(self) -> AsyncEngine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        """The model, where and how it runs, and what it is doing."""
        return f"AsyncEngine({self._name}, {self._state})"

    @property
    def _state(self) -> str:
        serving = self._serving_or_none
        if serving is None or self._is_closed:
            return "closed"
        if serving.thread is None:
            return "not started"
        return f"{len(serving.tickets)} requests, {len(serving.line)} in line" if serving.is_open else "dead"

    @property
    def _serving(self) -> Serving:
        if self._serving_or_none is None:
            raise used_after_close()
        return self._serving_or_none

    @property
    def engine(self) -> Engine:
        """The engine underneath, until `shutdown`."""
        return self._serving.engine

    @property
    def max_requests(self) -> int:
        """How many sequences the engine has at most, running and queued. A sample of a request is a sequence."""
        return self._serving.max_requests

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._serving_or_none is not None and self._serving_or_none.is_open

    @property
    def has_requests(self) -> bool:
        """Whether any request is with the engine."""
        return bool(self._serving.tickets)

    @property
    def stats(self) -> EngineStats:
        """The engine's counters at this moment."""
        return self.engine.stats.copy()

    async def start(self) -> None:
        """Start the thread now. The first request does so too, unless the engine was closed."""
        if self._is_closed:
            await self.close()  # an earlier call may have been cancelled before the thread had ended
        self._is_closed = False
        self._serve_here()

    async def close(self) -> None:
        """Stop after the step under way. Consumers that still wait get `EngineStopped`.

        Others may use the engine from then on; `start` or `async with` starts it again. A call that is cancelled has
        closed the engine too, and does not wait for the end of the step.
        """
        self._is_closed = True
        serving = self._serving_or_none
        thread = None if serving is None else serving.thread
        if serving is None or thread is None or serving.engine.use.is_in_child:
            return
        serving.ask_to_stop()
        await asyncio.to_thread(serving.wait_for, thread)

    def shutdown(self) -> None:
        """Stop for good and give all memory back, on an event loop or without. A second call does nothing.

        An engine that was given by `of` stays open for others.
        """
        serving, self._serving_or_none = self._serving_or_none, None
        if serving is None or serving.engine.use.is_in_child:
            return
        self._end()
        device = serving.engine.worker.device
        if self._owns_engine:
            serving.engine.close()
        del serving
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what was this engine's is the device's again, for other processes too

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        resume_from: Sequence[CompletionOutput] = (),
        **others: Unpack[ForeignKeywords],
    ) -> AsyncGenerator[RequestOutput, None]:
        """The output after every token, or after several if the consumer was slow; the last one is `finished`.

        A request that cannot be served raises `RequestError` before it is queued. Leaving early, by `break`, `aclose`
        or a cancelled task, aborts it. With n above 1 every output has all samples that have begun.
        `SamplingParams.output_kind` chooses what an output holds: everything so far, what is new, or all at the end.

        `resume_from` are the `outputs` of an earlier run that was cut off: the request goes on with exactly the tokens
        that would have followed. Outputs then hold the earlier tokens and the new ones; with `DELTA`, the new ones.
        """
        refuse_keywords(others, ("prompt", "sampling_params", "request_id", "priority", "cache_salt", "resume_from"))
        wanted = self.engine.reader.default_params if sampling_params is None else checked_params(sampling_params)
        # A value that is not a list is refused as if it were an entry of one.
        so_far = tuple(resume_from) if isinstance(resume_from, list | tuple) else (resume_from,)
        options = RequestOptions(priority=priority, salt=cache_salt or "", resume_from=so_far)
        self._serve_here()
        checked = await self.engine.reader.read(prompt, wanted)
        stream = self.submit(self._request_name(request_id), checked, options)
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> TicketStream:
        """Queue a request whose prompt `engine.reader` has checked; gives its outputs, which the caller must close.

        Called on the event loop. `QueueFull` or `EngineStopped` are raised here, before there is a stream.
        """
        view = OutputView(checked.params.output_kind, options.resume_from)
        options = replace(options, streams=options.streams and view.shows_all)
        serving = self._serve_here()
        ticket = Ticket.of(request_id, next(serving.numbers), checked, options)
        serving.take(ticket)
        return TicketStream(serving, ticket, view)

    def check_room(self) -> None:
        """`QueueFull` if `submit` would refuse any request now."""
        self._serve_here().check_room()

    async def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        **options: Unpack[ChatKeywords],
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answer to a conversation after every token, written out by the model's own chat template.

        `options` are those of `ChatOptions`, as in `LLM.chat`.
        """
        wanted = chat_options(options)
        self._serve_here()
        prompt = await asyncio.to_thread(self.engine.reader.chat_prompt, messages, wanted)
        outputs = self.generate(prompt, sampling_params, request_id, priority=priority, cache_salt=cache_salt)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End a request or several; consumers get what there is as the last output. Returns when memory is free."""
        waiting = []
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            ticket = self._serving.ticket_of(one)
            if ticket is not None:
                self._serve_here()  # a request is with the thread, which answers on one event loop
                done = asyncio.get_running_loop().create_future()
                self._serving.abort(ticket, done)
                waiting.append(done)
        for done in waiting:
            await done

    def encode(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: there are no pooling models."""
        raise AbsentFeature("AsyncEngine.encode", NO_POOLING)

    async def get_tokenizer(self) -> UserTokenizer:
        """The model's tokenizer, as `LLM.get_tokenizer` gives it."""
        return UserTokenizer(self.engine.reader)

    async def reset_prefix_cache(self) -> bool:
        """Forget the KV of all prompts so far. Requests that run keep theirs. True, as in vLLM, when it is done."""
        await self.between_steps(Engine.reset_prefix_cache)
        return True

    async def between_steps(self, work: Callable[[Engine], T]) -> T:
        """The result of `work(engine)`, which the thread calls between two steps. Its exceptions are raised here.

        Raises `EngineStopped` if the thread ends before.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: list[T] = []
        errors: list[BaseException] = []

        def ask(engine: Engine) -> None:
            try:
                answers.append(work(engine))
            except BaseException as error:  # noqa: BLE001  in the thread it would be taken for a failed step
                errors.append(error)

        self._serve_here().send(Errand(work=ask, done=done))
        await done
        if errors:
            raise errors[0]
        if not answers:
            raise EngineStopped("engine") from self._serving.cause
        return answers[0]

    async def get_default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets."""
        return self.engine.reader.default_params.clone()

    async def check_health(self) -> None:
        """Nothing, or `EngineStopped` with what the engine died of."""
        if self._serving.cause is not None:
            raise EngineStopped("engine") from self._serving.cause

    # What follows runs on the event loop.

    def _serve_here(self) -> Serving:
        """See to it that the thread serves this event loop, or refuse in words."""
        loop, serving, engine = asyncio.get_running_loop(), self._serving, self.engine
        if engine.use.is_in_child:
            engine.use.check_caller()
        if serving.thread is None and not self._is_closed:
            engine.check_use()
            if engine.has_work:
                raise MisuseError("AsyncEngine: the engine is at work for other calls. Close their streams first.")
            serving.start(loop)
        elif serving.is_open and loop is not serving.loop and not serving.move_to(loop):
            raise MisuseError(
                "AsyncEngine: used on a second event loop while the first has requests. Use one event loop, or one "
                "AsyncEngine for each."
            )
        return serving

    def _request_name(self, request_id: object) -> str:
        if request_id is None:  # skip names that a caller has chosen and that look like ours
            return next(name for n in self._numbers if self._serving.ticket_of(name := f"a{n}") is None)
        if not isinstance(request_id, str):
            raise RequestError("request_id", f"a {type(request_id).__name__}", "a str", "Change it or leave it out.")
        return request_id


def checked_queue(max_queued: object, when_full: object) -> tuple[int | None, WhenFull]:
    """The size of the queue and what happens when it is full, or `ConfigError`."""
    is_size = isinstance(max_queued, int) and not isinstance(max_queued, bool) and max_queued >= 0
    if not (max_queued is None or is_size):
        raise ConfigError(f"max_queued_requests: found {shown(max_queued)}; wanted an integer from 0, or None.")
    if when_full not in tuple(WhenFull):
        raise ConfigError(f"when_full: found {shown(when_full)}; wanted one of {', '.join(WhenFull)}.")
    return max_queued if isinstance(max_queued, int) else None, WhenFull(str(when_full))
