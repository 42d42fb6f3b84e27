"""`/metrics`: what the recorder counted and what the engine says at this moment, as Prometheus reads it. No torch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from playhead.engine.snapshot import EngineSnapshot, GraphUse, GroupUse
from playhead.errors import EngineStopped, PlayheadError
from playhead.serve import families as f
from playhead.serve.backend import Backend, BackendScrape, BackendState
from playhead.serve.call import Answer, Call
from playhead.serve.recorder import OTHER, Recorder, Tally, cumulative
from playhead.types import Mode

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SNAPSHOT_TIMEOUT_S = 2.0
"""A wedged engine does not answer. Its scrape still shows what the HTTP side counted."""

MAX_SERIES = 128
"""Of one metric. Labels come from the engine's own words and sizes; this bounds them if those should ever grow."""

Value = tuple[tuple[str, ...], float]
"""Label values, and the value."""


class MeteredService(Protocol):
    """What the route needs of the service: who counts, and whom to ask."""

    @property
    def recorder(self) -> Recorder: ...

    @property
    def backend(self) -> Backend: ...


async def metrics(service: MeteredService, call: Call) -> Answer:
    """`GET /metrics`."""
    body = await exposition(service.recorder, service.backend)
    return Answer(body=body, content_type=CONTENT_TYPE)


async def exposition(recorder: Recorder, backend: Backend) -> bytes:
    """All metrics as text. Those of the engine are absent while the engine does not answer."""
    state, scraped = backend.state, None
    if state in (BackendState.READY, BackendState.WEDGED):
        try:
            async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
                scraped = await backend.scrape()
        except (PlayheadError, TimeoutError):
            scraped = None
    try:
        name = "" if state is BackendState.STARTING else backend.facts.name
    except EngineStopped:  # closed before it had one
        name = ""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape(name, recorder, backend, scraped))
    return generate_latest(registry)


class Scrape(Collector):
    """One scrape's metrics."""

    def __init__(self, name: str, recorder: Recorder, backend: Backend, scraped: BackendScrape | None) -> None:
        self._name, self._recorder, self._backend, self._scraped = name, recorder, backend, scraped

    def collect(self) -> Iterator[Metric]:
        for family, tally in histograms(self._recorder):
            yield self._histogram(family, tally)
        known = [*recorded(self._recorder), *self._engine_state()]
        if self._scraped is not None:
            known += of_engines(self._scraped)
        for family, values in known:
            yield self._values(family, values)

    def _engine_state(self) -> Known:
        state = self._backend.state
        yield f.STATE, [((str(word),), float(word is state)) for word in BackendState]
        yield f.SCRAPED, one(self._scraped is not None)
        yield f.RESTARTS, one(self._backend.num_restarts)

    def _histogram(self, family: f.Family, tally: Tally) -> Metric:
        made = HistogramMetricFamily(family.name, family.help, labels=["model_name"])
        count = sum(tally.counts)
        buckets = [*((format(edge, "g"), seen) for edge, seen in cumulative(tally)), ("+Inf", count)]
        made.add_metric([self._name], buckets=buckets, sum_value=tally.total)
        return made

    def _values(self, family: f.Family, values: Iterable[Value]) -> Metric:
        kind = CounterMetricFamily if family.kind is f.Kind.COUNTER else GaugeMetricFamily
        made = kind(family.name, family.help, labels=["model_name", *family.labels])
        for labels, value in bounded(values):
            made.add_metric([self._name, *labels], value)
        return made


Known = Iterator[tuple[f.Family, Iterable[Value]]]


def histograms(recorder: Recorder) -> Iterator[tuple[f.Family, Tally]]:
    yield f.FIRST_TOKEN, recorder.first_token_s
    yield f.BETWEEN_TOKENS, recorder.between_tokens_s
    yield f.BETWEEN_TOKENS_OLD, recorder.between_tokens_s
    yield f.PER_OUTPUT_TOKEN, recorder.per_output_token_s
    yield f.WHOLE, recorder.whole_s
    yield f.REQUEST_PROMPT, recorder.prompt_tokens
    yield f.REQUEST_GENERATED, recorder.generated_tokens


def recorded(recorder: Recorder) -> Known:
    """Counters of the HTTP side."""
    yield f.PROMPT_TOKENS, one(recorder.num_prompt_tokens)
    yield f.GENERATED_TOKENS, one(recorder.num_generated_tokens)
    yield f.PREFIX_QUERIES, one(recorder.num_prompt_tokens)
    yield f.PREFIX_HITS, one(recorder.num_cached_tokens)
    yield f.FINISHED, by_word(recorder.finished.items())
    yield f.OPEN_STREAMS, one(recorder.num_open_streams)
    yield f.RESPONSES, [((route, str(status)), count) for (route, status), count in recorder.responses.items()]
    yield f.REFUSED, by_word(recorder.refused_by.items())


def of_engines(scraped: BackendScrape) -> Known:
    """What each engine says. Several engines are told apart by the label `replica`."""
    if not scraped.replicas:
        yield from of_engine(scraped.snapshots[""])
        return
    yield f.REPLICAS, by_word(scraped.replicas.items())
    yield f.ROUTED, by_word(scraped.routed.items())
    yield f.MOVED, one(scraped.num_moved)
    found: dict[f.Family, list[Value]] = {}
    for name, snapshot in scraped.snapshots.items():
        for family, values in of_engine(snapshot):
            found.setdefault(family, []).extend(((name, *labels), value) for labels, value in values)
    for family, together in found.items():
        yield replace(family, labels=("replica", *family.labels)), together


def of_engine(snapshot: EngineSnapshot) -> Known:
    """What one engine says."""
    yield from steps(snapshot)
    yield from kv(snapshot)
    yield from graphs(snapshot.graphs)


def steps(snapshot: EngineSnapshot) -> Known:
    """What the engine did and has to do."""
    stats = snapshot.stats
    modes = [(*mode.partition(": ")[::2], count) for mode, count in stats.modes.items()]
    yield f.RUNNING, one(snapshot.num_running)
    yield f.WAITING, one(snapshot.num_waiting)
    yield f.MAX_RUNNING, one(snapshot.max_running)
    yield f.PREEMPTIONS, one(stats.num_preemptions)
    yield f.STEPS, [((mode, reason), count) for mode, reason, count in modes]
    yield f.EAGER_STEPS, [((reason,), count) for mode, reason, count in modes if mode == Mode.EAGER]
    yield f.STEP_PROMPT_TOKENS, one(stats.num_prompt_tokens)
    yield f.STEP_GENERATED_TOKENS, one(stats.num_generated_tokens)
    yield f.WASTED_ROWS, one(stats.num_wasted_rows)
    yield f.FAILED, one(stats.num_failed_requests)
    yield f.VIOLATIONS, one(stats.num_violations)
    yield f.PREFIX_LOOKUPS, one(snapshot.num_prefix_lookups)
    yield f.PREFIX_ASKED, one(snapshot.num_asked_pages)
    yield f.PREFIX_FOUND, one(snapshot.num_hit_pages)
    yield f.PREFIX_REFUSALS, by_word(snapshot.prefix_refusals.items())


def kv(snapshot: EngineSnapshot) -> Known:
    """KV memory. Groups share slabs, so shares are of all bytes, and not of the pages that a group has now."""
    groups = snapshot.groups
    total, free = (count * snapshot.slab_bytes for count in (snapshot.num_slabs, snapshot.num_free_slabs))
    can_take = free + sum((group.num_free + group.num_cached) * group.bytes_per_page for group in groups)
    usage = max(0.0, 1 - can_take / total) if total else 0.0
    yield f.KV_USAGE, one(usage)
    yield f.KV_USAGE_OLD, one(usage)
    held = [(group.name, group.num_held * group.bytes_per_page / max(1, total)) for group in groups]
    yield f.KV_GROUP_USAGE, by_word(held)
    yield f.KV_WINDOW, [((group.name,), group.window or 0) for group in groups]
    yield f.KV_MEMORY, by_word([("used", total - free), ("free", free)])
    pages = [(group, state, count) for group in groups for state, count in page_counts(group).items()]
    yield f.KV_PAGES, [((group.name, state), count) for group, state, count in pages]
    yield f.KV_BYTES, [((group.name, state), count * group.bytes_per_page) for group, state, count in pages]


def page_counts(group: GroupUse) -> dict[str, int]:
    return {
        "free": group.num_free,
        "held": group.num_held,
        "cached": group.num_cached,
        "in_flight": group.num_in_flight,
        "quarantined": group.num_quarantined,
    }


def graphs(used: tuple[GraphUse, ...]) -> Known:
    """Captured graphs, by runner and size."""
    labels = [(graph.runner, str(graph.bucket)) for graph in used]
    raw, padded = sum(graph.num_raw for graph in used), sum(graph.num_padded for graph in used)
    yield f.PADDING_WASTE, one(1 - raw / padded if padded else 0)
    for family, values in (
        (f.GRAPH_REPLAYS, [graph.num_replays for graph in used]),
        (f.GRAPH_RAW, [graph.num_raw for graph in used]),
        (f.GRAPH_PADDED, [graph.num_padded for graph in used]),
        (f.GRAPH_BYTES, [graph.num_bytes for graph in used]),
        (f.GRAPH_CAPTURE, [graph.capture_ms / 1e3 for graph in used]),
    ):
        yield family, list(zip(labels, values, strict=True))


def one(value: float) -> list[Value]:
    """The value of a metric that has one series."""
    return [((), float(value))]


def by_word(values: Iterable[tuple[str, float]]) -> list[Value]:
    return [((str(word),), float(value)) for word, value in values]


def bounded(values: Iterable[Value]) -> list[Value]:
    """At most `MAX_SERIES` series: what is beyond is added up under the label `other`."""
    listed = list(values)
    if len(listed) <= MAX_SERIES:
        return listed
    kept, rest = listed[: MAX_SERIES - 1], listed[MAX_SERIES - 1 :]
    return [*kept, ((OTHER,) * len(rest[0][0]), sum(value for _, value in rest))]
