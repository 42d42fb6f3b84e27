"""From its start to its end: what a server prints, what it listens on, and what a signal does to requests under way."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from playhead.cli.serve import make_backend
from playhead.engine.config import EngineConfig
from playhead.errors import ConfigError
from playhead.serve import engine_child
from playhead.serve.assemble import make_application
from playhead.serve.auth import KeyRing
from playhead.serve.backend import BackendState
from playhead.serve.config import ServeConfig
from playhead.serve.run import bind, hear_uvicorn, run
from tests.serve.listening import Wire, listening, wait_until
from tests.serve.plain import plain_application
from tests.serve.running import running

SMALL = ("--max-model-len", "256", "--max-num-seqs", "4", "--kv-memory-bytes", "16MiB")
NUM_REQUESTS, NUM_TOKENS = 12, 60
SECRET = "The whale said in secret"
LISTENING = "0A"


PROGRAM = ("-m", "playhead")
STUCK = """
import threading
from playhead.cli.entry import main
from playhead.engine.engine import Engine
from playhead.serve import run
Engine.step, run.CLOSE_S = lambda engine: threading.Event().wait(), 0.2
main()
"""


@contextmanager
def child(*flags: str, program: tuple[str, ...] = PROGRAM, **environment: str):
    """`playhead serve` in a process of its own. It is killed at the end, if it has not ended by itself."""
    command = [sys.executable, *program, "serve", "--port", "0", *SMALL, *flags]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def port_of(process) -> tuple[int, str]:
    """The port that it says it is served on, and everything that it said before."""
    said = ""
    for line in process.stdout:
        said += line
        found = re.search(r"is served on http://127\.0\.0\.1:(\d+)", line)
        if found:
            return int(found[1]), said
    raise AssertionError(f"it ended: {said}{process.stderr.read()}")


def family_of(pid: int) -> list[int]:
    """A process and those that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family_of(int(child)))]


def num_listening(pid: int) -> int:
    """How many sockets of a process and its children listen for connections of others."""
    inodes = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
        inodes |= {row[9] for row in rows if table.startswith("udp") or row[3] == LISTENING}
    held = [os.readlink(path) for one in family_of(pid) for path in Path(f"/proc/{one}/fd").iterdir() if path.exists()]
    return len({link for link in held if link.removeprefix("socket:[").removesuffix("]") in inodes})


def streamed(port: int, accepted: threading.Semaphore) -> tuple[int, str]:
    """Status and whole text of one streamed request. It is accepted when its status has come."""
    body = {"prompt": SECRET, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        accepted.release()
        return response.status, response.read().decode()


def status_of(port: int, method: str, path: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request(method, path, "{}" if method == "POST" else None, {"Content-Type": "application/json"})
        return connection.getresponse().status


def text_of(events: str) -> str:
    """The text of a stream, however many tokens came in one event."""
    chunks = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


@pytest.mark.parametrize("processes", ["one", "two"])
def test_sigterm_loses_no_request_that_was_accepted(processes):
    accepted = threading.Semaphore(0)
    with child("--log-format", "json", "--process", processes) as process, ThreadPoolExecutor(NUM_REQUESTS) as pool:
        port, said = port_of(process)
        assert ("KV arena" if processes == "one" else "KV memory") in said
        assert num_listening(process.pid) == 1
        requests = [pool.submit(streamed, port, accepted) for _ in range(NUM_REQUESTS)]
        for _ in requests:
            accepted.acquire()
        process.send_signal(signal.SIGTERM)
        refused = status_of(port, "POST", "/v1/completions")
        ready, alive = status_of(port, "GET", "/ready"), status_of(port, "GET", "/health")
        answers = [request.result() for request in requests]
        log = process.stderr.read()
        assert process.wait() == 0
    assert (refused, ready, alive) == (503, 503, 200)
    assert [status for status, _ in answers] == [200] * NUM_REQUESTS
    assert all(text.endswith("data: [DONE]\n\n") and "error" not in text for _, text in answers)
    assert len({text_of(events) for _, events in answers}) == 1
    facts = [json.loads(line) for line in log.splitlines()]
    tokens = [fact["output_tokens"] for fact in facts if fact["event"] == "request" and "output_tokens" in fact]
    assert tokens == [NUM_TOKENS] * NUM_REQUESTS
    assert next(fact for fact in facts if fact["event"] == "stopped")["cut_off"] == 0
    assert "whale" not in log


POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"


def test_a_second_signal_ends_a_server_that_waits_for_a_request():
    app, _ = plain_application(drain_timeout=600.0)
    with listening([app]) as made:
        (port,) = made.ports
        wire = Wire(port, POST % (b"/wait", 2, b"{}"))
        wait_until(lambda: app.num_open > 0)
        made.signal()
        with Wire(port, POST % (b"/echo", 2, b"{}")) as late:
            assert late.response()[0] == 503
        # Leaving sends the second signal, and waits for the end.
    with wire:
        assert wire.to_the_end() == b""


def test_a_server_whose_engine_is_stuck_ends_all_the_same():
    """Its thread cannot be ended, and must not keep the process."""
    body = json.dumps({"prompt": "a", "stream": True}).encode()
    with child("--drain-timeout", "0", "--process", "one", program=("-c", STUCK)) as process:
        port, _ = port_of(process)
        with Wire(port, POST % (b"/v1/completions", len(body), body)) as wire:
            assert wire.sock.recv(1 << 10).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 1
            assert "engine stuck" in process.stderr.read()


@pytest.mark.parametrize("settings", [{"processes": "two"}, {"replicas": 2}], ids=["two processes", "replicas"])
def test_a_signal_while_the_model_loads_ends_a_server_well(settings, monkeypatch):
    """The start that is given up because of the signal is no error of its own."""
    monkeypatch.setattr(engine_child, "END_S", 0.2)  # a process that still imports hears of nothing
    config, before = ServeConfig(port=0, **settings), signal.getsignal(signal.SIGTERM)
    backend = make_backend(config, EngineConfig(device="cpu"))

    def stop():
        wait_until(lambda: signal.getsignal(signal.SIGTERM) is not before)  # the server hears signals from now on
        threading.Event().wait(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    async def never_ready():
        pytest.fail("the model was loaded")

    stopping = threading.Thread(target=stop)
    with bind(config) as sock:
        app = make_application(backend, KeyRing([]), config)
        stopping.start()
        assert run(app, sock, never_ready) == 0
    stopping.join()
    assert backend.state is BackendState.DEAD


def test_a_request_that_outlasts_the_drain_gets_an_error_that_says_so():
    body = json.dumps({"prompt": "a", "max_tokens": 250, "ignore_eos": True, "stream": True}).encode()
    with running(drain_timeout=0.0) as server:
        wire = Wire(server.port, POST % (b"/v1/completions", len(body), body))
        wire.events(2)
    with wire:
        rest = wire.to_the_end()
    assert b'"code":"engine_stopped"' in rest
    assert rest.endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "192.0.2.1"}, "cannot listen"),
        ({"host": "no such host"}, "is no address here"),
        ({"host": "no..host"}, "is no address"),
        ({"host": "a" * 64}, "is no address"),
    ],
)
def test_an_address_that_is_not_here_is_refused_in_words(settings, words):
    with pytest.raises(ConfigError, match=words):
        bind(ServeConfig(port=0, **settings))


def test_a_port_that_is_taken_is_refused_in_words():
    with bind(ServeConfig(port=0)) as taken, pytest.raises(ConfigError, match="Choose another --port"):
        bind(ServeConfig(port=taken.getsockname()[1]))


def test_uvicorn_is_heard_without_its_tracebacks(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("playhead"), "propagate", True)
    hear_uvicorn()
    try:
        raise ValueError("a prompt")
    except ValueError as error:
        logging.getLogger("uvicorn.error").error("Exception in ASGI application\n", exc_info=error)
    (record,) = [one for one in caplog.records if one.name == "playhead.serve.run"]
    assert vars(record)["facts"] == {"said": "Exception in ASGI application", "error": "ValueError"}
    assert record.exc_info is None
    assert not logging.getLogger("uvicorn.error").propagate
