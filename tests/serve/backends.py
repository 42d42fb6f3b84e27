"""Both kinds of backend over the embedded model, and a clock that a test sets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from playhead.engine.config import EngineConfig
from playhead.engine.front import RequestOptions
from playhead.sampling_params import SamplingParams
from playhead.scale.fleet import FleetConfig
from playhead.scale.launch import LocalLauncher
from playhead.scale.replicas import ReplicatedBackend
from playhead.serve import wire
from playhead.serve.limits import ServeLimits
from playhead.serve.local import LocalBackend
from playhead.serve.remote import RemoteBackend


def two_replicas(model, config, limits=None, **clock):
    """Two engines behind one backend. As many requests fit as into one engine: fewer wait, because more run."""
    limits = limits or ServeLimits()
    if limits.max_queued_requests is not None:
        limits = replace(limits, max_queued_requests=limits.max_queued_requests - config.max_num_seqs)
    begin = wire.Begin(model, wire.config_fields(config), None)
    return ReplicatedBackend(LocalLauncher(config), begin, limits, FleetConfig(num_replicas=2), **clock)


KINDS = {"local": LocalBackend, "remote": RemoteBackend, "replicas": two_replicas}
CONFIG = EngineConfig(max_model_len=512, max_num_seqs=4, kv_memory_bytes=1 << 23, seed=3, device="cpu")
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)


class HandClock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def submitted(backend, request_id, prompt, params):
    return backend.submit(request_id, backend.reader.check(prompt, params), RequestOptions())


async def outputs_of(stream):
    return [output async for output in stream]


async def last(backend, prompt, params, request_id="r"):
    return (await outputs_of(submitted(backend, request_id, prompt, params)))[-1]


async def first_of(stream):
    """Its first output. The stream stays open."""
    async for output in stream:
        return output
    raise AssertionError("a stream without outputs")


async def until(is_so):
    """Wait for something that other processes do."""
    while not is_so():
        await asyncio.sleep(0.01)


async def both_serve(backend):
    """Wait until two replicas are there."""
    await until(lambda: len(backend.fleet.engines) == 2)


def busiest(backend):
    """The replica with the most sequences."""
    return max(backend.fleet.engines.values(), key=lambda engine: len(engine.samples))
