"""Every metric that `/metrics` shows: name, kind, labels, meaning. The documents and the dashboard's test read this.

Names with `vllm:` are vLLM's, so that dashboards made for vLLM work. The others have what vLLM has no name for.
No label ever holds a prompt, a key or a request id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What Prometheus calls a metric's type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric. Each also has the label `model_name`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series, as a query writes them."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


def counter(name: str, text: str, *labels: str) -> Family:
    return Family(name=f"{name}_total", kind=Kind.COUNTER, help=text, labels=labels)


def gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name=name, kind=Kind.GAUGE, help=text, labels=labels)


def histogram(name: str, text: str) -> Family:
    return Family(name=name, kind=Kind.HISTOGRAM, help=text)


PROMPT_TOKENS = counter("vllm:prompt_tokens", "Prompt tokens of requests that began, cached ones included.")
GENERATED_TOKENS = counter("vllm:generation_tokens", "Tokens generated for requests.")
PREFIX_QUERIES = counter("vllm:prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache.")
PREFIX_HITS = counter("vllm:prefix_cache_hits", "Prompt tokens that were found in the prefix cache.")
FINISHED = counter(
    "vllm:request_success", "Requests that ended, by reason: stop, length, abort, error.", "finished_reason"
)
FIRST_TOKEN = histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.")
BETWEEN_TOKENS = histogram(
    "vllm:inter_token_latency_seconds",
    "Between a request's tokens. A request that does not stream counts with its mean.",
)
BETWEEN_TOKENS_OLD = histogram(
    "vllm:time_per_output_token_seconds", "The older name of vllm:inter_token_latency_seconds."
)
PER_OUTPUT_TOKEN = histogram(
    "vllm:request_time_per_output_token_seconds", "Mean time per token after the first, of each finished request."
)
WHOLE = histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.")
REQUEST_PROMPT = histogram("vllm:request_prompt_tokens", "Prompt tokens of each request that began.")
REQUEST_GENERATED = histogram("vllm:request_generation_tokens", "Generated tokens of each finished request.")

RUNNING = gauge("vllm:num_requests_running", "Sequences that run.")
WAITING = gauge("vllm:num_requests_waiting", "Sequences that wait in the queue.")
KV_USAGE = gauge(
    "vllm:kv_cache_usage_perc", "Share of KV memory that no request can take now: 0 to 1. Cached pages count as free."
)
KV_USAGE_OLD = gauge("vllm:gpu_cache_usage_perc", "The older name of vllm:kv_cache_usage_perc.")
PREEMPTIONS = counter("vllm:num_preemptions", "Requests that lost their KV pages to others and were queued again.")

STATE = gauge("playhead_engine_state", "1 for the state the engine is in, 0 for the others.", "state")
SCRAPED = gauge("playhead_engine_answered", "1 if the engine answered this scrape; its metrics are absent if it is 0.")
RESTARTS = counter("playhead_engine_restarts", "Engine processes that died and were replaced.")
OPEN_STREAMS = gauge("playhead_open_streams", "Streams of events that are being sent.")
RESPONSES = counter("playhead_http_responses", "HTTP responses, by matched route and status.", "route", "status")
REFUSED = counter("playhead_requests_refused", "Requests that were refused, by reason.", "reason")

MAX_RUNNING = gauge("playhead_max_requests_running", "How many sequences can run at a time.")
STEPS = counter("playhead_steps", "Steps of the engine, by mode and by the reason for it.", "mode", "reason")
EAGER_STEPS = counter("playhead_eager_steps", "Steps that no captured graph ran, by reason.", "reason")
STEP_PROMPT_TOKENS = counter("playhead_step_prompt_tokens", "Prompt tokens that steps computed, cached ones excluded.")
STEP_GENERATED_TOKENS = counter("playhead_step_generation_tokens", "Tokens that steps generated.")
WASTED_ROWS = counter("playhead_wasted_rows", "Rows that were computed for requests that turned out to have ended.")
FAILED = counter("playhead_requests_failed", "Requests that ended with an error of their own.")
VIOLATIONS = counter("playhead_ledger_violations", "Faults in the account of KV pages. Each is a bug.")
PREFIX_LOOKUPS = counter("playhead_prefix_lookups", "Prompts that were looked up in the prefix cache.")
PREFIX_ASKED = counter("playhead_prefix_asked_pages", "Whole pages of prompts that were looked up in the prefix cache.")
PREFIX_FOUND = counter("playhead_prefix_hit_pages", "Pages of prompts that were found in the prefix cache.")
PREFIX_REFUSALS = counter("playhead_prefix_refusals", "Prefix hits that had to be shortened, by reason.", "reason")

KV_PAGES = gauge(
    "playhead_kv_pages", "KV pages of a group, by state: free, held, cached, in_flight, quarantined.", "group", "state"
)
KV_BYTES = gauge("playhead_kv_bytes", "Bytes of a group's KV pages, by state.", "group", "state")
KV_GROUP_USAGE = gauge("playhead_kv_group_usage", "Share of KV memory that running requests hold in a group.", "group")
KV_WINDOW = gauge("playhead_kv_window_tokens", "Tokens of a group's window; 0 for full attention.", "group")
KV_MEMORY = gauge("playhead_kv_memory_bytes", "KV memory: slabs in use, which groups share, and free ones.", "state")

GRAPH_REPLAYS = counter("playhead_graph_replays", "Replays of each captured graph.", "runner", "bucket")
GRAPH_RAW = counter("playhead_graph_raw_rows", "Rows that replays had work for.", "runner", "bucket")
GRAPH_PADDED = counter(
    "playhead_graph_padded_rows", "Rows that replays computed, empty ones included.", "runner", "bucket"
)
PADDING_WASTE = gauge("playhead_padding_waste", "Share of the rows computed by replays that were empty: 0 to 1.")
GRAPH_BYTES = gauge("playhead_graph_bytes", "Bytes that each captured graph holds.", "runner", "bucket")
GRAPH_CAPTURE = gauge("playhead_graph_capture_seconds", "How long each graph took to capture.", "runner", "bucket")

RECORDED = (
    *(PROMPT_TOKENS, GENERATED_TOKENS, PREFIX_QUERIES, PREFIX_HITS, FINISHED),
    *(FIRST_TOKEN, BETWEEN_TOKENS, BETWEEN_TOKENS_OLD, PER_OUTPUT_TOKEN, WHOLE, REQUEST_PROMPT, REQUEST_GENERATED),
    *(STATE, SCRAPED, RESTARTS, OPEN_STREAMS, RESPONSES, REFUSED),
)
"""What the HTTP side knows itself."""

OF_ENGINE = (
    *(RUNNING, WAITING, MAX_RUNNING, KV_USAGE, KV_USAGE_OLD, PREEMPTIONS),
    *(STEPS, EAGER_STEPS, STEP_PROMPT_TOKENS, STEP_GENERATED_TOKENS, WASTED_ROWS, FAILED, VIOLATIONS),
    *(PREFIX_LOOKUPS, PREFIX_ASKED, PREFIX_FOUND, PREFIX_REFUSALS),
    *(KV_PAGES, KV_BYTES, KV_GROUP_USAGE, KV_WINDOW, KV_MEMORY),
    *(GRAPH_REPLAYS, GRAPH_RAW, GRAPH_PADDED, PADDING_WASTE, GRAPH_BYTES, GRAPH_CAPTURE),
)
"""What a snapshot of the engine says at the time of a scrape."""

REPLICAS = gauge("playhead_replicas", "Engines, by state: serving, starting, draining.", "state")
ROUTED = counter("playhead_routed", "Requests sent to a replica, by reason: prefix, spilled, unknown.", "reason")
MOVED = counter("playhead_moved_sequences", "Sequences that went on with another replica when theirs was lost.")

OF_REPLICAS = (REPLICAS, ROUTED, MOVED)
"""What a server of several engines adds. Its metrics of `OF_ENGINE` have the label `replica`."""

FAMILIES = (*RECORDED, *OF_ENGINE)
