"""`playhead bench`: throughput of many prompts, or latency of one batch. Names and meanings are vLLM's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from rich.table import Table

from playhead.cli.doctor import machine_rows, this_machine, version_rows
from playhead.cli.loading import loaded
from playhead.cli.options import BenchOptions, WorkloadSpec
from playhead.cli.screen import Screen
from playhead.cli.workload import Run, random_workload, run_workload, spread
from playhead.engine.config import EngineConfig
from playhead.engine.progress import prompt_bar
from playhead.llm import LLM

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)
SHOWN = ("mean", "p50", "p90", "p99")
WARM_UP, MEASURED = 1, 0  # variants of a workload: the same lengths, so the same steps, and no tokens in common


def measure_throughput(screen: Screen, options: BenchOptions, workload: WorkloadSpec, config: EngineConfig) -> None:
    """Once to capture what the steps need, and once with other tokens for the figures."""
    with loaded(options.model, config) as llm:
        warmed = one_pass(llm, workload, "warming up", variant=WARM_UP)
        run = one_pass(llm, workload, "measuring", variant=MEASURED)
        figures = throughput_figures(run)
        show(screen, f"{options.model} on {llm.config.device}, {described(workload)}", figures)
        write(options, workload, llm.config, figures | {"warm_up_s": warmed.seconds})


def measure_latency(screen: Screen, options: BenchOptions, workload: WorkloadSpec, config: EngineConfig) -> None:
    """The same batch every time."""
    with loaded(options.model, config) as llm:
        for i in range(options.num_iters_warmup):
            one_pass(llm, workload, f"warming up, {i + 1} of {options.num_iters_warmup}")
        runs = [one_pass(llm, workload, f"measuring, {i + 1} of {options.num_iters}") for i in range(options.num_iters)]
        figures = latency_figures(runs, workload.output_len)
        show(screen, f"{options.model} on {llm.config.device}, {described(workload)}", figures)
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


def show(screen: Screen, title: str, figures: Mapping[str, object]) -> None:
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
    screen.print(title, style="bold", highlight=False)
    screen.print(table)
    screen.print(spreads)


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
