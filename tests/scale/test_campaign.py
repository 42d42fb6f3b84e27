"""Replicas under load, killed, added, taken away and cut off: on processes of this machine, and on a Ray cluster of its
own.

`PLAYHEAD_SCALE=full python -m pytest tests/scale` runs it; Ray's part needs playhead[ray]. The plain suite has the same
behaviour one request at a time (tests/serve/test_replicas.py). `python -m bench.replicas` prints the times.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import uvloop

from bench.replicas import ENGINE, campaign, lost_networks, stage
from playhead.scale import app
from playhead.scale.fleet import FleetConfig
from playhead.serve.config import ServeConfig
from playhead.testing.namespaces import why_none

IS_FULL = os.environ.get("PLAYHEAD_SCALE") == "full"
NO_NAMESPACES = why_none() if IS_FULL else None
HAS_RAY = importlib.util.find_spec("ray") is not None
KEY = "alice-0123456789abcdef"
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="playhead[ray] is not installed")
pytestmark = [
    pytest.mark.scale,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.skipif(not IS_FULL, reason="a campaign: PLAYHEAD_SCALE=full"),
]


@pytest.fixture
def loop():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


@pytest.mark.parametrize("on_ray", [False, pytest.param(True, marks=needs_ray)], ids=["local", "ray"])
def test_nothing_is_lost_and_no_token_differs_whatever_happens_to_replicas(loop, on_ray):
    start, prefixes, *runs = loop.run(campaign(on_ray, 10))
    assert start.num_lost == 0
    assert {run.name: (run.num_lost, run.num_wrong) for run in runs} == {run.name: (0, 0) for run in runs}
    assert all(run.num_done >= 64 for run in runs)
    assert float(prefixes.notes["found cached"].partition("%")[0]) >= 95


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=f"no network namespaces: {NO_NAMESPACES}")
def test_nothing_is_lost_and_no_token_differs_when_a_replicas_network_is_lost(loop):
    """Nothing is acknowledged any more, and nobody is told. Engines that are out of reach end by themselves."""
    quiet, lost = loop.run(lost_networks(3))
    assert (quiet.num_lost, lost.num_lost, lost.num_wrong) == (0, 0, 0)
    assert int(lost.notes["replicas lost"]) >= 3
    assert lost.notes["did not end by themselves"] == "0"


def listening_on_all_addresses(pids: set[int]) -> list[str]:
    """Sockets of these processes that listen on every address: local addresses of nothing but zeros."""
    mine = {
        os.readlink(link).removeprefix("socket:[").removesuffix("]")
        for pid in pids
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if os.path.islink(link) and os.readlink(link).startswith("socket:")
    }
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and inode in mine and not local.partition(":")[0].strip("0"):
                found.append(local)
    return found


def descendants(pid: int) -> set[int]:
    """A process and all that it started."""
    found = {pid}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found |= descendants(child)
    return found


@needs_ray
def test_a_cluster_that_is_started_here_listens_on_no_address_that_others_reach(loop):
    async def look():
        async with stage(True, FleetConfig(num_replicas=1)) as where:
            return where.port, listening_on_all_addresses(descendants(os.getpid()))

    port, found = loop.run(look())
    assert port
    assert found == []


@needs_ray
def test_those_who_run_ray_serve_get_the_same_server(monkeypatch, tmp_path):
    import ray
    from ray import serve

    keys = tmp_path / "keys"
    keys.write_text(f"alice:{KEY}\n")
    keys.chmod(0o600)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]

    def post(key, **fields):
        body = json.dumps({"model": "embedded", "prompt": "The whale", "max_tokens": 8, "seed": 1, **fields}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    ray.init(include_dashboard=False, num_cpus=0, log_to_driver=False, _node_ip_address="127.0.0.1")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(app(ServeConfig(replicas=2, api_key_file=str(keys)), ENGINE))
        assert post("wrong")[0] == 401
        status, whole = post(KEY)
        assert status == 200
        status, events = post(KEY, stream=True)
        parts = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
        text = "".join(choice["text"] for part in parts for choice in part["choices"])
        assert (status, text) == (200, json.loads(whole)["choices"][0]["text"])
    finally:
        serve.shutdown()
        ray.shutdown()
