"""A span says when a request began, had its first token and ended, and how many tokens it had. Never what it said."""

from __future__ import annotations

import sys

import pytest

from playhead.errors import ConfigError
from playhead.outputs import FinishReason
from playhead.sampling_params import RequestOutputKind
from playhead.serve.recorder import Ended, Recorder, RequestWatch
from playhead.serve.traces import exporting_spans, spans_by
from tests.serve.test_metrics import output_of


def test_the_end_of_a_request_is_told_once_with_its_counts():
    told: list[Ended] = []
    watch = RequestWatch(Recorder(on_end=told.append), "r1", RequestOutputKind.DELTA)
    watch.saw(output_of(1))
    watch.saw(output_of(2, finished=True, reason=FinishReason.LENGTH))
    watch.end(FinishReason.ABORT)
    (one,) = told
    assert (one.request_id, one.why) == ("r1", FinishReason.LENGTH)
    assert (one.num_prompt_tokens, one.num_cached_tokens, one.num_generated_tokens) == (5, 2, 3)
    assert one.begun_s <= one.first_s <= one.ended_s


def test_a_request_without_a_token_has_no_first_one():
    told: list[Ended] = []
    RequestWatch(Recorder(on_end=told.append), "r1", RequestOutputKind.DELTA).end(FinishReason.ABORT)
    assert [one.first_s for one in told] == [None]


def test_without_the_packages_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"playhead\[otel\]"):
        exporting_spans("m")


def test_a_span_has_the_requests_times_and_counts():
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tell = spans_by(provider.get_tracer("test"), "small")
    facts = {
        "num_prompt_tokens": 5,
        "num_cached_tokens": 2,
        "num_generated_tokens": 3,
        "begun_s": 10.0,
        "ended_s": 12.0,
    }
    tell(Ended(request_id="r1", why=FinishReason.STOP, first_s=10.5, **facts))
    tell(Ended(request_id="r2", why=FinishReason.ERROR, first_s=None, **facts))
    good, bad = exporter.get_finished_spans()
    assert good.end_time - good.start_time == pytest.approx(2e9)
    assert [event.timestamp - good.start_time for event in good.events] == [pytest.approx(5e8)]
    assert good.attributes["gen_ai.usage.output_tokens"] == 3
    assert good.attributes["gen_ai.request.model"] == "small"
    assert good.attributes["playhead.request_id"] == "r1"
    assert (good.status.is_ok, bad.status.is_ok, bad.events) == (True, False, ())
