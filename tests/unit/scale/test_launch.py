"""Where engines run: GPUs of this machine by turns, actors that let one caller in, and what is said without Ray."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import threading

import pytest

from playhead.engine.config import EngineConfig
from playhead.errors import ConfigError
from playhead.scale import app, launch
from playhead.scale.actor import SECRET_BYTES, admitted
from playhead.scale.build import replicated_backend
from playhead.scale.launch import LocalLauncher
from playhead.serve.config import ServeConfig
from playhead.serve.engine_child import EngineChild

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


def test_each_replica_has_a_gpu_of_its_own_and_a_lost_ones_is_used_again(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(launch, "DEVICES", tmp_path)
    launcher = LocalLauncher(EngineConfig(device="cuda"))
    assert LocalLauncher(EngineConfig(device="cuda", tensor_parallel_size=2))._first_free_gpu() == 0
    with pytest.raises(ConfigError, match="each needs 4 of 2 GPUs"):
        LocalLauncher(EngineConfig(device="cuda", tensor_parallel_size=4))._first_free_gpu()
    children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    try:
        for gpu, process in enumerate(children):
            assert launcher._first_free_gpu() == gpu
            launcher._of_gpu[gpu] = EngineChild(process=process, connection=socket.socket())
        with pytest.raises(ConfigError, match="each needs 1 of 2 GPUs"):
            launcher._first_free_gpu()
        children[0].kill()
        children[0].wait()
        assert launcher._first_free_gpu() == 0
    finally:
        for process in children:
            process.kill()
            process.communicate()
        for child in launcher._of_gpu.values():
            child.connection.close()


@pytest.mark.skipif(HAS_RAY, reason="Ray is here")
@pytest.mark.parametrize("made", [app, lambda config: replicated_backend(config, EngineConfig())])
def test_without_ray_the_extra_is_named(made, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "1")  # set by what is tested, and put back by this
    with pytest.raises(ConfigError, match=r"Install playhead\[ray\]"):
        made(ServeConfig(ray=True))
