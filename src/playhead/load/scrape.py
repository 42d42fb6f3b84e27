"""The server's own metrics during a load, from `/metrics`, where the server has it: graph hits, memory, queues."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from playhead.load.client import Target, fetch
from playhead.load.results import Sample

EVERY_S = 1.0
MAX_BYTES = 4 << 20
LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "playhead_padding_waste": "padding_waste",
    "playhead_open_streams": "open_streams",
}
COUNTERS = {
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:num_preemptions_total": "preemptions",
    "playhead_steps_total": "steps",
    "playhead_eager_steps_total": "eager_steps",
    "playhead_ledger_violations_total": "ledger_violations",
    "playhead_wasted_rows_total": "wasted_rows",
}
HELD = "kv_held_bytes"


def series(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of each line of Prometheus' text format."""
    for line in text.splitlines():
        found = None if line.startswith("#") else LINE.fullmatch(line)
        if found is not None:
            name, labels, value = found.groups()
            try:
                yield name, dict(LABEL.findall(labels or "")), float(value)
            except ValueError:
                continue


def read_metrics(text: str) -> dict[str, float]:
    """The metrics that a report shows, summed over their labels; bytes of KV pages by group."""
    values: dict[str, float] = {}
    for name, labels, value in series(text):
        key = GAUGES.get(name) or COUNTERS.get(name)
        if name == "playhead_kv_bytes" and labels.get("state") == "held":
            key = f"{HELD}.{labels.get('group', '')}"
        elif name == "playhead_graph_bytes":
            key = "graph_bytes"
        if key is not None:
            values[key] = values.get(key, 0.0) + value
    return values


class Watcher:
    """Reads `/metrics` once a second while a load runs, unless the server has none."""

    def __init__(self, target: Target) -> None:
        self._target, self.samples = target, list[Sample]()
        self._started_s = time.perf_counter()

    async def sample(self) -> bool:
        """Whether the server has metrics that are known here."""
        found = await fetch(self._target, "/metrics")
        content = found.content
        if found.status != 200 or len(content) > MAX_BYTES:
            return False
        values = read_metrics(content.decode("utf-8", "replace"))
        if values:
            self.samples.append(Sample(at_s=round(time.perf_counter() - self._started_s, 3), values=values))
        return bool(values)

    async def run(self) -> None:
        """Until it is cancelled."""
        while await self.sample():
            await asyncio.sleep(EVERY_S)

    def restart_clock(self) -> None:
        """Moments count from here."""
        self._started_s = time.perf_counter()


def totals(samples: list[Sample]) -> dict[str, Any]:
    """What happened between the first and the last sample, and the most that was held."""
    if len(samples) < 2:
        return {}
    first, last = samples[0].values, samples[-1].values
    grown = {key: last[key] - first.get(key, 0.0) for key in COUNTERS.values() if key in last}
    found: dict[str, Any] = {key: value for key, value in grown.items() if value >= 0}
    if grown.get("steps"):
        found["graph_hit_share"] = 1 - grown.get("eager_steps", 0.0) / grown["steps"]
    if grown.get("prefix_queries"):
        found["prefix_hit_share"] = grown.get("prefix_hits", 0.0) / grown["prefix_queries"]
    found["max_kv_usage"] = max((sample.values.get("kv_usage", 0.0) for sample in samples), default=0.0)
    found["max_kv_held_bytes"] = max(held_bytes(sample.values) for sample in samples)
    found["graph_bytes"] = last.get("graph_bytes", 0.0)
    return found


def held_bytes(values: Mapping[str, float]) -> float:
    return sum(value for key, value in values.items() if key.startswith(HELD))
