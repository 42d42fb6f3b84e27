"""`playhead`: one command per job."""

from __future__ import annotations

import typer
from rich.console import Console

from playhead import __version__
from playhead.cli.demo import run_demo

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Replay captured graphs over declared inputs.")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command()
def demo(
    broken: bool = typer.Option(False, "--broken", help="Put the stale-tail bug back and watch the audit find it."),
) -> None:
    """Capture an attention step on the CPU, replay it padded, and audit it."""
    raise typer.Exit(run_demo(Console(), broken=broken))
