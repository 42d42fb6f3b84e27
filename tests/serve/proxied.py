"""Replicas behind a proxy on loopback that can lose bytes without a word, as a network does."""

from __future__ import annotations

import asyncio

from playhead.errors import EngineStopped
from playhead.scale.launch import Launched
from playhead.serve import wire
from playhead.testing.tcp_actors import reach, start_actor

READ_BYTES = 1 << 16
LOCAL = "127.0.0.1"


class Way:
    """One direction. What is lost was taken from the sender, whose system has it acknowledged."""

    def __init__(self):
        self.is_cut = self.is_to_be_cut = False

    def cut(self):
        """Lose everything from now on."""
        self.is_cut = True

    def cut_in_a_frame(self):
        """Pass on the next step's tokens without their last byte, and nothing after that."""
        self.is_to_be_cut = True

    def passed(self, data):
        """What of this arrives."""
        if self.is_cut:
            return b""
        at = 0
        while self.is_to_be_cut and at + wire.HEAD.size < len(data):
            num_bytes, kind = wire.HEAD.unpack_from(data, at)
            at += wire.HEAD.size + num_bytes
            if kind == wire.Kind.STEP:
                self.is_cut = True
                return data[: at - 1]
        return data


class Proxy:
    """Between a front and one engine. A side whose bytes are lost does not hear of the other's end either."""

    def __init__(self, port):
        self._port = port
        self.to_engine, self.to_front = Way(), Way()
        self._writers = []

    async def listen(self):
        """For one connection; gives the port."""
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, LOCAL, 0)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, from_front, to_front):
        self._server.close()
        from_engine, to_engine = await asyncio.open_connection(LOCAL, self._port)
        self._writers += [to_front, to_engine]
        await asyncio.gather(
            self._pump(from_front, to_engine, self.to_engine), self._pump(from_engine, to_front, self.to_front)
        )

    async def _pump(self, reader, writer, way):
        try:
            while data := await reader.read(READ_BYTES):
                writer.write(way.passed(data))
        except ConnectionError:
            pass
        if not way.is_cut:
            writer.close()

    def end(self):
        """From any thread: close what is open."""
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


class ProxiedHost:
    """An engine's process that is reached through a proxy."""

    def __init__(self, host, proxy):
        self._host, self.proxy = host, proxy
        self.connection, self.pid = host.connection, host.pid

    def end(self):
        self._host.end()
        self.proxy.end()


class ProxiedLauncher:
    """Starts so many engines, as actors without Ray. `proxies` are those of all that were started, by process id."""

    def __init__(self, config, num_left):
        self._config, self._num_left, self.proxies = config, num_left, {}

    async def launch(self):
        if not self._num_left:
            raise EngineStopped("launcher: nothing left")
        self._num_left -= 1
        actor = await asyncio.to_thread(start_actor, LOCAL)
        proxy = Proxy(actor.port)
        port = await proxy.listen()
        host = ProxiedHost(await asyncio.to_thread(reach, actor, LOCAL, port), proxy)
        self.proxies[host.pid] = proxy
        return Launched(host=host, config=self._config)

    async def close(self):
        pass
