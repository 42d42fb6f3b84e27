"""A span of OpenTelemetry for every request, if it is asked for: when it began, its first token, its end, its tokens.

The extra `otel` has the packages. Where spans go is said by OpenTelemetry's own variables, OTEL_EXPORTER_OTLP_ENDPOINT
above all. A span has no prompt, no text and no key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from playhead.errors import ConfigError
from playhead.outputs import FinishReason
from playhead.serve.recorder import Ended

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SERVICE = "playhead"
NO_PACKAGES = "otel: the opentelemetry packages are not installed. Install playhead[otel]."


def exporting_spans(model: str) -> Callable[[Ended], None]:
    """Make spans and send them in the background, a batch at a time."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(NO_PACKAGES) from None
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return spans_by(provider.get_tracer(SERVICE), model)


def spans_by(tracer: Tracer, model: str) -> Callable[[Ended], None]:
    """Make each span when its request has ended: until then nothing is kept for it."""
    from opentelemetry.trace import Status, StatusCode

    epoch_ns = time.time_ns() - time.perf_counter_ns()

    def at_ns(seconds: float) -> int:
        return epoch_ns + int(seconds * 1e9)

    def ended(one: Ended) -> None:
        span = tracer.start_span("generate", start_time=at_ns(one.begun_s))
        span.set_attributes(
            {
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.model": model,
                "gen_ai.response.finish_reasons": (str(one.why),),
                "gen_ai.usage.input_tokens": one.num_prompt_tokens,
                "gen_ai.usage.output_tokens": one.num_generated_tokens,
                "playhead.cached_tokens": one.num_cached_tokens,
                "playhead.request_id": one.request_id,
            }
        )
        if one.first_s is not None:
            span.add_event("first token", timestamp=at_ns(one.first_s))
        if one.why is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=at_ns(one.ended_s))

    return ended
