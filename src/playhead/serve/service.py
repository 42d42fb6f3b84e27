"""What routes have at hand, what a route is, and how its failures are answered. No torch.

transport -> respond(service, route, call) -> route.handler -> Answer | EventStream
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from playhead.engine.conversations import ChatOptions, Conversation
from playhead.engine.front import CheckedPrompt
from playhead.errors import PlayheadError
from playhead.inputs import Prompt
from playhead.request_limits import RequestLimits
from playhead.sampling_params import SamplingParams
from playhead.serve.backend import Backend
from playhead.serve.call import Answer, Call, EventStream
from playhead.serve.failures import UnknownModel, failure, failure_event
from playhead.serve.tools.constraint import TokenNames
from playhead.serve.tools.formats import ToolFormat, format_for
from playhead.serve.validate import Rules

LOG = logging.getLogger(__name__)
ENCODER = msgspec.json.Encoder()


def new_id(kind: str, separator: str = "-") -> str:
    """An id that nobody can guess: "chatcmpl-" and 96 random bits."""
    return f"{kind}{separator}{secrets.token_hex(12)}"


def now_s() -> int:
    """Seconds since 1970, as answers have them."""
    return int(time.time())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Service:
    """One model behind the routes. Everything runs on one event loop."""

    backend: Backend
    limits: RequestLimits = field(default_factory=RequestLimits)
    created_s: int = field(default_factory=now_s)
    tool_format: str = "auto"

    @property
    def format(self) -> ToolFormat:
        """How the model writes tool calls and reasoning."""
        tokenizer = self.backend.reader.tokenizer
        return format_for(tokenizer.tool_template or tokenizer.chat_template, name=self.tool_format)

    @property
    def token_names(self) -> TokenNames:
        """Which texts are special tokens of the model."""
        tokenizer = self.backend.reader.tokenizer
        return TokenNames(token_id=tokenizer.token_id, special_ids=tokenizer.special.special_ids)

    def rules(self, call: Call) -> Rules:
        """What holds for the requests of this caller."""
        return Rules(
            defaults=self.backend.facts.default_params,
            limits=self.limits,
            tenant_salt=call.tenant.salt,
            chat_template=self.backend.reader.tokenizer.chat_template,
        )

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served here. None is whichever there is."""
        served = self.backend.facts.name
        if name is not None and name != served:
            raise UnknownModel(name, served)

    async def read_prompt(self, prompt: Prompt, params: SamplingParams) -> CheckedPrompt:
        """The prompt as the engine takes it, or `RequestError`."""
        return await self.backend.reader.read(prompt, params)

    async def read_chat(self, messages: Conversation, options: ChatOptions) -> list[int]:
        """A conversation as the model reads it. The chat template runs in a process of its own."""
        return await asyncio.to_thread(self.backend.reader.chat_prompt, messages, options)


READS = (200, 400, 401, 405, 408, 413, 421, 429, 431, 500, 503)
"""Statuses of a route that takes no body. The server refuses a call before a route sees it with most of these."""
GENERATES = (200, 400, 401, 404, 405, 408, 413, 415, 421, 429, 431, 500, 503)
"""Statuses of a route that takes a body."""

Handler = Callable[[Service, Call], Awaitable[Answer | EventStream]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route: what it takes, what it gives, and who may call it.

    `answer` is the body of status 200; `chunk` is what an event of its stream holds. `path` may have one
    name in braces, which matches slashes too. `names` are fields of the library that the route calls otherwise.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    request: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    chunk: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = READS
    is_public: bool = False
    content_type: str = ""
    """What status 200 has where that is no JSON of a known kind."""
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def generates(self) -> bool:
        """Whether the engine makes the answer, which can then be a stream of events."""
        return self.chunk is not None


async def respond(service: Service, route: Route, call: Call) -> Answer | EventStream:
    """The route's answer, or the answer to a failure that it foresees. The caller answers every other exception."""
    try:
        if route.generates:  # a refusal must be cheap: it may be one of many
            service.backend.check_room()
        return await route.handler(service, call)
    except PlayheadError as error:
        return failure(error, route.names, retry_after_s=service.backend.retry_after_s)


async def guarded(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events of a stream. A failure that is foreseen becomes the last event."""
    try:
        async for one in events:
            yield one
    except PlayheadError as error:
        yield failure_event(error)


def answer(body: msgspec.Struct) -> Answer:
    """A whole answer with this body."""
    return Answer(body=ENCODER.encode(body))
