"""A command's `--help` on one screen: one line per option, its other names at the end of the line."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperOption

NAME_WIDTH = 32


class OneScreenCommand(TyperCommand):
    """Typer's own help boxes every group and gives each alias a line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # Usage and purpose share a line; typer's braces around a required argument mean nothing to a reader.
        usage = self.get_usage(ctx).removeprefix("Usage:").translate(str.maketrans("", "", "{}")).strip()
        formatter.write(f"{usage}: {(self.help or '').strip()}\n")
        panel = None
        for param in self.get_params(ctx):
            if not isinstance(param, TyperOption) or param.name == "help":
                continue
            if param.rich_help_panel != panel:
                panel = param.rich_help_panel
                formatter.write(f"{panel}:\n")
            formatter.write(f"{option_line(param)}\n")


def option_line(option: TyperOption) -> str:
    """--page-size N   tokens of a KV page [16] (--block-size)"""
    first, *others = sorted(option.opts, key=lambda name: not name.startswith("--"))
    name = f"  {first}" if option.is_flag else f"  {first} {option.metavar}"
    # False, None and empty lists say nothing, unless what None becomes is told; enums print as their value.
    value = option.show_default if option.default is None and isinstance(option.show_default, str) else option.default
    default = "" if value in (None, False, "") or value == [] else f" [{value}]"
    aliases = f" ({', '.join(others)})" if others else ""
    return f"{name:<{NAME_WIDTH}} {option.help or ''}{default}{aliases}"
