"""More than one engine behind one address: a router, a policy for the number of replicas, a front, Ray.

router.py      which replica a prompt goes to        autoscale.py   how many replicas there should be
fleet.py       engines started, watched, replaced    replicas.py    the backend of a server over them
launch.py      processes of this machine             on_ray.py      actors that Ray places (playhead[ray])
on_serve.py    the whole as an application of Ray Serve, for those who run one

Nothing of Ray is imported unless it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playhead.errors import ConfigError

if TYPE_CHECKING:
    from playhead.engine.config import EngineConfig
    from playhead.serve.config import ServeConfig


def app(config: ServeConfig, engine: EngineConfig | None = None) -> Any:
    """An application for Ray Serve: `serve.run(playhead.scale.app(ServeConfig(model=..., replicas=4)))`.

    Its ingress is the server that `playhead serve` runs, without its socket: the same routes, keys and limits. Engines
    are actors of the same cluster. Needs playhead[ray].
    """
    try:
        from playhead.scale.on_serve import application
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise ConfigError("playhead.scale.app needs ray, which is not installed. Install playhead[ray].") from None
    return application(config, engine)
