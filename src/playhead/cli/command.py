"""How a command gets its flags and its help: it names settings, and this file makes Typer's options of them.

@command(flags_of(GenerateOptions), engine("model", "memory", max_model_len=4096))
def generate(options: GenerateOptions, config: EngineConfig) -> None:
    '''Continue PROMPT with a model.'''

Each argument of `@command` is one source of flags, and the function is called with one value per source. A source names
groups or single fields of a dataclass (`settings.py`); keywords replace defaults. Where vLLM and SGLang call a setting
differently, both names work: a command line copied from either runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from enum import StrEnum
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any, Generic, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from playhead.engine.config import EMBEDDED, ENGINE_SETTINGS, EngineConfig
from playhead.settings import Declared, Setting, Switch, settings_of

ENGINE_PANEL = "Engine (vLLM's and SGLang's names both work)"
METAVARS = {int: "N", float: "X"}
NAME_WIDTH = 32

MODEL = Setting(help=f"{EMBEDDED}, a directory, a .gguf file or a hub id", metavar="NAME", aliases=("-m",))
"""The setting of every command that takes a model."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags(Generic[T]):
    """One source of a command's flags: its settings, and what is made of their values by name.

    `unset` has, for settings whose default is None, what None becomes; help shows it in the default's place.
    """

    settings: tuple[Declared, ...]
    make: Callable[[dict[str, Any]], T]
    unset: Mapping[str, str] = field(default_factory=dict)
    panel: str | None = None

    def parameters(self) -> Iterator[Parameter]:
        """One parameter for each setting that takes a value, and one for each switch."""
        for declared in self.settings:
            if declared.kind is not bool:
                yield self._value(declared)
            for name, switch in switches_of(declared):
                flag = typer.Option(False, *switch.flags, help=switch.help, rich_help_panel=self.panel)
                yield Parameter(name, Parameter.KEYWORD_ONLY, annotation=bool, default=flag)

    def _value(self, declared: Declared) -> Parameter:
        setting, default = declared.setting, declared.default
        kind: Any = str if issubclass(declared.kind, StrEnum) else declared.kind
        kind = GenericAlias(list, (kind,)) if declared.is_list else kind
        if declared.is_list or declared.is_optional:
            kind, default = kind | None, None if default == () else default
        if setting.is_positional:
            default = ... if default is MISSING else default
            told: Any = typer.Argument(default, metavar=declared.name.upper(), help=setting.help)
        else:
            told = typer.Option(
                default,
                declared.flag,
                *setting.aliases,
                metavar=setting.metavar or METAVARS.get(declared.kind, "TEXT"),
                help=setting.help,
                parser=setting.parse,
                show_default=self.unset.get(declared.name, True),
                rich_help_panel=self.panel,
            )
        return Parameter(declared.name, Parameter.KEYWORD_ONLY, annotation=kind, default=told)

    def value(self, given: Mapping[str, Any]) -> T:
        """What the command line gave to these settings. A switch wins over a value."""
        values = {declared.name: given.get(declared.name, declared.default) for declared in self.settings}
        switches = [(declared, *named) for declared in self.settings for named in switches_of(declared)]
        values |= {declared.name: switch.sets for declared, name, switch in switches if given[name]}
        return self.make(values)


def switches_of(declared: Declared) -> list[tuple[str, Switch]]:
    """The switches of a setting, each with its parameter's name. A bool without any has one that sets it to True."""
    switches: Sequence[Switch] = declared.setting.switches
    if declared.kind is bool and not switches:
        flags = (declared.flag, *declared.setting.aliases)
        switches = (Switch(flags=flags, sets=True, help=declared.setting.help),)
    return [(f"{declared.name}_switch{i}", switch) for i, switch in enumerate(switches)]


def named(settings: Sequence[Declared], names: Sequence[str], defaults: Mapping[str, Any]) -> tuple[Declared, ...]:
    """The settings of these groups or of these names, with other defaults; all of them if none is named."""
    known = {declared.name for declared in settings} | {declared.setting.group for declared in settings}
    assert known >= {*names, *defaults}, f"no such settings: {sorted({*names, *defaults} - known)}"
    chosen = [one for one in settings if not names or one.name in names or one.setting.group in names]
    return tuple(replace(one, default=defaults.get(one.name, one.default)) for one in chosen)


def flags_of(owner: type[T], *names: str, **defaults: Any) -> Flags[T]:
    """Flags for a dataclass whose fields are declared settings; the command gets an object of it."""
    return Flags(settings=named(settings_of(owner), names, defaults), make=lambda values: owner(**values))


def engine(*names: str, **defaults: Any) -> Flags[EngineConfig]:
    """Flags for settings of the engine; the command gets an `EngineConfig`."""
    settings = named(ENGINE_SETTINGS, names, defaults)
    autos = {one.name: one.setting.auto for one in settings if one.setting.auto}
    return Flags(
        settings=settings,
        make=lambda values: EngineConfig(**values),
        unset={name: f"{auto['cpu'].value}, GPU {auto['cuda'].value}" for name, auto in autos.items()},
        panel=ENGINE_PANEL,
    )


def command(*sources: Flags[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command. Typer reads options from a signature, so the command has one parameter per flag."""

    def with_flags(run: Callable[..., None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            run(*(source.value(given) for source in sources))

        called.__name__, called.__doc__ = run.__name__, run.__doc__
        seen_by_typer: Any = called
        seen_by_typer.__signature__ = Signature([one for source in sources for one in source.parameters()])
        return called

    return with_flags


class OneScreenCommand(TyperCommand):
    """Help with one line per option, its other names at the end. Typer's own gives each alias a line."""

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
