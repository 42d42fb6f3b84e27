"""Engines that Ray places: on this machine, or on the nodes of a cluster that runs. Needs playhead[ray].

Ray starts the processes, gives each its GPU and tells where it is. Requests and tokens go over a socket of our own. A
cluster that is started here has no dashboard, listens on one address, and asks for a token.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions
import ray.util

from playhead.engine.config import EngineConfig
from playhead.errors import EngineStopped
from playhead.logs import event
from playhead.scale.actor import SECRET_BYTES, EngineActor, reached
from playhead.scale.launch import Launched
from playhead.serve.auth import is_loopback
from playhead.serve.engine_child import wants_gpu

LOG = logging.getLogger(__name__)
PLACED_S = 120.0  # for a node with a free GPU, and for a process on it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RayHost:
    """An actor's process and the socket to it."""

    connection: socket.socket
    pid: int
    actor: Any  # Ray's handles have no type that says what they can

    def end(self) -> None:
        """The process ends with its socket; Ray ends one that does not."""
        try:
            ray.kill(self.actor)
        except (ValueError, ray.exceptions.RayError) as error:  # Ray itself may have ended
            event(LOG, logging.WARNING, "actor not ended", error=type(error).__name__)


class RayLauncher:
    """Actors of a cluster. `address` is a cluster's that runs; without one, a cluster of this machine is started.

    `host` is the address by which this process is reached inside the private network. With a loopback address all is on
    this machine; with another one every actor listens on the address that its node has in the cluster.
    """

    def __init__(self, config: EngineConfig, *, address: str | None = None, host: str = "127.0.0.1") -> None:
        self._config, self._address, self._host = config, address, host
        self._lock = threading.Lock()
        self._owns_cluster = False

    async def launch(self) -> Launched:
        try:
            host = await asyncio.to_thread(self._launch)
        except (ray.exceptions.RayError, ConnectionError, OSError) as error:
            raise EngineStopped(f"ray: no actor ({type(error).__name__})") from error
        return Launched(host=host, config=self._config)

    async def close(self) -> None:
        """End the cluster, if it was started here."""
        if self._owns_cluster:
            self._owns_cluster = False
            await asyncio.to_thread(ray.shutdown)

    def _launch(self) -> RayHost:
        with self._lock:
            self._connect()
        # The number of engines is ours to bound. Ray counts GPUs, and spreads engines over nodes.
        num_gpus = self._config.tensor_parallel_size if wants_gpu(self._config) else 0
        options = {"num_cpus": 0, "num_gpus": num_gpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        actor = ray.remote(**options)(PlacedEngine).remote()
        try:
            host = "127.0.0.1" if is_loopback(self._host) else ray.get(actor.node_address.remote(), timeout=PLACED_S)
            secret = secrets.token_bytes(SECRET_BYTES)
            port, pid = ray.get(actor.listen.remote(host, secret), timeout=PLACED_S)
            connection = reached(host, port, secret)
        except BaseException:
            ray.kill(actor)
            raise
        return RayHost(connection=connection, pid=pid, actor=actor)

    def _connect(self) -> None:
        """Join the cluster, or start one that nobody outside can reach."""
        if ray.is_initialized():
            return
        if self._address is not None:
            ray.init(address=self._address, log_to_driver=False, configure_logging=False)
            return
        # Ray would write its token, its logs and its sockets so that every user of the machine can read them.
        before = os.umask(0o077)
        try:
            ray.init(
                _node_ip_address=self._host,
                include_dashboard=False,
                num_cpus=0,
                log_to_driver=False,
                configure_logging=False,
            )
        finally:
            os.umask(before)
        self._owns_cluster = True


class PlacedEngine(EngineActor):
    """An engine's actor that knows its node."""

    def node_address(self) -> str:
        """The address that this node has in the cluster."""
        return str(ray.util.get_node_ip_address())
