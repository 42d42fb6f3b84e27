"""The application: endpoints behind keys and limits. litestar finds the door of a path, and does nothing else.

    uvicorn (guard.py) -> Application -> litestar -> Door of the path -> endpoint.answer(call) -> Exchange (asgi.py)

Whether a call needs a key is a property of the endpoint that was matched, never of the text of its URL. A path that
could be written in a second way (`//`, `%2e`, `..`) matches nothing.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from litestar import Litestar, Request
from litestar.exceptions import HTTPException
from litestar.handlers import asgi
from litestar.types import Receive as AnyReceive
from litestar.types import Scope as AnyScope
from litestar.types import Send as AnySend

from playhead.logs import event
from playhead.serve.absent import why_absent
from playhead.serve.asgi import ClientGone, Exchange, Headers, Receive, Send, has_body, read_body, too_large
from playhead.serve.auth import KeyRing, is_loopback
from playhead.serve.backend import Backend, BackendState
from playhead.serve.call import Answer, Call, EventStream, Tenant
from playhead.serve.config import ServeConfig
from playhead.serve.endpoint import PLAIN_PATH, Endpoint
from playhead.serve.failures import failure
from playhead.serve.recorder import OTHER, Recorder
from playhead.serve.recorder import Refusal as Why
from playhead.serve.refusals import Refusal

LOG = logging.getLogger(__name__)
ACCESS = logging.getLogger("playhead.access")

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
JSON_TYPE = re.compile(rb"application/json[ \t]*(;[ \t]*charset=\"?utf-8\"?[ \t]*)?", re.IGNORECASE)
NO_RESPONSE = 499  # what the log has for a client that left before its response began
RETRY_S = "5"
INVALID = (400, 404)
"""Statuses of a body that cannot be served as it is. Before an engine has it, its prompt has not been counted."""

COMMON_HEADERS: Headers = [(b"x-content-type-options", b"nosniff")]

Scope = dict[str, Any]


class Visit:
    """One request on its way through the application: how it is answered, and what the access log says of it."""

    def __init__(self, scope: Scope, exchange: Exchange) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.exchange = exchange
        self.route = OTHER
        self.began_s = time.perf_counter()
        self.tenant = Tenant()
        self.has_stream = False
        self.is_read = not has_body(scope["headers"])
        self.call: Call | None = None
        self.error: Exception | None = None
        self.name(secrets.token_hex(16))

    def name(self, request_id: str) -> None:
        """The id under which client and log know this request."""
        self.request_id = request_id
        self.exchange.headers = [*COMMON_HEADERS, (b"x-request-id", request_id.encode("ascii"))]

    def fail(self, error: Exception) -> None:
        """Write down what was raised and where, without its words: they may repeat what was asked for."""
        self.error = error
        frames = traceback.extract_tb(error.__traceback__)
        at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown"
        event(LOG, logging.ERROR, "request failed", error=type(error).__name__, at=at, request_id=self.request_id)

    def write_down(self) -> None:
        """One line in the access log. The path that the client wrote is not in it: the route's is."""
        facts: dict[str, object] = {
            "method": self.method,
            "route": self.route,
            "status": self.exchange.status or NO_RESPONSE,
            "ms": round((time.perf_counter() - self.began_s) * 1e3, 1),
            "tenant": self.tenant.name,
            "request_id": self.request_id,
        }
        if self.call is not None and self.call.spent.num_prompt_tokens:
            facts["prompt_tokens"] = self.call.spent.num_prompt_tokens
            facts["output_tokens"] = self.call.spent.num_output_tokens
        if self.exchange.is_gone:
            facts["client"] = "gone"
        if self.error is not None:
            facts["error"] = type(self.error).__name__
        event(ACCESS, logging.INFO, "request", **facts)


class Application:
    """An ASGI application that serves endpoints. `num_open` counts the requests that are not answered yet.

    `is_draining`: the server is about to end, and runs no more requests.
    """

    def __init__(self, backend: Backend, keys: KeyRing, config: ServeConfig, recorder: Recorder) -> None:
        self.backend, self.keys, self.config, self.recorder = backend, keys, config, recorder
        self.is_draining = False
        self.num_open = 0
        self.endpoints: tuple[Endpoint, ...] = ()
        self._doors_of_values: dict[str, str] = {}
        self._router: Litestar | None = None

    def serve(self, endpoints: Sequence[Endpoint]) -> None:
        """Serve these endpoints, once. They may ask the application about itself, so they come after it."""
        assert self._router is None, "an application has its endpoints from its start to its end"
        by_path: dict[str, dict[str, Endpoint]] = {}
        for one in endpoints:
            by_path.setdefault(one.path, {})[one.method] = one
        self.endpoints = tuple(endpoints)
        self.recorder.routes = frozenset(by_path)
        self._doors_of_values = {one.prefix: one.plain_path for one in endpoints if one.prefix is not None}
        self._router = Litestar(
            route_handlers=[handler_of(Door(self, path, methods)) for path, methods in by_path.items()],
            openapi_config=None,
            logging_config=None,
            exception_handlers={HTTPException: no_route, Exception: as_it_is},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "there are no websockets, and no lifespan"
        assert self._router is not None, "requests come after the endpoints"
        exchange = Exchange(receive, send, keep_alive_s=self.config.sse_comment_interval)
        visit = Visit(scope, exchange)
        self.num_open += 1
        try:
            visit.name(request_id_of(scope["headers"]) or visit.request_id)
            self._check_host(scope["headers"])
            self._check_path(scope)
            scope["state"]["visit"] = visit
            await self._router(scope, receive, send)  # type: ignore[arg-type]
        except Refusal as refusal:
            self.recorder.refused(refusal.why)
            if not visit.is_read:  # the rest of the body is not read, so the connection ends; tell the client
                exchange.headers.append((b"connection", b"close"))
            await exchange.send_answer(refusal.answer)
        except ClientGone:
            exchange.is_gone = True
        except Exception as error:  # noqa: BLE001  the boundary of a request: others go on
            visit.fail(error)
            if exchange.status is None:
                await exchange.send_answer(failure(error))
        finally:
            self.num_open -= 1
            if visit.has_stream:
                self.recorder.stream_closed()
            self.recorder.responded(visit.route, exchange.status or NO_RESPONSE)
            if exchange.failure is not None:
                visit.fail(exchange.failure)
            visit.write_down()

    def _check_host(self, headers: Headers) -> None:
        """Without keys, being on this machine is what lets a caller in. A browser on it may be led here by a page from
        elsewhere, under that page's own name; such a name is refused."""
        if self.keys or self.config.allow_anyone:
            return
        host = next(value for name, value in headers if name == b"host").decode("ascii")
        name = host.rpartition("]")[0].removeprefix("[") or host.partition(":")[0]
        if not is_loopback(name.lower()) and name != self.config.host:
            raise Refusal(421, "Without API keys, this server answers under the names of this machine only.")

    def _check_path(self, scope: Scope) -> None:
        path, raw = scope["path"], scope["raw_path"]
        for prefix, plain_path in self._doors_of_values.items():
            if raw.startswith(prefix.encode()) and len(path) > len(prefix):
                scope["path"] = plain_path  # what follows the prefix is a value, in whatever way it is written
                return
        if raw != path.encode() or not PLAIN_PATH.fullmatch(path):
            raise not_found(path)


class Door:
    """All endpoints of one path: who may go in, with what, and how they come out."""

    def __init__(self, app: Application, path: str, methods: Mapping[str, Endpoint]) -> None:
        self.app, self.path, self.methods = app, path, methods
        self._num_prefix = max(len(one.prefix or "") for one in methods.values())

    async def admit(self, scope: Scope, receive: Receive) -> None:
        """Answer one request, or raise what keeps it from being answered."""
        visit: Visit = scope["state"]["visit"]
        visit.route = self.path
        endpoint = self._endpoint(visit.method)
        visit.tenant = self._tenant(endpoint, scope["headers"])
        self._check_state(endpoint)
        body = await self._body(scope["headers"], receive) if endpoint.method == "POST" else b""
        visit.is_read = True
        call = visit.call = Call(
            request_id=visit.request_id,
            tenant=visit.tenant,
            body=body,
            path_value=visit.path[self._num_prefix :] if self._num_prefix else "",
        )
        await visit.exchange.run(self._answered(endpoint, call, visit))

    def _endpoint(self, method: str) -> Endpoint:
        endpoint = self.methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = ", ".join(sorted({*self.methods, *({"HEAD"} if "GET" in self.methods else ())}))
            raise Refusal(405, f"This path takes {allowed}.", headers={"Allow": allowed})
        return endpoint

    def _tenant(self, endpoint: Endpoint, headers: Headers) -> Tenant:
        if endpoint.is_public:
            return Tenant()
        tenant = self.app.keys.tenant_of([value for name, value in headers if name == b"authorization"])
        if tenant is None:
            raise Refusal(
                401,
                "There is no valid API key. Send it in the header 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                why=Why.UNAUTHENTICATED,
                headers={"WWW-Authenticate": "Bearer"},
            )
        return tenant

    def _check_state(self, endpoint: Endpoint) -> None:
        if not endpoint.needs_engine:
            return
        if self.app.is_draining:
            headers = {"Retry-After": RETRY_S, "Connection": "close"}
            raise Refusal(503, "The server is shutting down.", code="draining", why=Why.DRAINING, headers=headers)
        if self.app.backend.state is BackendState.STARTING:
            headers = {"Retry-After": RETRY_S}
            raise Refusal(503, "The model is being loaded.", code="starting", why=Why.NO_ENGINE, headers=headers)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        config, found = self.app.config, dict(headers)
        if not JSON_TYPE.fullmatch(found.get(b"content-type", b"")):
            raise Refusal(415, "The Content-Type is not application/json.")
        if int(found.get(b"content-length", b"0")) > config.max_body_bytes:
            raise too_large(config.max_body_bytes)
        try:
            async with asyncio.timeout(config.body_timeout):
                return await read_body(receive, config.max_body_bytes)
        except TimeoutError:
            message = f"The body took more than {config.body_timeout:g} s."
            raise Refusal(408, message, why=Why.TOO_SLOW) from None

    async def _answered(self, endpoint: Endpoint, call: Call, visit: Visit) -> Answer | EventStream:
        """What the endpoint gives, or the error body of what it raised. The firewall around one request."""
        try:
            result = await endpoint.answer(call)
            if isinstance(result, EventStream):
                visit.has_stream = True
                self.app.recorder.stream_opened()
            elif result.status in INVALID and not call.spent.num_prompt_tokens:
                self.app.recorder.refused(Why.INVALID)
            return result
        except Exception as error:  # noqa: BLE001  the boundary of a request: others go on
            visit.fail(error)
            return failure(error)


def handler_of(door: Door) -> asgi:
    """A door as litestar has it."""

    async def handle(scope: AnyScope, receive: AnyReceive, send: AnySend) -> None:
        await door.admit(scope, receive)  # type: ignore[arg-type]

    plain_path = next(iter(door.methods.values())).plain_path
    return asgi(plain_path, copy_scope=False)(handle)


def no_route(request: Request[Any, Any, Any], error: HTTPException) -> NoReturn:
    """litestar found no door. It may not say so in its own words."""
    raise not_found(request.scope["path"]) from None


def as_it_is(request: object, error: Exception) -> NoReturn:
    """litestar would answer in its own words."""
    raise error


def not_found(path: str) -> Refusal:
    """No endpoint has this path. The refusal of a path that other servers have says why."""
    why = why_absent(path)
    if why is not None:
        return Refusal(404, why, code="unknown_url")
    return Refusal(404, "There is nothing at this path. See /openapi.json for what there is.", code="unknown_url")


def request_id_of(headers: Headers) -> str | None:
    """The client's own id for its request, or None. `Refusal` if it could not stand in a log."""
    ids = [value for name, value in headers if name == b"x-request-id"]
    if not ids:
        return None
    if len(ids) > 1 or not REQUEST_ID.fullmatch(ids[0]):
        raise Refusal(400, "X-Request-Id: send it once, with 1 to 128 visible ASCII characters.")
    return ids[0].decode("ascii")
