"""Pages for people: `/` to chat with the model, `/graphs` to watch the engine. No torch.

The files lie in this package as they are served: no build step, no framework, nothing from elsewhere. They are the
same for everyone and hold no secret, so they need no key; what they ask the server for does. A strict
Content-Security-Policy allows scripts and styles of this server alone, and no inline ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files

import msgspec

from playhead.engine.snapshot import EngineSnapshot
from playhead.errors import RequestError, shown
from playhead.serve.call import Answer, Call
from playhead.serve.service import Route, Service, answer

CONTENT_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
PAGES: Mapping[str, str] = {"/": "chat.html", "/graphs": "graphs.html"}
ASSETS = ("page.css", "icon.svg", "server.js", "chat.js", "graphs.js", "charts.js")

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

STEP_NUMBER = re.compile(r"[0-9]{1,15}")
MAX_STEPS_SENT = 240  # as many as the widest chart shows


class ModelShown(msgspec.Struct, frozen=True, kw_only=True):
    """The model, as the page names it."""

    name: str
    device: str
    dtype: str
    max_model_len: int


class GraphData(msgspec.Struct, frozen=True, kw_only=True):
    """What the graphs page draws. `page_states` of a group are base64."""

    model: ModelShown
    snapshot: EngineSnapshot


@cache
def file_answer(name: str) -> Answer:
    """One of this package's files, read once."""
    body = files(__package__).joinpath(name).read_bytes()
    return Answer(body=body, content_type=CONTENT_TYPES[name.rpartition(".")[2]], headers=HEADERS)


def drawable(snapshot: EngineSnapshot) -> EngineSnapshot:
    """The snapshot without the steps that no chart has room for."""
    return replace(snapshot, steps=snapshot.steps[-MAX_STEPS_SENT:])


async def graph_data(service: Service, call: Call) -> Answer:
    """The handler of the page's data: the engine now, with its newest steps after the one in the path."""
    if not STEP_NUMBER.fullmatch(call.path_value):
        raise RequestError("after_step", shown(call.path_value), "the number of a step", "0 gives the newest steps.")
    facts = service.backend.facts
    model = ModelShown(name=facts.name, device=facts.device, dtype=facts.dtype, max_model_len=facts.max_model_len)
    snapshot = await service.backend.snapshot(after_step=int(call.path_value))
    return answer(GraphData(model=model, snapshot=drawable(snapshot)))


async def send_file(name: str, service: Service, call: Call) -> Answer:
    """The handler of a page or of a file that it loads."""
    return file_answer(name)


PAGE_ROUTES = (
    *(
        Route(method="GET", path=path, handler=partial(send_file, name), summary="A page for people", is_public=True)
        for path, name in PAGES.items()
    ),
    *(
        Route(
            method="GET",
            path=f"/pages/{name}",
            handler=partial(send_file, name),
            summary="A file of the pages",
            is_public=True,
        )
        for name in ASSETS
    ),
    Route(
        method="GET",
        path="/graphs/data/{after_step}",
        handler=graph_data,
        summary="The engine now, and its steps after a step",
        answer=GraphData,
    ),
)
"""The pages, their files, and what the graphs page asks for, which needs a key like the API."""
