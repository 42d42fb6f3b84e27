"""Where engines run: GPUs of this machine by turns, actors that let one caller in, and what is said without Ray."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import threading

import pytest

from playhead.engine.config import EngineConfig
from playhead.errors import ConfigError
from playhead.scale import actor, app, launch
from playhead.scale.actor import SECRET_BYTES, admitted
from playhead.scale.build import replicated_backend
from playhead.scale.fleet import Fleet, FleetConfig
from playhead.scale.launch import LocalLauncher
from playhead.serve import wire
from playhead.serve.config import ServeConfig
from playhead.serve.engine_child import EngineChild
from playhead.serve.limits import ServeLimits

HAS_RAY = importlib.util.find_spec("ray") is not None
SECRET = bytes(range(SECRET_BYTES))


def test_an_actor_lets_in_the_caller_that_knows_the_secret_and_nobody_else():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = []
        waiting = threading.Thread(target=lambda: found.append(admitted(listener, SECRET)))
        waiting.start()
        for wrong in (b"x" * SECRET_BYTES, SECRET[:-1] + b"\0", b""):
            with socket.create_connection(("127.0.0.1", port)) as caller:
                caller.sendall(wrong)
                caller.shutdown(socket.SHUT_WR)
                assert caller.recv(1) == b""  # closed without a word
        with socket.create_connection(("127.0.0.1", port)) as caller:
            caller.sendall(SECRET + b"first order")
            waiting.join()
            with found[0] as connection:
                assert connection.recv(64) == b"first order"
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 29_000
            assert caller.recv(1) == b""
        with pytest.raises(OSError, match=r"refused|reset"):
            socket.create_connection(("127.0.0.1", port))


def test_a_caller_that_says_nothing_keeps_nobody_waiting_for_long(monkeypatch):
    """The front stands behind it in the line. A secret may come in pieces."""
    monkeypatch.setattr(actor, "SECRET_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, found = listener.getsockname()[1], []
        mute = socket.create_connection(("127.0.0.1", port))
        waiting = threading.Thread(target=lambda: found.append(admitted(listener, SECRET)))
        waiting.start()
        with mute, socket.create_connection(("127.0.0.1", port)) as caller:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert mute.recv(1) == b""  # by now the other one is listened to
            monkeypatch.setattr(actor, "SECRET_S", 60.0)
            caller.sendall(SECRET[:5])
            caller.sendall(SECRET[5:] + b"order")
            waiting.join()
            with found[0] as connection:
                assert connection.gettimeout() is None
                assert connection.recv(64) == b"order"


@pytest.fixture
def children(tmp_path, monkeypatch):
    """A machine of two GPUs, whose children do nothing; all children that were started."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    made = []

    def start(config):
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=theirs, pass_fds=[theirs.fileno()])
        made.append(EngineChild(process=process, connection=ours))
        return made[-1]

    monkeypatch.setattr(launch, "DEVICES", tmp_path)
    monkeypatch.setattr(launch, "start_child", start)
    yield made
    for child in made:
        child.process.kill()
        child.process.wait()
        child.connection.close()


def test_each_replica_has_a_gpu_of_its_own_and_a_lost_ones_is_used_again(children):
    launcher = LocalLauncher(EngineConfig(device="cuda"))

    async def launched(count):
        """So many replicas, launched together as a fleet launches them."""
        return await asyncio.gather(*(launcher.launch() for _ in range(count)), return_exceptions=True)

    first, second, third = asyncio.run(launched(3))
    assert [first.config.device, second.config.device] == ["cuda:0", "cuda:1"]
    with pytest.raises(ConfigError, match="each needs 1 of 2 GPUs"):
        raise third
    first.host.process.kill()
    first.host.process.wait()
    assert [one.config.device for one in asyncio.run(launched(1))] == ["cuda:0"]


def test_a_replica_has_as_many_gpus_in_a_row_as_ranks(children):
    launcher = LocalLauncher(EngineConfig(device="cuda", tensor_parallel_size=2))
    assert asyncio.run(launcher.launch()).config.device == "cuda:0"
    for num_ranks in (2, 4):
        with pytest.raises(ConfigError, match=f"each needs {num_ranks} of 2 GPUs"):
            asyncio.run(launcher.launch())
        launcher = LocalLauncher(EngineConfig(device="cuda", tensor_parallel_size=4))


def test_a_gpu_is_free_again_if_its_process_did_not_start(children, monkeypatch):
    def refused(config):
        raise OSError("no process")

    launcher = LocalLauncher(EngineConfig(device="cuda"))
    with monkeypatch.context() as patched:
        patched.setattr(launch, "start_child", refused)
        with pytest.raises(OSError, match="no process"):
            asyncio.run(launcher.launch())
    assert asyncio.run(launcher.launch()).config.device == "cuda:0"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_launch_that_is_cancelled_leaves_no_process_and_no_gpu_taken(children, monkeypatch, device):
    """The thread that starts a process does not hear of the cancellation."""
    start, may_start, launcher = launch.start_child, threading.Event(), LocalLauncher(EngineConfig(device=device))

    def slow(config):
        may_start.wait()
        return start(config)

    monkeypatch.setattr(launch, "start_child", slow)

    async def cancelled():
        launching = asyncio.create_task(launcher.launch())
        await asyncio.sleep(0)
        launching.cancel()
        asyncio.get_running_loop().call_soon(may_start.set)
        with pytest.raises(asyncio.CancelledError):
            await launching
        (child,) = children
        assert child.process.returncode is not None
        assert child.connection.fileno() == -1
        assert (await launcher.launch()).config.device == ("cpu" if device == "cpu" else "cuda:0")

    asyncio.run(cancelled())


class Sleeping:
    """A launcher whose first process comes only when it is cancelled, and whose second cannot be started."""

    def __init__(self):
        self.num_asked, self.num_cancelled = 0, 0

    async def launch(self):
        self.num_asked += 1
        if self.num_asked == 2:
            raise ConfigError("replicas: there is no GPU for the second")
        try:
            await asyncio.Event().wait()
        finally:
            self.num_cancelled += 1

    async def close(self):
        pass


def test_a_replica_that_cannot_start_ends_the_start_while_others_still_load():
    launcher = Sleeping()
    begin = wire.Begin("embedded", {}, None)
    fleet = Fleet(launcher, begin, ServeLimits(), FleetConfig(num_replicas=2), lambda: 0.0)

    async def start():
        with pytest.raises(ConfigError, match="no GPU for the second"):
            await fleet.start(None)
        assert launcher.num_cancelled == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(start())


@pytest.mark.skipif(HAS_RAY, reason="Ray is here")
@pytest.mark.parametrize("made", [app, lambda config: replicated_backend(config, EngineConfig())])
def test_without_ray_the_extra_is_named(made, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "1")  # set by what is tested, and put back by this
    with pytest.raises(ConfigError, match=r"Install playhead\[ray\]"):
        made(ServeConfig(ray=True))


@pytest.mark.parametrize(("autoscale", "most"), [(None, 2), ((1, 6), 6)])
def test_a_fleet_knows_how_large_it_can_be(autoscale, most):
    assert FleetConfig(num_replicas=2, autoscale=autoscale).most_replicas == most
