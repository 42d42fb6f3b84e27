"""A backend of replicas from the settings of a server: on processes of this machine, or on Ray. No torch."""

from __future__ import annotations

from playhead.engine.config import EngineConfig
from playhead.env import tell_ray_to_be_private
from playhead.errors import ConfigError
from playhead.scale.fleet import FleetConfig
from playhead.scale.launch import Launcher, LocalLauncher
from playhead.scale.replicas import ReplicatedBackend
from playhead.serve import wire
from playhead.serve.auth import is_loopback
from playhead.serve.choose import limits_of
from playhead.serve.config import ServeConfig
from playhead.serve.limits import ServeLimits


def replicated_backend(
    config: ServeConfig, engine: EngineConfig, limits: ServeLimits | None = None
) -> ReplicatedBackend:
    """The backend that these settings ask for. `start` starts its engines."""
    begin = wire.Begin(config.model, wire.config_fields(engine), config.served_model_name)
    return ReplicatedBackend(launcher_for(config, engine), begin, limits or limits_of(config), fleet_of(config))


def fleet_of(config: ServeConfig) -> FleetConfig:
    """How many engines these settings ask for, and what becomes of their requests."""
    return FleetConfig(
        num_replicas=config.replicas,
        autoscale=config.autoscale_bounds,
        max_retries=config.max_retries,
        drain_s=config.drain_timeout,
    )


def launcher_for(config: ServeConfig, engine: EngineConfig) -> Launcher:
    """Who starts the engines."""
    if not config.ray:
        return LocalLauncher(engine)
    if config.ray_address is None:
        tell_ray_to_be_private(is_loopback(config.ray_host))  # Ray reads this while it is imported
    try:
        from playhead.scale.on_ray import RayLauncher
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise ConfigError("playhead serve --ray needs ray, which is not installed. Install playhead[ray].") from None
    return RayLauncher(engine, address=config.ray_address, host=config.ray_host)
