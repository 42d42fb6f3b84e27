"""`playhead bench`: throughput of many prompts, or latency of one batch. Names and meanings are vLLM's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from playhead.cli.command import MODEL, OneScreenCommand, command, engine, flags_of
from playhead.cli.doctor import machine_rows, this_machine, version_rows
from playhead.cli.loading import loaded
from playhead.cli.workload import Run, WorkloadSpec, random_workload, refused, run_workload, spread
from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.engine.progress import prompt_bar
from playhead.llm import LLM
from playhead.settings import Setting, check_settings, declare, settings_of

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)
SHOWN = ("mean", "p50", "p90", "p99")
WARM_UP, MEASURED = 1, 0  # variants of a workload: the same lengths, so the same steps, and no tokens in common

app = typer.Typer(no_args_is_help=True, help="Measure throughput or latency.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured, where the figures go, and with how many batches if it is latency."""

    model: str = declare(EMBEDDED, MODEL)
    json_path: Path | None = declare(
        None,
        Setting(
            help="write figures, settings, hardware and versions",
            flag="--json",
            aliases=("--output-json",),
            metavar="PATH",
        ),
    )
    num_iters_warmup: int = declare(1, Setting(group="batches", help="batches before the measured ones", low=0))
    num_iters: int = declare(5, Setting(group="batches", help="measured batches", low=1))

    def __post_init__(self) -> None:
        check_settings(self, BENCH_OPTIONS, refused)


BENCH_OPTIONS = settings_of(BenchOptions)


@app.command(cls=OneScreenCommand)
@command(
    flags_of(BenchOptions, "model", "json_path"),
    flags_of(WorkloadSpec),
    engine("model", "memory", "schedule", "graph", "cache"),
)
def throughput(options: BenchOptions, workload: WorkloadSpec, config: EngineConfig) -> None:
    """Answer random prompts, all at once."""
    measure_throughput(Console(), options, workload, config)


@app.command(cls=OneScreenCommand)
@command(
    flags_of(BenchOptions),
    flags_of(WorkloadSpec, "fixed", num_prompts=8, input_len=32),
    engine("model", "memory", "max_num_batched_tokens", "graph"),
)
def latency(options: BenchOptions, workload: WorkloadSpec, config: EngineConfig) -> None:
    """Answer one batch of fixed lengths, again and again."""
    # Every batch is the same: with a prefix cache the second would find the first one's prompts.
    config = replace(config, max_num_seqs=workload.num_prompts, enable_prefix_caching=False)
    measure_latency(Console(), options, workload, config)


def measure_throughput(console: Console, options: BenchOptions, workload: WorkloadSpec, config: EngineConfig) -> None:
    """Once to capture what the steps need, and once with other tokens for the figures."""
    with loaded(options.model, config) as llm:
        warmed = one_pass(llm, workload, "warming up", variant=WARM_UP)
        run = one_pass(llm, workload, "measuring", variant=MEASURED)
        figures = throughput_figures(run)
        show(console, f"{options.model} on {llm.config.device}, {described(workload)}", figures)
        write(options, workload, llm.config, figures | {"warm_up_s": warmed.seconds})


def measure_latency(console: Console, options: BenchOptions, workload: WorkloadSpec, config: EngineConfig) -> None:
    """The same batch every time."""
    with loaded(options.model, config) as llm:
        for i in range(options.num_iters_warmup):
            one_pass(llm, workload, f"warming up, {i + 1} of {options.num_iters_warmup}")
        runs = [one_pass(llm, workload, f"measuring, {i + 1} of {options.num_iters}") for i in range(options.num_iters)]
        figures = latency_figures(runs, workload.output_len)
        show(console, f"{options.model} on {llm.config.device}, {described(workload)}", figures)
        write(options, workload, llm.config, figures | {"seconds": [run.seconds for run in runs]})


def one_pass(llm: LLM, spec: WorkloadSpec, what: str, *, variant: int = MEASURED) -> Run:
    workload = random_workload(spec, llm.engine.reader.vocab_size, variant=variant)
    with prompt_bar(len(workload.prompts), what=what) as advance:
        return run_workload(llm, workload, advance)


def throughput_figures(run: Run) -> dict[str, object]:
    """What the table shows and the file holds."""
    stats = run.stats
    return {
        "seconds": run.seconds,
        "requests_per_s": len(run.token_times_s) / run.seconds,
        "output_tokens_per_s": run.num_output_tokens / run.seconds,
        "total_tokens_per_s": (run.num_input_tokens + run.num_output_tokens) / run.seconds,
        "steps": dict(stats.modes),
        "tokens_per_step": (stats.num_prompt_tokens + stats.num_generated_tokens) / max(1, stats.num_steps),
        "preemptions": stats.num_preemptions,
        "cached_share": stats.num_cached_tokens / run.num_input_tokens,
        "first_token_ms": spread(run.first_token_ms),
        "inter_token_ms": spread(run.between_tokens_ms),
    }


def latency_figures(runs: list[Run], output_len: int) -> dict[str, object]:
    """Of the batch as a whole: `prefill_ms` until its last prompt has a token, and the rest for the other tokens."""
    num_others = output_len - 1
    prefill_ms = [run.all_begun_s * 1e3 for run in runs]
    others_ms = [run.seconds * 1e3 - prefill for run, prefill in zip(runs, prefill_ms, strict=True)]
    return {
        "latency_ms": spread([run.seconds * 1e3 for run in runs], LATENCY_PERCENTILES),
        "prefill_ms": spread(prefill_ms),
        "ms_per_output_token": spread([ms / num_others for ms in others_ms] if num_others else []),
        "steps": dict(runs[-1].stats.modes),
    }


def described(spec: WorkloadSpec) -> str:
    varied = f", lengths ±{spec.random_range_ratio:.0%}" if spec.random_range_ratio else ""
    return f"{spec.num_prompts} prompts of {spec.input_len:,} tokens, {spec.output_len:,} new ones each{varied}"


def show(console: Console, title: str, figures: Mapping[str, object]) -> None:
    """One line per figure, then one per spread."""
    table, spreads = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
    spreads.add_row("", *SHOWN)
    for name, value in figures.items():
        label = f"  {name.replace('_per_', '/').replace('_', ' ')}"
        if name == "steps" and isinstance(value, Mapping):
            for mode, count in value.items():
                table.add_row(label, f"{count:,} {mode}")
                label = ""
        elif isinstance(value, Mapping):
            spreads.add_row(label, *(f"{value[key]:,.1f}" if key in value else "-" for key in SHOWN))
        else:
            table.add_row(label, f"{value:,.2f}" if isinstance(value, float) else str(value))
    console.print(title, style="bold", highlight=False)
    console.print(table)
    console.print(spreads)


def write(options: BenchOptions, workload: WorkloadSpec, config: EngineConfig, figures: Mapping[str, object]) -> None:
    """Everything needed to measure the same again."""
    if options.json_path is None:
        return
    record = {
        "model": options.model,
        "figures": figures,
        "workload": asdict(workload),
        "engine": asdict(config),
        "hardware": {name.strip(): value for name, value in machine_rows(this_machine())},
        "versions": {name.strip(): value for name, value in version_rows()},
    }
    options.json_path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
