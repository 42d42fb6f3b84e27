"""`playhead audit`: capture a model's graphs and test every promise about what they read."""

from __future__ import annotations

from dataclasses import replace

from playhead.cli.demo import audit_table
from playhead.cli.loading import loaded
from playhead.cli.options import AuditOptions
from playhead.cli.screen import Screen
from playhead.engine.config import EngineConfig
from playhead.engine.progress import capture_bar, spinner
from playhead.engine.resolve import kv_limits, resolve_device, resolve_dtype
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.errors import ConfigError
from playhead.graph.report import Report
from playhead.models.load import ModelDescription, describe_model
from playhead.step.audit import audit_worker
from playhead.step.forward import kv_geometry
from playhead.types import Mode

MAX_SHOWN = 5
MAX_CONTEXT_TOKENS = 4096


def run_audit(screen: Screen, options: AuditOptions, config: EngineConfig) -> int:
    """Capture a small worker and audit it. The exit code is 1 on a finding."""
    if config.graph_mode is Mode.EAGER:
        raise ConfigError("graph_mode: found eager; an audit needs captured graphs. Leave out --enforce-eager.")
    reports = audit_model(options.model, config)
    if options.as_json:
        for report in reports:
            screen.out(report.to_json(), highlight=False)
    else:
        show_reports(screen, reports)
    return 0 if all(report.ok for report in reports) else 1


def audit_model(model: str, config: EngineConfig) -> list[Report]:
    """One report per runner."""
    if config.kv_memory_bytes is None:
        config = with_small_kv(describe_model(resolve_model_name(model), config_only=True), config)
    with loaded(model, config) as llm:
        with capture_bar() as advance:
            llm.capture_graphs(advance)
        with spinner("auditing: every size is replayed, compared and captured again"):
            return audit_worker(llm.engine.worker)


def with_small_kv(description: ModelDescription, config: EngineConfig) -> EngineConfig:
    """Room for every request at the maximum context and no more: an audit compares the KV memory again and again.

    A context that was left open becomes a short one: graphs are the same at any length.
    """
    device, spec = resolve_device(config), description.spec
    dtype, limits = resolve_dtype(config, device, description), kv_limits(description, config, device)
    geometry = kv_geometry(spec, page_size=config.page_size, dtype=dtype)
    context = min(config.max_model_len or MAX_CONTEXT_TOKENS, spec.max_context_tokens)
    # Pages round each request up, and window groups hold a page more and the chunk in flight.
    per_request = context + limits.chunk_tokens + 2 * config.page_size
    # Groups of unequal size share slabs, so a group may leave most of its last slab empty.
    num_tokens = (limits.max_running + 2) * per_request * len(geometry.groups)
    num_bytes = num_tokens * geometry.bytes_per_token
    return replace(config, kv_memory_bytes=num_bytes, max_model_len=config.max_model_len or context)


def show_reports(screen: Screen, reports: list[Report]) -> None:
    """A table per runner, and the first findings."""
    for report in reports:
        sizes = ", ".join(str(graph.bucket) for graph in report.graphs)
        table = audit_table(report)
        table.title = f"{report.name}: {len(report.graphs)} graphs, sizes {sizes}"
        screen.print(table)
        for finding in report.findings[:MAX_SHOWN]:
            screen.print(f"bucket {finding.bucket}, {finding.where}: {finding.message}", style="red", markup=False)
    num_findings = sum(len(report.findings) for report in reports)
    screen.print(f"{num_findings} findings" if num_findings else "the graphs read what was declared", style="bold")
