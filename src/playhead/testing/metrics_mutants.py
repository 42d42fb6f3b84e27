"""Bugs in what a server counts and times, in how that is asked for, and what notices them. No model is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from playhead.engine.front import RequestOptions
from playhead.load import client
from playhead.load.client import Connection, Connections, Receiver, Target
from playhead.load.exchange import Fetch
from playhead.outputs import CompletionOutput, FinishReason, RequestOutput
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.serve.recorder import MeasuredBackend, MeasuredStream, Recorder, RequestWatch
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.scripted_backend import ScriptedBackend

ROUTE = "/v1/completions"
PIECES = ("a", "b", "c", "d")


@mutant("a departure that the engine never hears of", source="leaks on abort", killed_by=("departures",))
def departure_unheard() -> Patch:
    def close(self: MeasuredStream) -> None:
        self._watch.end(FinishReason.ABORT)

    return swapped(MeasuredStream, "close", close)


@mutant("clients choose labels", source="servers whose metrics grow with every scanned path", killed_by=("labels",))
def clients_choose_labels() -> Patch:
    def responded(self: Recorder, route: str, status: int) -> None:
        self.responses[route, status] += 1

    return swapped(Recorder, "responded", responded)


@mutant("an end counted twice", source="counters of requests that exceed the requests", killed_by=("ends",))
def end_counted_twice() -> Patch:
    def end(self: RequestWatch, why: FinishReason) -> None:
        self._recorder.finished[why] += 1

    return swapped(RequestWatch, "end", end)


@mutant(
    "tokens that came with the first one are forgotten",
    source="found here: on a busy machine a stream of four tokens had two gaps",
    killed_by=("gaps",),
)
def first_tokens_forgotten() -> Patch:
    return swapped(RequestWatch, "_spread", lambda self, output, num_more: None)


@mutant(
    "a fetch that cannot be cancelled",
    source="found here: asyncio.wait_for of Python 3.11 lost a cancellation, and a load never ended",
    killed_by=("cancelled fetches",),
)
def fetch_not_cancelled() -> Patch:
    async def fetch(target: Target, path: str) -> Fetch:
        received = Fetch()
        with suppress(asyncio.CancelledError):
            await Connections(target).call(target.request("GET", path), received, lambda connection: None)
        return received

    return swapped(client, "fetch", fetch)


def submitted(backend: MeasuredBackend, kind: RequestOutputKind) -> MeasuredStream:
    params = SamplingParams(output_kind=kind)
    checked = replace(backend.reader.check([5, 6], SamplingParams(max_tokens=len(PIECES))), params=params)
    return backend.submit("r", checked, RequestOptions())


def measured() -> tuple[ScriptedBackend, MeasuredBackend]:
    scripted = ScriptedBackend(pieces=PIECES)
    return scripted, MeasuredBackend(scripted, Recorder(routes=frozenset({ROUTE})))


def check_departures() -> list[str]:
    """A client that leaves ends its request."""
    scripted, backend = measured()
    submitted(backend, RequestOutputKind.DELTA).close()
    return [] if all(stream.is_closed for stream in scripted.streams) else ["the engine goes on"]


def check_labels() -> list[str]:
    """A path that a client invents is no label."""
    recorder = Recorder(routes=frozenset({ROUTE}))
    for number in range(9):
        recorder.responded(f"/{number}", 404)
    return [] if len(recorder.responses) == 1 else [f"{len(recorder.responses)} series of one"]


def check_ends() -> list[str]:
    """A request ends once, however often it is closed."""
    _, backend = measured()

    async def work() -> None:
        stream = submitted(backend, RequestOutputKind.DELTA)
        async for _ in stream:
            pass
        stream.close()

    asyncio.run(work())
    num_ends = backend.recorder.finished.total()
    return [] if num_ends == 1 else [f"one request ended {num_ends} times"]


def check_gaps() -> list[str]:
    """Between n tokens there are n - 1 gaps, however many of them come at once."""
    recorder = Recorder(routes=frozenset({ROUTE}))
    watch = RequestWatch(recorder, "r", RequestOutputKind.DELTA)
    for count in (2, 1, 3):
        answer = CompletionOutput(index=0, text="", token_ids=[7] * count, finish_reason=None)
        watch.saw(RequestOutput(request_id="r", prompt=None, prompt_token_ids=[5], outputs=[answer], finished=False))
    num_gaps = sum(recorder.between_tokens_s.counts)
    return [] if num_gaps == 5 else [f"{num_gaps} gaps between six tokens"]


def check_cancelled_fetches() -> list[str]:
    """A fetch that is cancelled as its answer comes is cancelled."""

    async def work() -> list[str]:
        async def answered(
            self: Connections, request: bytes, receiver: Receiver, on_sent: Callable[[Connection], None]
        ) -> None:
            await asyncio.sleep(0)
            fetching.cancel()
            await asyncio.sleep(0)

        with swapped(Connections, "call", answered):
            fetching = asyncio.create_task(client.fetch(Target(host="127.0.0.1", port=9), "/metrics"))
            await asyncio.wait([fetching])
        return [] if fetching.cancelled() else ["it went on"]

    return asyncio.run(work())


METRICS_MUTANTS: tuple[Mutant, ...] = (
    departure_unheard,
    clients_choose_labels,
    end_counted_twice,
    first_tokens_forgotten,
    fetch_not_cancelled,
)
METRICS_CHECKERS: tuple[Checker, ...] = (
    Checker(name="departures", run=check_departures),
    Checker(name="labels", run=check_labels),
    Checker(name="ends", run=check_ends),
    Checker(name="gaps", run=check_gaps),
    Checker(name="cancelled fetches", run=check_cancelled_fetches),
)
