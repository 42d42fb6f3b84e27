"""One load at one rate, or at several: plan, send, watch the server's metrics, add up."""

from __future__ import annotations

import asyncio
import json
import math
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from playhead import __version__
from playhead.errors import ConfigError
from playhead.load.client import Load, SendOptions, Target, fetch
from playhead.load.exchange import Exchange
from playhead.load.figures import Slo, answered, figures_of, window_of
from playhead.load.plan import plan_requests
from playhead.load.results import LoadResult, RunResult
from playhead.load.scrape import Watcher, totals
from playhead.load.spec import Endpoint, LoadSpec

OnTick = Callable[[float, Load], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is asked of whom, and how the answers are judged."""

    target: Target
    model: str
    spec: LoadSpec
    endpoint: Endpoint = Endpoint.COMPLETIONS
    slo: Slo = field(default_factory=Slo)
    give_up_after_s: float = 600.0
    max_concurrency: int | None = None


async def measure(asked: Measure, on_tick: OnTick = lambda rate, load: None) -> LoadResult:
    """A run for each rate, one after the other."""
    runs = [await one_run(asked, rate, on_tick) for rate in asked.spec.rates]
    return LoadResult(
        url=asked.target.url,
        model=asked.model,
        slo=asked.slo,
        spec=asdict(asked.spec),
        runs=tuple(runs),
        facts={
            "endpoint": str(asked.endpoint),
            "max_concurrency": asked.max_concurrency,
            "give_up_after_s": asked.give_up_after_s,
            "client": f"playhead {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores",
        },
    )


async def one_run(asked: Measure, rate: float, on_tick: OnTick) -> RunResult:
    """Send the requests of one rate and add up what came of them."""
    spec = asked.spec
    requests = plan_requests(spec, rate, model=asked.model, endpoint=asked.endpoint)
    exchanges = [Exchange(request) for request in requests]
    options = SendOptions(
        path=asked.endpoint.path, give_up_after_s=asked.give_up_after_s, max_concurrency=asked.max_concurrency
    )
    load, watcher = Load(asked.target, exchanges, options), Watcher(asked.target)
    await watcher.sample()
    watching = asyncio.create_task(watcher.run())
    watcher.restart_clock()
    try:
        await load.run(lambda load: on_tick(rate, load))
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    await watcher.sample()
    ended = tuple(answered(exchange, load.started_s) for exchange in exchanges)
    window = window_of(ended, warmup_s=spec.warmup, duration_s=spec.duration)
    return RunResult(
        rate=None if math.isinf(rate) else rate,
        window=window,
        figures=figures_of(ended, window, asked.slo),
        requests=ended,
        samples=tuple(watcher.samples),
        server=totals(watcher.samples),
    )


async def served_model(target: Target) -> str:
    """The name of the first model that a server lists."""
    found = await fetch(target, "/v1/models")
    if found.status != 200:
        why = found.error or f"status {found.status}"
        raise ConfigError(f"{target.url}/v1/models: {why}. Check --base-url and the key, or give --model.")
    try:
        return str(json.loads(found.content)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise ConfigError(f"{target.url}/v1/models: found no list of models. Give --model.") from None
