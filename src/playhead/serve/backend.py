"""What the HTTP side asks of an engine, be it in this process or in another. No torch here.

    HTTP side                                        engine
    submit(checked prompt) -> Stream  -------------> queue, steps
    async for output in stream        <------------- tokens of each step
    stream.close()                    -------------> abort

`LocalBackend` has an `AsyncEngine` in this process. `RemoteBackend` has the engine in a process of its own, which
Python work of the HTTP side cannot slow down. `playhead.scale` has one of several engines. All give the same outputs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions
from playhead.engine.snapshot import EngineSnapshot
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What clients may know of the model that is served. `name` is what they call it; `fingerprint` changes with it."""

    name: str
    max_model_len: int
    vocab_size: int
    has_chat_template: bool
    default_params: SamplingParams
    max_running: int
    device: str
    dtype: str
    fingerprint: str


class BackendState(StrEnum):
    """How the engine is. `/ready` is 200 in READY alone."""

    STARTING = "starting"
    READY = "ready"
    WEDGED = "wedged"
    """It has work and has finished no step for too long."""
    RESTARTING = "restarting"
    """It died, and another is being started in its place."""
    DEAD = "dead"

    @property
    def is_alive(self) -> bool:
        """Whether `/health` is 200. To end a server that is replacing its engine would lose the requests that wait."""
        return self not in (BackendState.WEDGED, BackendState.DEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendScrape:
    """What `/metrics` shows of a backend: its engines by name, and for several engines what connects them.

    A backend of one engine has it under the name "".
    """

    snapshots: Mapping[str, EngineSnapshot]
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Engines by state."""
    routed: Mapping[str, int] = field(default_factory=dict)
    """Requests by why they were sent where they were sent."""
    num_moved: int = 0


class Stream(Protocol):
    """The outputs of one accepted request, as its `output_kind` says; the last one is `finished`.

    A request that fails raises its `PlayheadError` from the iteration.
    """

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...

    def close(self) -> None:
        """Abort the request unless it has ended. Does not wait. A second call does nothing."""


class Backend(Protocol):
    """One model that serves requests. Everything is called on one event loop."""

    @property
    def state(self) -> BackendState: ...

    @property
    def facts(self) -> ModelFacts:
        """Known once `start` has returned; `EngineStopped` before, and if it never does."""

    @property
    def reader(self) -> PromptReader:
        """Tokenizer and chat template, on the HTTP side. Known once `start` has returned."""

    @property
    def num_restarts(self) -> int:
        """How often an engine that died was replaced."""

    async def start(self) -> None:
        """Load the model. Returns when requests are served."""

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> Stream:
        """Queue a request of `checked.params.n` samples.

        Raises `QueueFull` if the queue has no room for it, `EngineStopped` if there is no engine.
        """

    def check_room(self) -> None:
        """Raises `QueueFull` if `submit` would refuse any request now. To be called before a long prompt is read."""

    @property
    def max_sequences(self) -> int:
        """How many sequences can ever be there at once, running and waiting."""

    @property
    def retry_after_s(self) -> int:
        """In how many seconds a request that was refused may find a place: what `Retry-After` says."""

    async def snapshot(self, *, after_step: int = 0) -> EngineSnapshot:
        """What the engine has done and holds now, with the records of the steps after `after_step`.

        An engine that does not answer is shown as it was when it last did.
        """

    async def scrape(self) -> BackendScrape:
        """All engines now, for metrics."""

    async def close(self) -> None:
        """Stop at once. Streams that are open raise `EngineStopped`."""
