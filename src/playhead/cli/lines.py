"""The lines a user types: arrow keys, a history in a file, and Ctrl-C that leaves the second time. No torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from playhead.errors import ConfigError

MAX_LINES = 1000
PROMPT = "> "


def next_line(*, is_interactive: bool) -> str | None:
    """The next line, None when there is no more. At a terminal the first Ctrl-C drops the line, the second leaves."""
    num_interrupts = 0
    while True:
        try:
            return input(PROMPT if is_interactive else "")
        except EOFError:
            if is_interactive:
                typer.echo()  # the shell's prompt begins on a line of its own
            return None
        except UnicodeDecodeError:
            if not is_interactive:
                raise ConfigError("standard input: found bytes that are not UTF-8. Convert it first.") from None
            typer.echo("These bytes are not UTF-8. Write the line again.", err=True)
        except KeyboardInterrupt:
            num_interrupts += 1
            if not is_interactive or num_interrupts > 1:
                raise
            typer.echo("\nCtrl-C again, Ctrl-D or /bye leaves.")


@contextmanager
def kept_history(path: Path | None) -> Iterator[None]:
    """Inside, `input` has arrow keys and the lines of earlier conversations; at the end the newest are written.

    Without a path nothing is read or written. Only the user can read the file.
    """
    try:
        import readline  # makes `input` edit lines; Windows has none
    except ImportError:
        yield
        return
    readline.set_history_length(MAX_LINES)
    if path is None:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        readline.read_history_file(path)
    except OSError as error:
        typer.echo(f"playhead: {path}: the history is not kept: {error.strerror}.", err=True)
        yield
        return
    try:
        yield
    finally:
        try:
            readline.write_history_file(path)
        except OSError as error:
            typer.echo(f"playhead: {path}: the history was not written: {error.strerror}.", err=True)


def both_are_terminals() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
