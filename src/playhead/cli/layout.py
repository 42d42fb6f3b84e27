"""How help looks, for every command alike: usage, what it does, then one entry per option or command. No torch.

playhead plan [OPTIONS] MODEL

Show what MODEL takes and what fits. Reads no weights.

Options:
  --memory SIZE               like 139GiB; this machine's if left out

Words are never broken: text goes on in the line below, under itself.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

NAME_WIDTH = 30
LEAST_COLUMNS, MOST_COLUMNS = 60, 100


class HelpfulCommand(TyperCommand):
    """A command with this help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(self, ctx, []))


class HelpfulGroup(TyperGroup):
    """A group of commands with this help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        entries = [(name, first_line(self.commands[name].help)) for name in self.commands]
        formatter.write(page(self, ctx, entries))


def page(command: Any, ctx: Any, commands: list[tuple[str, str]]) -> str:
    """The whole help of a command or of a group."""
    width = min(max(shutil.get_terminal_size().columns, LEAST_COLUMNS), MOST_COLUMNS)
    # Braces around a required argument mean nothing to a reader.
    usage = " ".join(command.get_usage(ctx).split()).removeprefix("Usage: ").translate(str.maketrans("", "", "{}"))
    about = " ".join((command.help or "").split())
    blocks = [usage, textwrap.fill(about, width, break_long_words=False, break_on_hyphens=False)]
    blocks += [block(title, entries, width) for title, entries in panels(command, ctx, commands)]
    return "\n\n".join(blocks) + "\n"


def panels(command: Any, ctx: Any, commands: list[tuple[str, str]]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Titles with their entries, in the order in which the command has them."""
    if commands:
        yield "Commands", commands
    arguments = [one for one in command.get_params(ctx) if isinstance(one, TyperArgument)]
    if arguments:
        yield "Arguments", [(str(one.metavar), one.help or "") for one in arguments]
    found: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if isinstance(param, TyperOption):
            found.setdefault(param.rich_help_panel or "Options", []).append(option_entry(param))
    yield from found.items()


def option_entry(option: TyperOption) -> tuple[str, str]:
    """--page-size N   tokens of a KV page [16] (--block-size)"""
    first, *others = sorted(option.opts, key=lambda name: not name.startswith("--"))
    name = first if option.is_flag else f"{first} {option.metavar}"
    default = f" [{option.show_default}]" if isinstance(option.show_default, str) and option.show_default else ""
    aliases = f" ({', '.join(others)})" if others else ""
    text = "show this" if option.name == "help" else option.help or ""
    return name, f"{text}{default}{aliases}"


def block(title: str, entries: list[tuple[str, str]], width: int) -> str:
    """A title and its entries. A name as wide as its column has its text in the line below."""
    column = min(NAME_WIDTH, 2 + max(len(name) for name, _ in entries) + 2)
    lines = [f"{title}:"]
    for name, text in entries:
        indent = " " * column
        head = f"  {name} ".ljust(column)
        if len(head) > column:
            lines.append(head.rstrip())
            head = indent
        lines.append(
            textwrap.fill(
                text,
                width,
                initial_indent=head,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            or head.rstrip()
        )
    return "\n".join(lines)


def first_line(text: str | None) -> str:
    """The first sentence of a command's help: what a list of commands shows."""
    about = " ".join((text or "").split())
    return about.split(". ", 1)[0].rstrip(".") + "." if about else ""
