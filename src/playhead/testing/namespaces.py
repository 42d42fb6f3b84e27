"""Replicas in network namespaces of their own, whose link can be cut. Needs root and the command `ip`.

A namespace has its own addresses and one link to this one, so a front reaches the engine in it as it reaches another
machine. A link that is down loses everything, and nobody is told.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass

from playhead.engine.config import EngineConfig
from playhead.scale.launch import Launched
from playhead.testing.tcp_actors import TcpHost, reach, start_actor

END_S = 90.0  # an engine ends itself well before


class NoNamespaces(Exception):
    """This user or this machine cannot make network namespaces."""


def ip(*words: str) -> None:
    """Run the command `ip`."""
    command = shutil.which("ip")
    if command is None:
        raise NoNamespaces("there is no command `ip`")
    done = subprocess.run([command, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """One namespace. The addresses are of a range that is kept for tests of networks."""

    name: str
    link: str
    subnet: str

    @classmethod
    def make(cls, number: int) -> Namespace:
        made = cls(name=f"playhead-{os.getpid()}-{number}", link=f"ph{os.getpid()}n{number}", subnet=f"198.18.{number}")
        ip("netns", "add", made.name)
        try:
            ip("link", "add", made.link, "type", "veth", "peer", "name", "eth0", "netns", made.name)
            ip("address", "add", f"{made.subnet}.1/30", "dev", made.link)
            ip("link", "set", made.link, "up")
            ip("-n", made.name, "address", "add", f"{made.subnet}.2/30", "dev", "eth0")
            for inside in ("lo", "eth0"):
                ip("-n", made.name, "link", "set", inside, "up")
        except NoNamespaces:
            made.remove()
            raise
        return made

    @property
    def address(self) -> str:
        """By which this machine reaches what is inside."""
        return f"{self.subnet}.2"

    def cut(self) -> None:
        """Lose everything from now on, both ways."""
        ip("-n", self.name, "link", "set", "eth0", "down")

    def remove(self) -> None:
        """The link goes with it."""
        ip("netns", "delete", self.name)


def why_none() -> str | None:
    """Why namespaces cannot be made here, or None."""
    try:
        Namespace.make(255).remove()
    except NoNamespaces as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamespaceHost:
    """An engine's process in a namespace. Nobody kills it: it must end by itself."""

    inner: TcpHost
    namespace: Namespace
    launcher: NamespaceLauncher

    @property
    def connection(self) -> socket.socket:
        return self.inner.connection

    @property
    def pid(self) -> int:
        return self.inner.pid

    def end(self) -> None:
        try:
            self.inner.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.launcher.num_killed += 1
        self.inner.end()
        self.namespace.remove()


class NamespaceLauncher:
    """Starts each engine in a namespace of its own. `num_killed` are those that did not end by themselves."""

    def __init__(self, config: EngineConfig) -> None:
        self._config, self._numbers = config, itertools.count()
        self._namespaces: dict[int, Namespace] = {}
        self.num_killed = 0

    async def launch(self) -> Launched:
        return Launched(host=await asyncio.to_thread(self._launch), config=self._config)

    async def close(self) -> None:
        pass  # each engine's host has removed its own

    def cut(self, pid: int) -> None:
        """Cut the link of the engine with this process id."""
        self._namespaces[pid].cut()

    def _launch(self) -> NamespaceHost:
        namespace = Namespace.make(next(self._numbers) % 255)
        try:
            actor = start_actor(namespace.address, before=("ip", "netns", "exec", namespace.name))
            inner = reach(actor, namespace.address, actor.port)
        except BaseException:
            namespace.remove()
            raise
        self._namespaces[inner.pid] = namespace
        return NamespaceHost(inner=inner, namespace=namespace, launcher=self)
