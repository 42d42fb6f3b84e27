"""`playhead bench serve` and `playhead bench compare`: flags and help. No torch, no numpy."""

from __future__ import annotations

import typer

from playhead.cli.command import command, flags_of
from playhead.cli.load_options import BenchServeOptions, CompareOptions
from playhead.load.spec import LoadSpec


@command(flags_of(BenchServeOptions), flags_of(LoadSpec))
def serve(options: BenchServeOptions, spec: LoadSpec) -> None:
    """Send requests to a server at their own pace, and time every token. Any OpenAI-compatible server will do."""
    from playhead.cli.bench_serve import run_bench_serve
    from playhead.cli.screen import Screen

    raise typer.Exit(run_bench_serve(Screen(), options, spec))


@command(flags_of(CompareOptions))
def compare(options: CompareOptions) -> None:
    """Compare two results of bench serve, and tell changes from noise. The exit code is 1 if a figure is worse."""
    from playhead.cli.bench_serve import run_compare
    from playhead.cli.screen import Screen

    raise typer.Exit(run_compare(Screen(), options))


LOAD_BENCHMARKS = {"serve": serve, "compare": compare}
