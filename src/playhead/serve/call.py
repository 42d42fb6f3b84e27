"""One HTTP call as the routes see it: what came in, and what goes out. No HTTP library and no torch here.

transport (app, auth, guards)      route (chat, completions, ...)
bytes -> Call  ------------------> async handler(service, call)
bytes <- Answer | EventStream  <---
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who calls. Prompts of tenants with different salts share no cached prefix. `name` may be logged, a key never."""

    name: str = "anonymous"
    salt: str = ""


@dataclass(slots=True, kw_only=True)  # mutable: the route counts while it answers
class Spent:
    """How many tokens a call has cost so far, for the access log. The route fills it in where there are any."""

    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that was let in: its body is within the limits, its key is known.

    `path_value` is what stands in the path where the route has a name in braces: "org/model" for a call of
    /v1/models/org/model, whose route is /v1/models/{model}.
    """

    request_id: str
    tenant: Tenant
    body: bytes = b""
    path_value: str = ""
    spent: Spent = field(default_factory=Spent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole response."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventStream:
    """A response of server-sent events. `events` yields whole events, `data: ...` with the empty line after it.

    The transport calls `close` exactly once, when the last event was sent or the client has gone. `close` does not
    wait; it aborts what is still being generated.
    """

    events: AsyncIterator[bytes]
    close: Callable[[], None]
    headers: Mapping[str, str] = field(default_factory=dict)
