"""What the HTTP side counts and times: requests, tokens, latencies, responses. No torch, no HTTP library.

backend = MeasuredBackend(backend, recorder)      every request that is submitted is timed from here on
recorder.responded("/v1/completions", 200)        the transport says what it answered

Everything happens on one event loop, so nothing is locked. A token costs two clock reads at most and one look-up in a
list of bucket edges. Nothing of a request is kept after its end: no prompt, no key, no request id. `Recorder.on_end` is
told of each end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Self

from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions
from playhead.engine.snapshot import EngineSnapshot
from playhead.errors import EngineStopped, PlayheadError, QueueFull
from playhead.outputs import FinishReason, RequestOutput
from playhead.sampling_params import RequestOutputKind
from playhead.serve.backend import Backend, BackendScrape, BackendState, ModelFacts, Stream

OTHER = "other"
"""The label of a route that is none of ours. Clients choose paths, and must not choose how many series there are."""

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
BETWEEN_TOKENS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
WHOLE_S = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0),
)
NUM_TOKENS = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0),
    *(10_000.0, 20_000.0, 50_000.0, 100_000.0, 200_000.0),
)


class Refusal(StrEnum):
    """Why a request got no work done, as the label of a counter says it."""

    QUEUE_FULL = "queue_full"
    UNAUTHENTICATED = "unauthenticated"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    DRAINING = "draining"
    NO_ENGINE = "no_engine"


class Tally:
    """A histogram: how many values fell below each edge, and their sum. `counts` has one place more than `edges`."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges, self.counts, self.total = edges, [0] * (len(edges) + 1), 0.0

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.edges, value)] += count
        self.total += value * count


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One request that ended, in seconds of `time.perf_counter`. `first_s` is None if it had no token."""

    request_id: str
    why: FinishReason
    begun_s: float
    first_s: float | None
    ended_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int


@dataclass(slots=True, kw_only=True)  # mutable: counters
class Recorder:
    """Counters and histograms since the start. `routes` are the only paths that become labels.

    `on_end` is told of every request that ended.
    """

    on_end: Callable[[Ended], None] | None = None
    routes: frozenset[str] = frozenset()
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_open_streams: int = 0
    first_token_s: Tally = field(default_factory=lambda: Tally(FIRST_TOKEN_S))
    between_tokens_s: Tally = field(default_factory=lambda: Tally(BETWEEN_TOKENS_S))
    per_output_token_s: Tally = field(default_factory=lambda: Tally(BETWEEN_TOKENS_S))
    whole_s: Tally = field(default_factory=lambda: Tally(WHOLE_S))
    prompt_tokens: Tally = field(default_factory=lambda: Tally(NUM_TOKENS))
    generated_tokens: Tally = field(default_factory=lambda: Tally(NUM_TOKENS))
    finished: Counter[FinishReason] = field(default_factory=Counter)
    refused_by: Counter[Refusal] = field(default_factory=Counter)
    responses: Counter[tuple[str, int]] = field(default_factory=Counter)

    def responded(self, route: str, status: int) -> None:
        """A response was begun. `route` is the path of the matched route, never the path that the client wrote."""
        self.responses[route if route in self.routes else OTHER, status] += 1

    def refused(self, why: Refusal) -> None:
        """A request was refused before it reached the engine, or by its queue."""
        self.refused_by[why] += 1

    def stream_opened(self) -> None:
        self.num_open_streams += 1

    def stream_closed(self) -> None:
        self.num_open_streams -= 1


class RequestWatch:
    """Times one request, from when it was submitted to its end."""

    __slots__ = (
        *("_begun_s", "_first_s", "_is_cumulative", "_is_open", "_last_s", "_num_cached"),
        *("_num_prompt", "_num_samples", "_num_seen", "_recorder", "_request_id"),
    )

    def __init__(self, recorder: Recorder, request_id: str, kind: RequestOutputKind) -> None:
        self._recorder, self._is_cumulative = recorder, kind is not RequestOutputKind.DELTA
        self._request_id, self._num_prompt, self._num_cached = request_id, 0, 0
        self._begun_s = self._last_s = self._first_s = perf_counter()
        self._num_seen, self._num_samples, self._is_open = 0, 1, True

    def saw(self, output: RequestOutput) -> None:
        """An output came. An output without a new token is no token."""
        outputs = output.outputs
        num_samples = len(outputs)
        num_new = len(outputs[0].token_ids) if num_samples == 1 else sum(len(one.token_ids) for one in outputs)
        if self._is_cumulative:
            num_new -= self._num_seen
        if num_new > 0:
            now_s, recorder = perf_counter(), self._recorder
            if self._num_seen:
                gap_s = now_s - self._last_s
                if num_new > num_samples:
                    # The samples of a request advance together: each got its share of the new tokens in this time.
                    gap_s *= num_samples / num_new
                recorder.between_tokens_s.add(gap_s, num_new)
            else:
                self._begin(output, now_s)
                self._spread(output, num_new - num_samples)
            self._num_seen += num_new
            self._num_samples, self._last_s = num_samples, now_s
            recorder.num_generated_tokens += num_new
        if output.finished:
            reasons = [completion.finish_reason for completion in outputs]
            self.end(FinishReason.ERROR if output.error is not None else next(filter(None, reasons), FinishReason.STOP))

    def _begin(self, output: RequestOutput, now_s: float) -> None:
        """The first output. A request that does not stream has the engine's word for when its first token came."""
        times, recorder = output.metrics, self._recorder
        waited_s = now_s - self._begun_s
        if output.finished and times.first_token_s is not None and times.finished_s is not None:
            waited_s = max(0.0, waited_s - (times.finished_s - times.first_token_s))
        self._first_s = self._begun_s + waited_s
        self._num_prompt, self._num_cached = len(output.prompt_token_ids), output.num_cached_tokens
        recorder.first_token_s.add(waited_s)
        recorder.num_prompt_tokens += self._num_prompt
        recorder.num_cached_tokens += self._num_cached
        recorder.prompt_tokens.add(self._num_prompt)

    def _spread(self, output: RequestOutput, num_more: int) -> None:
        """Tokens that came together with the first one. Of a request that has ended their mean distance is known. In a
        stream that was read late it is not, and counts as 0: the wait for them is a part of the first token's.
        """
        times, mean_s = output.metrics, 0.0
        if num_more <= 0:
            return
        if times.first_token_s is not None and times.finished_s is not None:
            mean_s = (times.finished_s - times.first_token_s) * len(output.outputs) / num_more
        self._recorder.between_tokens_s.add(mean_s, num_more)

    def end(self, why: FinishReason) -> None:
        """The request ended. Only the first call counts."""
        if not self._is_open:
            return
        self._is_open = False
        recorder, now_s = self._recorder, perf_counter()
        recorder.finished[why] += 1
        if recorder.on_end is not None:
            recorder.on_end(self._ended(why, now_s))
        if why not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        recorder.whole_s.add(now_s - self._begun_s)
        recorder.generated_tokens.add(self._num_seen)
        num_after_first = self._num_seen - self._num_samples
        if num_after_first > 0:
            recorder.per_output_token_s.add((now_s - self._first_s) * self._num_samples / num_after_first)

    def _ended(self, why: FinishReason, now_s: float) -> Ended:
        return Ended(
            request_id=self._request_id,
            why=why,
            begun_s=self._begun_s,
            first_s=self._first_s if self._num_seen else None,
            ended_s=now_s,
            num_prompt_tokens=self._num_prompt,
            num_cached_tokens=self._num_cached,
            num_generated_tokens=self._num_seen,
        )


class MeasuredStream:
    """A stream whose outputs are timed on their way."""

    def __init__(self, stream: Stream, watch: RequestWatch) -> None:
        self._stream, self._watch = stream, watch
        self._outputs: AsyncIterator[RequestOutput] | None = None

    def __aiter__(self) -> Self:
        self._outputs = aiter(self._stream)
        return self

    async def __anext__(self) -> RequestOutput:
        assert self._outputs is not None, "iterated by `async for`"
        try:
            output = await anext(self._outputs)
        except PlayheadError:
            self._watch.end(FinishReason.ERROR)
            raise
        self._watch.saw(output)
        return output

    def close(self) -> None:
        self._watch.end(FinishReason.ABORT)
        self._stream.close()


class MeasuredBackend:
    """A backend whose requests are counted and timed. It gives the same outputs as the backend it stands before."""

    def __init__(self, backend: Backend, recorder: Recorder) -> None:
        self._backend, self.recorder = backend, recorder

    @property
    def state(self) -> BackendState:
        return self._backend.state

    @property
    def facts(self) -> ModelFacts:
        return self._backend.facts

    @property
    def reader(self) -> PromptReader:
        return self._backend.reader

    @property
    def max_sequences(self) -> int:
        return self._backend.max_sequences

    @property
    def retry_after_s(self) -> int:
        return self._backend.retry_after_s

    @property
    def num_restarts(self) -> int:
        return self._backend.num_restarts

    async def start(self) -> None:
        await self._backend.start()

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> MeasuredStream:
        watch = RequestWatch(self.recorder, request_id, checked.params.output_kind)
        with self._counting_refusals():
            return MeasuredStream(self._backend.submit(request_id, checked, options), watch)

    def check_room(self) -> None:
        with self._counting_refusals():
            self._backend.check_room()

    async def snapshot(self, *, after_step: int = 0) -> EngineSnapshot:
        return await self._backend.snapshot(after_step=after_step)

    async def scrape(self) -> BackendScrape:
        return await self._backend.scrape()

    async def close(self) -> None:
        await self._backend.close()

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except QueueFull:
            self.recorder.refused(Refusal.QUEUE_FULL)
            raise
        except EngineStopped:
            self.recorder.refused(Refusal.NO_ENGINE)
            raise


def cumulative(tally: Tally) -> Iterable[tuple[float, int]]:
    """(edge, how many values were at most this), as Prometheus has them, without the last edge, infinity."""
    total = 0
    for edge, count in zip(tally.edges, tally.counts, strict=False):
        total += count
        yield edge, total
