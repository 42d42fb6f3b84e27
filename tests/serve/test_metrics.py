"""`/metrics` shows what was counted, under names that dashboards know, and never what a client wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions
from playhead.engine.snapshot import EngineSnapshot, GraphUse, GroupUse
from playhead.engine.timeline import EngineStats
from playhead.errors import EngineStopped, PlayheadError, QueueFull
from playhead.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.serve.backend import BackendScrape, BackendState, ModelFacts
from playhead.serve.call import Call, Tenant
from playhead.serve.families import FAMILIES, OF_REPLICAS, Kind
from playhead.serve.metrics import MAX_SERIES, bounded, metrics
from playhead.serve.recorder import MeasuredBackend, Recorder, Refusal, Tally, cumulative

FACTS = ModelFacts(
    name="small",
    max_model_len=64,
    vocab_size=16,
    has_chat_template=False,
    default_params=SamplingParams(),
    max_running=4,
    device="cpu",
    dtype="float32",
    fingerprint="f",
)
SNAPSHOT = EngineSnapshot(
    stats=EngineStats(
        num_steps=9,
        num_prompt_tokens=70,
        num_generated_tokens=21,
        num_preemptions=2,
        num_violations=1,
        num_wasted_rows=3,
        modes={"full: a captured size": 6, "eager: graphs are off": 2, "eager: the step has no rows": 1},
    ),
    num_running=3,
    num_waiting=5,
    max_running=4,
    num_slabs=10,
    num_free_slabs=2,
    slab_bytes=200,
    groups=(
        GroupUse(
            name="full",
            window=None,
            page_size=16,
            bytes_per_page=100,
            num_pages=12,
            num_free=4,
            num_available=8,
            num_held=5,
            num_cached=1,
            num_in_flight=1,
            num_quarantined=1,
        ),
        GroupUse(
            name="window",
            window=128,
            page_size=16,
            bytes_per_page=10,
            num_pages=40,
            num_free=10,
            num_available=50,
            num_held=30,
            num_cached=0,
            num_in_flight=0,
            num_quarantined=0,
        ),
    ),
    num_prefix_lookups=4,
    num_asked_pages=9,
    num_hit_pages=3,
    graphs=(
        GraphUse(runner="decode", bucket=4, num_replays=5, num_raw=15, num_padded=20, capture_ms=30.0, num_bytes=7),
        GraphUse(runner="extend", bucket=16, num_replays=1, num_raw=15, num_padded=20, capture_ms=10.0, num_bytes=9),
    ),
    prefix_refusals={"the window has expired": 2},
)


def output_of(*token_counts: int, finished: bool = False, reason: FinishReason | None = None) -> RequestOutput:
    completions = [
        CompletionOutput(index=i, text="secret", token_ids=[7] * count, finish_reason=reason)
        for i, count in enumerate(token_counts)
    ]
    return RequestOutput(
        request_id="secret-id",
        prompt="secret",
        prompt_token_ids=[1, 2, 3, 4, 5],
        outputs=completions,
        finished=finished,
        num_cached_tokens=2,
        metrics=RequestMetrics(arrival_s=1.0, first_token_s=2.0, finished_s=5.0 if finished else None),
    )


@dataclass(kw_only=True)
class Script:
    """A stream that gives these outputs, and then raises `error` if it has one."""

    outputs: list[RequestOutput]
    error: PlayheadError | None = None
    num_closed: int = 0

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        for output in self.outputs:
            yield output
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.num_closed += 1


@dataclass(kw_only=True)
class ScriptedBackend:
    """A backend whose requests are written down beforehand."""

    scripts: list[Script] = field(default_factory=list)
    state: BackendState = BackendState.READY
    facts: ModelFacts = FACTS
    shown: EngineSnapshot | None = SNAPSHOT
    reader: PromptReader | None = None
    retry_after_s: int = 1
    num_restarts: int = 2
    several: BackendScrape | None = None

    async def start(self) -> None:
        return

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> Script:
        if self.state is BackendState.RESTARTING:
            raise EngineStopped("request")
        if not self.scripts:
            raise QueueFull("queue", "0 places", "1", "Send it again later.")
        return self.scripts.pop(0)

    async def snapshot(self, *, after_step: int = 0) -> EngineSnapshot:
        if self.shown is None:
            raise EngineStopped("snapshot")
        return self.shown

    async def scrape(self) -> BackendScrape:
        return self.several or BackendScrape(snapshots={"": await self.snapshot()})

    async def close(self) -> None:
        return


@dataclass(kw_only=True)
class Service:
    recorder: Recorder
    backend: ScriptedBackend


def checked(kind: RequestOutputKind) -> CheckedPrompt:
    return CheckedPrompt(text=None, ids=(1,), params=SamplingParams(output_kind=kind), max_new_tokens=4)


async def read_all(backend: MeasuredBackend, kind: RequestOutputKind) -> list[RequestOutput]:
    return [output async for output in backend.submit("secret-id", checked(kind), RequestOptions())]


def measured(*scripts: Script) -> MeasuredBackend:
    return MeasuredBackend(ScriptedBackend(scripts=list(scripts)), Recorder(routes=frozenset({"/v1/completions"})))


def scrape(recorder: Recorder, backend: ScriptedBackend | None = None) -> str:
    service = Service(recorder=recorder, backend=backend or ScriptedBackend())
    answer = asyncio.run(metrics(service, Call(request_id="secret-id", tenant=Tenant(name="secret", salt="secret"))))
    assert answer.status == 200
    assert answer.content_type.startswith("text/plain")
    return answer.body.decode()


def values(text: str) -> dict[tuple[str, ...], float]:
    """(series, label values in the order of the labels, without the model's name) to value."""
    return {
        (sample.name, *(value for key, value in sample.labels.items() if key != "model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_engines_counters_are_those_of_its_snapshot():
    found = values(scrape(Recorder()))
    wanted = {
        ("vllm:num_requests_running",): 3,
        ("vllm:num_requests_waiting",): 5,
        ("vllm:num_preemptions_total",): 2,
        ("vllm:kv_cache_usage_perc",): pytest.approx(0.5),
        ("vllm:gpu_cache_usage_perc",): pytest.approx(0.5),
        ("playhead_kv_group_usage", "full"): pytest.approx(0.25),
        ("playhead_kv_group_usage", "window"): pytest.approx(0.15),
        ("playhead_kv_memory_bytes", "used"): 1600,
        ("playhead_kv_pages", "full", "quarantined"): 1,
        ("playhead_kv_bytes", "window", "held"): 300,
        ("playhead_prefix_asked_pages_total",): 9,
        ("playhead_prefix_hit_pages_total",): 3,
        ("playhead_kv_window_tokens", "full"): 0,
        ("playhead_kv_window_tokens", "window"): 128,
        ("playhead_steps_total", "full", "a captured size"): 6,
        ("playhead_eager_steps_total", "graphs are off"): 2,
        ("playhead_eager_steps_total", "the step has no rows"): 1,
        ("playhead_graph_replays_total", "4", "decode"): 5,
        ("playhead_graph_bytes", "16", "extend"): 9,
        ("playhead_padding_waste",): 0.25,
        ("playhead_ledger_violations_total",): 1,
        ("playhead_wasted_rows_total",): 3,
        ("playhead_prefix_refusals_total", "the window has expired"): 2,
        ("playhead_engine_answered",): 1,
        ("playhead_engine_state", "ready"): 1,
        ("playhead_engine_state", "dead"): 0,
        ("playhead_engine_restarts_total",): 2,
    }
    assert {key: found[key] for key in wanted} == wanted


def test_every_declared_metric_is_shown_and_no_other():
    recorder = Recorder(routes=frozenset({"/x"}))
    recorder.responded("/x", 200)
    recorder.refused(Refusal.QUEUE_FULL)
    recorder.finished[FinishReason.STOP] += 1
    shown = {key[0] for key in values(scrape(recorder))}
    assert shown == {name for family in FAMILIES for name in family.series}


def test_an_engine_that_does_not_answer_takes_only_its_own_metrics_away():
    found = values(scrape(Recorder(num_generated_tokens=4), ScriptedBackend(shown=None)))
    assert found["playhead_engine_answered",] == 0
    assert found["vllm:generation_tokens_total",] == 4
    assert ("vllm:num_requests_running",) not in found


def test_engines_of_several_replicas_are_told_apart_by_a_label():
    other = replace(SNAPSHOT, num_running=SNAPSHOT.num_running + 5)
    several = BackendScrape(
        snapshots={"r0": SNAPSHOT, "r3": other},
        replicas={"serving": 2, "starting": 1},
        routed={"prefix": 7},
        num_moved=4,
    )
    found = values(scrape(Recorder(), ScriptedBackend(several=several)))
    assert found["vllm:num_requests_running", "r0"] == SNAPSHOT.num_running
    assert found["vllm:num_requests_running", "r3"] == SNAPSHOT.num_running + 5
    assert found["playhead_replicas", "serving"] == 2
    assert found["playhead_routed_total", "prefix"] == 7
    assert found["playhead_moved_sequences_total",] == 4
    assert {key[0] for key in found} >= {name for family in OF_REPLICAS for name in family.series}


def test_an_engine_that_starts_is_not_asked_for_its_name():
    text = scrape(Recorder(), ScriptedBackend(state=BackendState.STARTING, facts=None, shown=None))
    assert 'playhead_engine_state{model_name="",state="starting"} 1.0' in text


def test_a_stream_counts_each_token_once_whatever_its_outputs_hold():
    backend = measured(
        Script(outputs=[output_of(1), output_of(2), output_of(4, finished=True, reason=FinishReason.LENGTH)]),
        Script(outputs=[output_of(1), output_of(1), output_of(2, finished=True, reason=FinishReason.STOP)]),
        Script(outputs=[output_of(4, finished=True, reason=FinishReason.STOP)]),
    )
    for kind in (RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY):
        asyncio.run(read_all(backend, kind))
    recorder = backend.recorder
    assert recorder.num_generated_tokens == 12
    assert recorder.num_prompt_tokens == 15
    assert recorder.num_cached_tokens == 6
    assert sum(recorder.first_token_s.counts) == 3
    assert sum(recorder.between_tokens_s.counts) == 9
    assert sum(recorder.whole_s.counts) == 3
    assert sum(recorder.per_output_token_s.counts) == 3
    assert recorder.generated_tokens.total == 12
    assert recorder.finished == {FinishReason.LENGTH: 1, FinishReason.STOP: 2}


def test_a_request_that_does_not_stream_has_the_engines_times():
    """Five tokens in three seconds after the first: four gaps of 0.75 s."""
    backend = measured(Script(outputs=[output_of(5, finished=True, reason=FinishReason.STOP)]))
    asyncio.run(read_all(backend, RequestOutputKind.FINAL_ONLY))
    gaps = backend.recorder.between_tokens_s
    assert gaps.total == pytest.approx(3.0)
    assert sum(gaps.counts) == 4


def test_tokens_that_a_late_reader_gets_with_the_first_one_are_counted():
    backend = measured(Script(outputs=[output_of(3), output_of(3, finished=True, reason=FinishReason.LENGTH)]))
    asyncio.run(read_all(backend, RequestOutputKind.CUMULATIVE))
    gaps = backend.recorder.between_tokens_s
    assert (sum(gaps.counts), gaps.total) == (2, 0.0)


def test_samples_that_advance_together_have_the_same_gaps_as_one():
    backend = measured(Script(outputs=[output_of(3, 3, finished=True, reason=FinishReason.STOP)]))
    asyncio.run(read_all(backend, RequestOutputKind.FINAL_ONLY))
    gaps = backend.recorder.between_tokens_s
    assert sum(gaps.counts) == 4
    assert gaps.total / 4 == pytest.approx(1.5)


def test_a_request_ends_once_by_its_last_output_its_error_or_its_close():
    scripts = [
        Script(outputs=[output_of(1, finished=True, reason=FinishReason.STOP)]),
        Script(outputs=[output_of(1)], error=EngineStopped("x")),
        Script(outputs=[output_of(1)]),
    ]
    backend = measured(*scripts)

    async def run() -> None:
        for script in scripts:
            stream = backend.submit("r", checked(RequestOutputKind.DELTA), RequestOptions())
            try:
                async for _ in stream:
                    pass
            except EngineStopped:
                assert script.error is not None
            stream.close()
            stream.close()

    asyncio.run(run())
    assert [script.num_closed for script in scripts] == [2, 2, 2]
    assert backend.recorder.finished == {FinishReason.STOP: 1, FinishReason.ERROR: 1, FinishReason.ABORT: 1}
    assert sum(backend.recorder.whole_s.counts) == 1


def test_a_full_queue_is_counted_and_raised():
    backend = measured()
    with pytest.raises(QueueFull):
        backend.submit("r", checked(RequestOutputKind.DELTA), RequestOptions())
    assert backend.recorder.refused_by == {Refusal.QUEUE_FULL: 1}


def test_a_request_that_finds_no_engine_is_counted_and_raised():
    backend = MeasuredBackend(ScriptedBackend(state=BackendState.RESTARTING), Recorder())
    with pytest.raises(EngineStopped):
        backend.submit("r", checked(RequestOutputKind.DELTA), RequestOptions())
    assert backend.recorder.refused_by == {Refusal.NO_ENGINE: 1}


def test_a_path_that_a_client_invents_is_no_label():
    recorder = Recorder(routes=frozenset({"/v1/completions"}))
    recorder.responded("/v1/completions", 200)
    for i in range(500):
        recorder.responded(f"/secret/{i}", 404)
    found = {key: value for key, value in values(scrape(recorder)).items() if key[0] == "playhead_http_responses_total"}
    assert {key[1:]: value for key, value in found.items()} == {("/v1/completions", "200"): 1, ("other", "404"): 500}


def test_nothing_a_client_wrote_is_shown():
    backend = measured(Script(outputs=[output_of(1), output_of(2, finished=True, reason=FinishReason.STOP)]))
    asyncio.run(read_all(backend, RequestOutputKind.CUMULATIVE))
    assert "secret" not in scrape(backend.recorder)


def test_series_beyond_the_bound_are_added_up():
    listed = bounded([((f"{i}", "x"), 1.0) for i in range(MAX_SERIES + 72)])
    assert len(listed) == MAX_SERIES
    assert listed[-1] == (("other", "other"), 73.0)
    assert sum(value for _, value in listed) == MAX_SERIES + 72


def test_a_value_on_an_edge_counts_below_it():
    tally = Tally((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        tally.add(value)
    assert list(cumulative(tally)) == [(1.0, 2), (2.0, 4)]
    assert tally.counts[-1] == 1


def test_families_have_unique_names_and_counters_end_in_total():
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert all(family.name.endswith("_total") == (family.kind is Kind.COUNTER) for family in FAMILIES)


def test_facts_of_another_model_change_the_label():
    backend = ScriptedBackend(facts=replace(FACTS, name="other-model"))
    assert 'vllm:num_requests_running{model_name="other-model"} 3.0' in scrape(Recorder(), backend)
