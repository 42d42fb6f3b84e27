"""`playhead bench`: throughput of many prompts, or latency of one batch. Names and meanings are vLLM's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from playhead.cli import options
from playhead.cli.doctor import machine_rows, this_machine, version_rows
from playhead.cli.help import OneScreenCommand
from playhead.cli.loading import loaded
from playhead.cli.options import DEFAULTS, EngineFlags, engine_config
from playhead.cli.workload import Run, WorkloadSpec, random_workload, run_workload, spread
from playhead.engine.config import EngineConfig
from playhead.engine.progress import prompt_bar
from playhead.errors import ConfigError
from playhead.llm import EMBEDDED, LLM
from playhead.models.load import LoadFormat

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)
SHOWN = ("mean", "p50", "p90", "p99")
WARM_UP, MEASURED = 1, 0  # variants of a workload: the same lengths, so the same steps, and no tokens in common

app = typer.Typer(no_args_is_help=True, help="Measure throughput or latency.")

NumPrompts = Annotated[int, typer.Option("--num-prompts", metavar="N", help="prompts, all sent at once")]
InputLen = Annotated[int, typer.Option("--input-len", metavar="N", help="tokens of a prompt")]
OutputLen = Annotated[int, typer.Option("--output-len", metavar="N", help="tokens of an answer")]
RangeRatio = Annotated[
    float, typer.Option("--random-range-ratio", metavar="X", help="lengths vary by this share up and down")
]
RandomSeed = Annotated[int, typer.Option("--seed", metavar="N", help="same seed, same prompts and lengths")]
BatchSize = Annotated[int, typer.Option("--batch-size", metavar="N", help="prompts of a batch")]
NumWarmup = Annotated[int, typer.Option("--num-iters-warmup", metavar="N", help="batches before the measured ones")]
NumIters = Annotated[int, typer.Option("--num-iters", metavar="N", help="measured batches")]
JsonPath = Annotated[
    Path | None,
    typer.Option("--json", "--output-json", metavar="PATH", help="write figures, settings, hardware and versions"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchJob:
    """What is measured, and with how many batches if it is latency."""

    model: str
    config: EngineConfig
    workload: WorkloadSpec
    json_path: Path | None = None
    num_iters_warmup: int = 1
    num_iters: int = 1


# Typer reads a command's options from its parameters, so commands have as many as they have options.
@app.command(cls=OneScreenCommand)
def throughput(
    model: options.Model = EMBEDDED,
    num_prompts: NumPrompts = 32,
    input_len: InputLen = 64,
    output_len: OutputLen = 32,
    range_ratio: RangeRatio = 0.0,
    seed: RandomSeed = 0,
    temperature: options.Temperature = 1.0,
    json_path: JsonPath = None,
    device: options.Device = DEFAULTS.device,
    dtype: options.Dtype = DEFAULTS.dtype,
    load_format: options.LoadFormatOption = LoadFormat.AUTO,
    max_model_len: options.MaxModelLen = DEFAULTS.max_model_len,
    max_num_seqs: options.MaxNumSeqs = DEFAULTS.max_num_seqs,
    max_num_batched_tokens: options.MaxNumBatchedTokens = DEFAULTS.max_num_batched_tokens,
    kv_memory_bytes: options.KvMemoryBytes = None,
    page_size: options.PageSize = DEFAULTS.page_size,
    enforce_eager: options.EnforceEager = False,
    graph_mode: options.GraphModeOption = None,
    no_prefix_caching: options.NoPrefixCaching = False,
) -> None:
    """Answer random prompts, all at once."""
    flags = EngineFlags(
        device=device,
        dtype=dtype,
        load_format=load_format,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_memory_bytes=kv_memory_bytes,
        page_size=page_size,
        enforce_eager=enforce_eager,
        graph_mode=graph_mode,
        no_prefix_caching=no_prefix_caching,
    )
    workload = WorkloadSpec(
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        range_ratio=range_ratio,
        seed=seed,
        temperature=temperature,
    )
    job = BenchJob(model=model, config=engine_config(flags), workload=workload, json_path=json_path)
    measure_throughput(Console(), job)


@app.command(cls=OneScreenCommand)
def latency(
    model: options.Model = EMBEDDED,
    batch_size: BatchSize = 8,
    input_len: InputLen = 32,
    output_len: OutputLen = 32,
    num_iters_warmup: NumWarmup = 1,
    num_iters: NumIters = 5,
    seed: RandomSeed = 0,
    temperature: options.Temperature = 1.0,
    json_path: JsonPath = None,
    device: options.Device = DEFAULTS.device,
    dtype: options.Dtype = DEFAULTS.dtype,
    load_format: options.LoadFormatOption = LoadFormat.AUTO,
    max_model_len: options.MaxModelLen = DEFAULTS.max_model_len,
    max_num_batched_tokens: options.MaxNumBatchedTokens = DEFAULTS.max_num_batched_tokens,
    kv_memory_bytes: options.KvMemoryBytes = None,
    page_size: options.PageSize = DEFAULTS.page_size,
    enforce_eager: options.EnforceEager = False,
    graph_mode: options.GraphModeOption = None,
) -> None:
    """Answer one batch of fixed lengths, again and again."""
    flags = EngineFlags(
        device=device,
        dtype=dtype,
        load_format=load_format,
        max_model_len=max_model_len,
        max_num_seqs=batch_size,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_memory_bytes=kv_memory_bytes,
        page_size=page_size,
        enforce_eager=enforce_eager,
        graph_mode=graph_mode,
        no_prefix_caching=True,  # every batch is the same: the second would find the first one's prompts
    )
    workload = WorkloadSpec(
        num_prompts=batch_size, input_len=input_len, output_len=output_len, seed=seed, temperature=temperature
    )
    job = BenchJob(
        model=model,
        config=engine_config(flags),
        workload=workload,
        json_path=json_path,
        num_iters_warmup=num_iters_warmup,
        num_iters=num_iters,
    )
    if num_iters < 1 or num_iters_warmup < 0:
        found = f"{num_iters_warmup} and {num_iters}"
        raise ConfigError(f"num-iters-warmup and num-iters: found {found}; wanted at least 0 and 1. Raise them.")
    measure_latency(Console(), job)


def measure_throughput(console: Console, job: BenchJob) -> None:
    """Once to capture what the steps need, and once with other tokens for the figures."""
    with loaded(job.model, job.config) as llm:
        warmed = one_pass(llm, job, "warming up", variant=WARM_UP)
        run = one_pass(llm, job, "measuring", variant=MEASURED)
        figures = throughput_figures(run)
        show(console, f"{job.model} on {llm.config.device}, {described(job.workload)}", figures)
        write(job, llm.config, figures | {"warm_up_s": warmed.seconds})


def measure_latency(console: Console, job: BenchJob) -> None:
    """The same batch every time."""
    with loaded(job.model, job.config) as llm:
        for i in range(job.num_iters_warmup):
            one_pass(llm, job, f"warming up, {i + 1} of {job.num_iters_warmup}")
        runs = [one_pass(llm, job, f"measuring, {i + 1} of {job.num_iters}") for i in range(job.num_iters)]
        figures = latency_figures(runs, job.workload.output_len)
        show(console, f"{job.model} on {llm.config.device}, {described(job.workload)}", figures)
        write(job, llm.config, figures | {"seconds": [run.seconds for run in runs]})


def one_pass(llm: LLM, job: BenchJob, what: str, *, variant: int = MEASURED) -> Run:
    workload = random_workload(job.workload, llm.description.spec.vocab_size, variant=variant)
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
    varied = f", lengths ±{spec.range_ratio:.0%}" if spec.range_ratio else ""
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


def write(job: BenchJob, config: EngineConfig, figures: Mapping[str, object]) -> None:
    """Everything needed to measure the same again."""
    if job.json_path is None:
        return
    record = {
        "model": job.model,
        "figures": figures,
        "workload": asdict(job.workload),
        "engine": asdict(config),
        "hardware": {name.strip(): value for name, value in machine_rows(this_machine())},
        "versions": {name.strip(): value for name, value in version_rows()},
    }
    job.json_path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
