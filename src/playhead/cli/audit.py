"""`playhead audit`: capture a model's graphs and test every promise about what they read."""

from __future__ import annotations

from dataclasses import replace

import typer
from rich.console import Console

from playhead.cli import options
from playhead.cli.demo import audit_table
from playhead.cli.loading import loaded
from playhead.cli.options import EngineFlags, engine_config
from playhead.engine.config import EngineConfig, resolve_device, resolve_dtype, resolve_sizes
from playhead.engine.progress import capture_bar, spinner
from playhead.graph.report import Report
from playhead.llm import EMBEDDED, resolve_model_name
from playhead.models.load import LoadFormat, ModelDescription, describe_model
from playhead.step.audit import audit_worker
from playhead.step.forward import kv_geometry

MAX_SHOWN = 5
MAX_CONTEXT_TOKENS = 4096


# Typer reads a command's options from its parameters, so commands have as many as they have options.
def audit(
    model: options.ModelArgument = EMBEDDED,
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    load_format: options.LoadFormatOption = LoadFormat.AUTO,
    max_model_len: options.MaxModelLen = 64,
    max_num_seqs: options.MaxNumSeqs = 4,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 8,
    kv_memory_bytes: options.KvMemoryBytes = None,
    page_size: options.PageSize = 16,
    graph_mode: options.GraphModeOption = None,
) -> None:
    """Capture a small worker and audit it; exit code 1 on a finding."""
    flags = EngineFlags(
        device=device,
        dtype=dtype,
        load_format=load_format,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_memory_bytes=kv_memory_bytes,
        page_size=page_size,
        graph_mode=graph_mode,
    )
    reports = audit_model(model, engine_config(flags))
    if as_json:
        for report in reports:
            typer.echo(report.to_json())
    else:
        show_reports(Console(), reports)
    raise typer.Exit(0 if all(report.ok for report in reports) else 1)


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

    A context that nobody asked for is a short one: graphs are the same at any length.
    """
    device, spec = resolve_device(config), description.spec
    dtype, sizes = resolve_dtype(config, device, description), resolve_sizes(config, device)
    geometry = kv_geometry(spec, page_size=config.page_size, dtype=dtype)
    context = min(config.max_model_len or MAX_CONTEXT_TOKENS, spec.max_context_tokens)
    # Pages round each request up, and window groups hold a page more and the chunk in flight.
    per_request = context + sizes.max_num_batched_tokens + 2 * config.page_size
    # Groups of unequal size share slabs, so a group may leave most of its last slab empty.
    num_tokens = (sizes.max_num_seqs + 2) * per_request * len(geometry.groups)
    num_bytes = num_tokens * geometry.bytes_per_token
    return replace(config, kv_memory_bytes=num_bytes, max_model_len=config.max_model_len or context)


def show_reports(console: Console, reports: list[Report]) -> None:
    """A table per runner, and the first findings."""
    for report in reports:
        sizes = ", ".join(str(graph.bucket) for graph in report.graphs)
        table = audit_table(report)
        table.title = f"{report.name}: {len(report.graphs)} graphs, sizes {sizes}"
        console.print(table)
        for finding in report.findings[:MAX_SHOWN]:
            console.print(f"bucket {finding.bucket}, {finding.where}: {finding.message}", style="red", markup=False)
    num_findings = sum(len(report.findings) for report in reports)
    console.print(f"{num_findings} findings" if num_findings else "the graphs read what was declared", style="bold")
