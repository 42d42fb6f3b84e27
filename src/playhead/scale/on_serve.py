"""The server as an application of Ray Serve, for those who run a cluster with Serve's proxies. Needs playhead[ray].

    Serve's proxy -> one ingress replica: routes, keys, limits, router -> engines, which are actors beside it

There is one ingress: it knows every token that its clients have, and every prefix that its engines have. Serve restarts
one that dies. What Serve's proxy does itself (connections, headers, slow clients) is Serve's to limit.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from playhead.engine.config import EngineConfig
from playhead.errors import ConfigError, EngineStopped
from playhead.scale.build import fleet_of
from playhead.scale.on_ray import RayLauncher
from playhead.scale.replicas import ReplicatedBackend
from playhead.serve import wire
from playhead.serve.app import Application, Scope
from playhead.serve.asgi import Receive, Send
from playhead.serve.assemble import make_application
from playhead.serve.auth import load_keys
from playhead.serve.choose import limits_of
from playhead.serve.config import ServeConfig

MAX_ONGOING = 1 << 16  # the server has its own queue, which refuses with a code and a time to come back


class Ingress:
    """The application as Serve calls it: no lifespan, and a place for what a request carries along."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # Serve asks whether there is a lifespan
        await self._app({**scope, "state": {}}, receive, send)


class Front:
    """What Serve makes a replica of."""

    def __init__(self, config: ServeConfig, engine: EngineConfig) -> None:
        self._config, self._engine = config, engine
        self._backend: ReplicatedBackend | None = None

    async def __serve_build_asgi_app__(self) -> Ingress:
        """Start the engines; requests come when they serve."""
        config = self._config
        keys = load_keys(config.api_key_file)
        if not keys and not config.allow_anyone:
            raise ConfigError("scale.app: there are no API keys. Give api_key_file, or say allow_anyone=True.")
        begin = wire.Begin(config.model, wire.config_fields(self._engine), config.served_model_name)
        launcher = RayLauncher(self._engine, host=config.ray_host)
        backend = self._backend = ReplicatedBackend(launcher, begin, limits_of(config), fleet_of(config))
        app = make_application(backend, keys, config)
        await backend.start()
        return Ingress(app)

    async def check_health(self) -> None:
        """Serve asks this now and then, and replaces an ingress that raises."""
        if self._backend is not None and not self._backend.state.is_alive:
            raise EngineStopped(f"replicas: {self._backend.state}")


def application(config: ServeConfig, engine: EngineConfig | None = None) -> Any:
    """The application, to be given to `serve.run`."""
    ingress = serve.ingress()(Front)
    deployment = serve.deployment(
        name="playhead",
        num_replicas=1,
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=config.drain_timeout,
    )(ingress)
    return deployment.bind(config, engine or EngineConfig())
