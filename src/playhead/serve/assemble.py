"""The parts of a server put together: a backend that is measured, the routes over it, the application around them."""

from __future__ import annotations

from functools import partial

from playhead.serve.app import Application
from playhead.serve.auth import KeyRing
from playhead.serve.backend import Backend
from playhead.serve.config import ServeConfig
from playhead.serve.endpoint import Endpoint
from playhead.serve.metrics import metrics
from playhead.serve.operations import operations
from playhead.serve.pages import PAGE_ROUTES
from playhead.serve.recorder import MeasuredBackend, Recorder
from playhead.serve.routes import ROUTES
from playhead.serve.service import Route, Service, respond
from playhead.serve.traces import exporting_spans


def make_application(backend: Backend, keys: KeyRing, config: ServeConfig) -> Application:
    """The application over a backend, which need not be started yet."""
    recorder = Recorder(on_end=exporting_spans(config.served_model_name or config.model) if config.otel else None)
    measured = MeasuredBackend(backend, recorder)
    app = Application(measured, keys, config, recorder)
    service = Service(backend=measured, limits=config.limits, tool_format=config.tool_format)
    app.serve(
        [
            *operations(measured, lambda: app.is_draining),
            Endpoint(method="GET", path="/metrics", answer=partial(metrics, app), needs_engine=False),
            *(endpoint_of(service, route) for route in (*ROUTES, *PAGE_ROUTES)),
        ]
    )
    return app


def endpoint_of(service: Service, route: Route) -> Endpoint:
    """A route as the transport has it. Whatever is public is a file, and needs no engine."""
    return Endpoint(
        method=route.method,
        path=route.path,
        answer=partial(respond, service, route),
        is_public=route.is_public,
        needs_engine=not route.is_public,
    )
