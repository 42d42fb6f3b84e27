"""An engine's process that is killed or left alone: what its requests, its state and the machine see.

A process that is stopped has done nothing since, so no test depends on who is faster.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from playhead.engine.tokenizer_files import resolve_model_name
from playhead.env import for_engine_process
from playhead.errors import CheckpointError, ConfigError, EngineStopped
from playhead.llm import LLM
from playhead.serve import remote, wire
from playhead.serve.backend import BackendState
from playhead.serve.engine_child import MODULE, start_child
from playhead.serve.local import LocalBackend
from playhead.serve.remote import HEALTHY_S, RemoteBackend
from tests.serve.backends import CONFIG, ENDLESS, GREEDY, HandClock, first_of, outputs_of, submitted

SCORED = replace(GREEDY, logprobs=1, prompt_logprobs=1)


async def lose(backend):
    """Kill the engine's process in the middle of its work; gives what became of two requests.

    The process is stopped first: the second request cannot have begun. Logprobs come before the tokens that they are
    of, and the process may die in between.
    """
    begun = submitted(backend, "begun", [5, 6, 7], ENDLESS)
    await first_of(begun)
    os.kill(backend.pid, signal.SIGSTOP)
    waiting = submitted(backend, "waiting", "The whale", SCORED)
    report = ((5, -1.0, 1),)
    waiting.samples[0].reported(wire.Reports(waiting.samples[0].number, (report,), (report,)))
    os.kill(backend.pid, signal.SIGKILL)
    with pytest.raises(EngineStopped, match="'begun'"):
        await outputs_of(begun)
    return waiting


def test_a_killed_engine_is_replaced_once_and_what_had_not_begun_runs_again():
    clock = HandClock()

    async def kill_twice():
        backend = RemoteBackend("embedded", CONFIG, clock=clock)
        await backend.start()
        try:
            waiting = await lose(backend)
            assert backend.state is BackendState.RESTARTING
            with pytest.raises(EngineStopped):
                submitted(backend, "too early", [5], GREEDY)
            answer = (await outputs_of(waiting))[-1]
            assert backend.state is BackendState.READY
            clock.now += HEALTHY_S - 1  # it dies again too soon
            waiting = await lose(backend)
            assert backend.state is BackendState.DEAD
            with pytest.raises(EngineStopped, match="'waiting'"):
                await outputs_of(waiting)
            with pytest.raises(EngineStopped):
                submitted(backend, "too late", [5], GREEDY)
            await backend.snapshot()  # as it was when it last answered
            return answer
        finally:
            await backend.close()

    with LLM("embedded", CONFIG) as llm:
        wanted = llm.generate("The whale", SCORED)[0]
    found = asyncio.run(kill_twice())
    assert (found.outputs, found.prompt_logprobs, found.finished) == (wanted.outputs, wanted.prompt_logprobs, True)


def test_an_engine_in_whose_place_no_process_can_be_started_is_dead(monkeypatch):
    def refused(config):
        raise OSError(errno.EMFILE, "Too many open files")

    async def kill():
        backend = RemoteBackend("embedded", CONFIG)
        await backend.start()
        try:
            monkeypatch.setattr(remote, "start_child", refused)
            waiting = await lose(backend)
            with pytest.raises(EngineStopped, match="'waiting'"):
                await outputs_of(waiting)
            assert backend.state is BackendState.DEAD
        finally:
            await backend.close()

    asyncio.run(kill())


def test_a_closed_engine_ends_its_streams_with_a_typed_error():
    async def close(backend):
        await backend.start()
        stream = submitted(backend, "r", [5, 6], ENDLESS)
        await backend.close()
        await backend.close()
        assert backend.state is BackendState.DEAD
        with pytest.raises(EngineStopped):
            await outputs_of(stream)
        with pytest.raises(EngineStopped):
            backend.submit("late", None, None)

    asyncio.run(close(LocalBackend("embedded", CONFIG)))


def test_an_engine_that_cannot_be_loaded_says_why():
    async def start():
        await RemoteBackend("/nowhere/at/all", CONFIG).start()

    with pytest.raises(Exception, match="nowhere") as raised:
        asyncio.run(start())
    assert not isinstance(raised.value, EngineStopped | ConfigError)


def test_the_http_side_refuses_a_tokenizer_and_ends_the_engine(tmp_path):
    """The engine's process reads none."""
    shutil.copytree(resolve_model_name("embedded"), tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    backend, child = RemoteBackend(str(tmp_path / "model"), CONFIG), start_child(CONFIG)
    backend.adopt(child)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        asyncio.run(backend.start())
    assert backend.state is BackendState.DEAD
    assert child.process.poll() is not None


def test_an_engine_whose_server_is_gone_ends():
    """The socket is all that ties the two: a server that is killed closes it."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=for_engine_process(sys.path),
        )
    ours.close()
    assert process.wait() == 0


def test_the_engines_process_is_not_given_the_keys(monkeypatch):
    monkeypatch.setenv("PLAYHEAD_API_KEYS", "secret")
    assert "secret" not in for_engine_process(["/a", "", "/b"]).values()
    assert for_engine_process(["/a", "", "/b"])["PYTHONPATH"] == "/a:/b"
    assert for_engine_process([], "info,json")["PLAYHEAD_LOG"] == "info,json"


IMPORTS = """
import sys, threading, types
from playhead.serve import engine_entry
sys.modules["playhead.serve.engine_process"] = types.SimpleNamespace(serve_engine=lambda descriptor: forever.wait())
forever = threading.Event()
print("here", flush=True)
engine_entry.main(int(sys.argv[1]), "")
"""


def test_an_engine_that_does_not_listen_yet_ends_with_its_socket():
    """It imports torch, for seconds on a busy machine. Whoever ends a server that starts would wait for that."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", IMPORTS, str(theirs.fileno())],
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env=for_engine_process(sys.path),
        )
    with child.stdout:
        assert child.stdout.readline() == b"here\n"
    ours.close()
    assert child.wait() == 0
