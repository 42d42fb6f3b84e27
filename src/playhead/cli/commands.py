"""Every command: its flags, and its help, which is the docstring. No torch.

The work is in a file of its own, imported when the command runs: torch takes a second or two to import, and neither
help nor a refused flag should wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import typer

from playhead import __version__
from playhead.cli.command import command, engine, flags_of, sampling
from playhead.cli.options import (
    AuditOptions,
    BenchOptions,
    ChatOptions,
    DemandOptions,
    DemoOptions,
    DoctorOptions,
    GenerateOptions,
    NoOptions,
    PlanOptions,
    PullOptions,
    WorkloadSpec,
)
from playhead.cli.serve_command import serve
from playhead.engine.config import EngineConfig


@command(
    flags_of(GenerateOptions),
    sampling(max_tokens=100, n=1),
    engine("model", "memory", "schedule", "graph", "cache", "parallel"),
)
def generate(options: GenerateOptions, asked: Mapping[str, Any], config: EngineConfig) -> None:
    """Continue a text. The text is PROMPT, a file, or standard input."""
    from playhead.cli.generate import run_generate
    from playhead.cli.prompts import read_prompts
    from playhead.cli.screen import Screen

    run_generate(Screen(), read_prompts(options), options, asked, config)


@command(
    flags_of(ChatOptions),
    sampling("max_tokens", "sampling", "stop", max_tokens=512),
    engine("model", "memory", "graph", "parallel"),
)
def chat(options: ChatOptions, asked: Mapping[str, Any], config: EngineConfig) -> None:
    """Talk with a model. /help lists the commands of a conversation, Ctrl-C stops an answer, Ctrl-D leaves."""
    from playhead.cli.chat import run_chat
    from playhead.cli.screen import Screen

    run_chat(Screen(), options, asked, config)


@command(flags_of(PullOptions))
def pull(options: PullOptions) -> None:
    """Fetch a model of the hub. An interrupted download continues where it stopped."""
    from playhead.cli.pull import run_pull
    from playhead.cli.screen import Screen

    run_pull(Screen(), options)


@command(flags_of(NoOptions))
def list_models(options: NoOptions) -> None:
    """Show the models on this machine and whether they run here."""
    from playhead.cli.list import run_list
    from playhead.cli.screen import Screen

    run_list(Screen())


@command(flags_of(PlanOptions), flags_of(DemandOptions), engine("dtype", "memory", "schedule"))
def plan(options: PlanOptions, demand: DemandOptions, config: EngineConfig) -> None:
    """Show what a model takes of memory, and how much context fits. Reads no weights. Without a GPU and --gpu-memory
    it plans for this machine's memory. With --rps it shows the replicas that serve so many requests instead."""
    from playhead.cli.plan_fleet import run_plan
    from playhead.cli.screen import Screen

    run_plan(Screen(), options, demand, config)


@command(
    flags_of(AuditOptions),
    engine("model", "memory", "schedule", "graph", max_model_len=64, max_num_seqs=4, max_num_batched_tokens=8),
)
def audit(options: AuditOptions, config: EngineConfig) -> None:
    """Capture a model's graphs and test every promise about what they read. The exit code is 1 on a finding."""
    from playhead.cli.audit import run_audit
    from playhead.cli.screen import Screen

    raise typer.Exit(run_audit(Screen(), options, config))


@command(flags_of(DoctorOptions))
def doctor(options: DoctorOptions) -> None:
    """Show machine, versions, defaults and known traps. With MODEL, list what is wrong with its files."""
    from playhead.cli.doctor import run_doctor
    from playhead.cli.screen import Screen

    raise typer.Exit(run_doctor(Screen(), options.model))


@command(flags_of(DemoOptions))
def demo(options: DemoOptions) -> None:
    """Capture an attention step on the CPU, replay it padded, and audit it."""
    from playhead.cli.demo import run_demo
    from playhead.cli.screen import Screen

    raise typer.Exit(run_demo(Screen(), broken=options.broken))


@command(flags_of(NoOptions))
def version(options: NoOptions) -> None:
    """Print the version."""
    typer.echo(__version__)


@command(
    flags_of(BenchOptions, "model", "json_path"),
    flags_of(WorkloadSpec),
    engine("model", "memory", "schedule", "graph", "cache", "parallel"),
)
def throughput(options: BenchOptions, workload: WorkloadSpec, config: EngineConfig) -> None:
    """Answer random prompts, all at once."""
    from playhead.cli.bench import measure_throughput
    from playhead.cli.screen import Screen

    measure_throughput(Screen(), options, workload, config)


@command(
    flags_of(BenchOptions),
    flags_of(WorkloadSpec, "fixed", num_prompts=8, input_len=32),
    engine("model", "memory", "max_num_batched_tokens", "graph", "parallel"),
)
def latency(options: BenchOptions, workload: WorkloadSpec, config: EngineConfig) -> None:
    """Answer one batch of fixed lengths, again and again."""
    from playhead.cli.bench import measure_latency
    from playhead.cli.screen import Screen

    # Every batch is the same: with a prefix cache the second would find the first one's prompts.
    config = replace(config, max_num_seqs=workload.num_prompts, enable_prefix_caching=False)
    measure_latency(Screen(), options, workload, config)


COMMANDS = {
    "generate": generate,
    "chat": chat,
    "serve": serve,
    "pull": pull,
    "list": list_models,
    "plan": plan,
    "audit": audit,
    "doctor": doctor,
    "demo": demo,
    "version": version,
}
BENCHMARKS = {"throughput": throughput, "latency": latency}
