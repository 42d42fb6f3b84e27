"""`playhead`: the list of commands, and how a command ends. No torch."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import typer

from playhead import __version__
from playhead.cli.commands import BENCHMARKS, COMMANDS
from playhead.cli.entry import INTERRUPTED
from playhead.cli.layout import HelpfulCommand, HelpfulGroup
from playhead.cli.load_commands import LOAD_BENCHMARKS
from playhead.cli.other_flags import instead_of
from playhead.errors import PlayheadError
from playhead.logs import set_up_logging

LOG = logging.getLogger(__name__)

REFUSED = 2
FAILED = 3
READER_LEFT = 141  # what a shell reports for a process that SIGPIPE ended

UsageError: Any = typer.BadParameter.__base__
"""What Typer raises for a command line that it cannot read."""


class CommandLine(HelpfulGroup):
    """Ends every command with an exit code and at most one line on stderr."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:  # by the help
            raise typer.Exit(READER_LEFT) from None

    def invoke(self, ctx: Any) -> Any:
        try:
            set_up_logging()
            return super().invoke(ctx)
        except PlayheadError as error:
            say(str(error))
            raise typer.Exit(REFUSED) from None
        except KeyboardInterrupt:
            typer.echo(err=True)  # the shell's prompt begins on a line of its own
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise typer.Exit(READER_LEFT) from None
        except (typer.Exit, typer.Abort, UsageError):
            raise
        except Exception as error:
            LOG.debug("an unexpected exception", exc_info=True)
            say(
                f"unexpected {type(error).__name__}: {error}. Run it again with PLAYHEAD_LOG=debug for the traceback, "
                "and report it if it looks like a bug in Playhead."
            )
            raise typer.Exit(FAILED) from None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **(kwargs | {"standalone_mode": False})) or 0
        except UsageError as error:
            where = error.ctx.command_path if error.ctx is not None else "playhead"
            flag = vars(error).get("option_name")  # of an option that there is not
            instead = instead_of(flag) if flag is not None else None
            found = error.format_message().rstrip(".") if instead is None else f"{flag}: no such option. {instead}"
            say(f"{found.rstrip('.')}. See {where} --help.")
            code = REFUSED
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            code = READER_LEFT
        if code == READER_LEFT:
            # Python flushes once more when it exits, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(code)


def say(message: str) -> None:
    """One line on stderr."""
    typer.echo(f"playhead: {' '.join(message.split())}", err=True)


app = typer.Typer(
    cls=CommandLine,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def playhead(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="print the version"),
) -> None:
    """Playhead runs language models on a GPU or a CPU. It replays captured graphs, and gives the memory of sliding
    windows back. Without a download, the model 'embedded' writes English: playhead generate "The whale"."""
    if version:
        typer.echo(__version__)
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


bench = typer.Typer(cls=HelpfulGroup, rich_markup_mode=None)


@bench.callback(invoke_without_command=True)
def measure(ctx: typer.Context) -> None:
    """Measure throughput or latency, of an engine here or of a server."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


for name, command in COMMANDS.items():
    app.command(name, cls=HelpfulCommand)(command)
for name, command in {**BENCHMARKS, **LOAD_BENCHMARKS}.items():
    bench.command(name, cls=HelpfulCommand)(command)
app.add_typer(bench, name="bench")
