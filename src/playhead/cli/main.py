"""`playhead`: one command per job."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from playhead import __version__
from playhead.cli import bench
from playhead.cli.audit import audit
from playhead.cli.chat import chat
from playhead.cli.command import OneScreenCommand
from playhead.cli.demo import run_demo
from playhead.cli.doctor import doctor
from playhead.cli.entry import INTERRUPTED
from playhead.cli.generate import generate
from playhead.cli.list import list_models
from playhead.cli.plan import plan
from playhead.cli.pull import pull
from playhead.errors import PlayheadError

REFUSED = 2


class CommandLine(TyperGroup):
    """Says in one line what was refused. Anything else that escapes is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PlayheadError as error:
            typer.echo(f"playhead: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(REFUSED) from None
        except KeyboardInterrupt:
            typer.echo(err=True)  # the shell's prompt begins on a line of its own
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=CommandLine,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Replay captured graphs over declared inputs.",
)


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


for command in (generate, chat, pull, plan, audit, doctor):
    app.command(cls=OneScreenCommand)(command)
app.command("list", cls=OneScreenCommand)(list_models)

app.add_typer(bench.app, name="bench")
