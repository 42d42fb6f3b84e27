"""How a command gets its flags: it names settings, and this file makes Typer's options of them. No torch.

@command(flags_of(GenerateOptions), engine("model", "memory", max_model_len=4096))
def generate(options: GenerateOptions, config: EngineConfig) -> None:
    '''Continue a text.'''

Each argument of `@command` is one source of flags, and the function is called with one value per source. A source names
groups or single fields of a dataclass (`settings.py`); keywords replace defaults. Where vLLM and SGLang call a setting
differently, both names work. Other flags of theirs are refused with what to do instead (`other_flags.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any, Generic, TypeVar

import typer

from playhead.engine.config import EMBEDDED, ENGINE_SETTINGS, EngineConfig
from playhead.errors import ConfigError, PlayheadError, shown
from playhead.sampling_params import PARAMETERS, SAMPLING_SETTINGS, SamplingParams
from playhead.settings import Declared, Setting, Switch, parse_size, settings_of

ENGINE_PANEL = "Engine (vLLM's and SGLang's names both work)"
SAMPLING_PANEL = "Sampling"
METAVARS = {int: "N", float: "X"}

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
        """Typer hands the text over as it is: what it made of a value, and of its error, would be in its own words."""
        setting, default = declared.setting, declared.default
        kind: Any = GenericAlias(list, (str,)) if declared.is_list else str
        if setting.is_positional:
            required = default is MISSING
            told: Any = typer.Argument(... if required else None, metavar=declared.name.upper(), help=setting.help)
        else:
            shown_default = "" if default in (None, ()) else str(default)
            told = typer.Option(
                None,
                declared.flag,
                *setting.aliases,
                metavar=setting.metavar or METAVARS.get(declared.kind, "TEXT"),
                help=setting.help,
                show_default=self.unset.get(declared.name, shown_default) if default is None else shown_default,
                rich_help_panel=self.panel,
            )
        return Parameter(declared.name, Parameter.KEYWORD_ONLY, annotation=kind | None, default=told)

    def value(self, given: Mapping[str, Any]) -> T:
        """What the command line gave to these settings. A switch wins over a value."""
        values = {declared.name: given_value(declared, given.get(declared.name)) for declared in self.settings}
        switches = [(declared, *named) for declared in self.settings for named in switches_of(declared)]
        values |= {declared.name: switch.sets for declared, name, switch in switches if given[name]}
        return self.make(values)


def given_value(declared: Declared, given: str | list[str] | None) -> Any:
    """A setting's value from its texts on the command line, or its default."""
    if given is None:
        return declared.default
    return [parsed(declared, text) for text in given] if isinstance(given, list) else parsed(declared, given)


def parsed(declared: Declared, text: str) -> Any:
    """A setting's value from one text, or an error that names the flag. Ranges are checked when options are made."""
    parse, kind = declared.setting.parse, declared.kind
    if parse is not None:
        return parse(declared.flag, text)
    if kind is not int and kind is not float:
        return text
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{declared.flag}: found {shown(text)}; wanted {declared.wanted}.") from None


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


def sampling(*names: str, **defaults: Any) -> Flags[dict[str, Any]]:
    """Flags for sampling parameters. The command gets those that were given; the model's own stand for the others."""
    settings = named([one for one in SAMPLING_SETTINGS if one.setting.help], names, {})
    return Flags(
        settings=tuple(replace(one, default=defaults.get(one.name), is_optional=True) for one in settings),
        make=asked_for,
        unset={one.name: "the model's" for one in settings if PARAMETERS[one.name].in_checkpoints},
        panel=SAMPLING_PANEL,
    )


def of_file(settings: Sequence[Declared], *names: str, panel: str | None = None) -> Flags[dict[str, Any]]:
    """Flags for settings that a configuration file may set too. The command gets those that were given."""
    chosen = named(settings, names, {})
    autos = {one.name: f"{auto['cpu'].value}, GPU {auto['cuda'].value}" for one in chosen if (auto := one.setting.auto)}
    defaults = {one.name: str(one.default) for one in chosen if one.default is not None}
    return Flags(
        settings=tuple(replace(one, default=None, is_optional=True) for one in chosen),
        make=lambda values: {name: value for name, value in values.items() if value is not None},
        unset=defaults | autos,
        panel=panel,
    )


def asked_for(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling fields that were given on the command line, checked before the model is loaded."""
    given = {name: value for name, value in fields.items() if value is not None}
    SamplingParams(**given)
    return given


def command(*sources: Flags[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command. Typer reads options from a signature, so the command has one parameter per flag.

    An error that leaves the command names this command's flags where it named settings.
    """

    def with_flags(run: Callable[..., None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            try:
                run(*(source.value(given) for source in sources))
            except PlayheadError as error:
                error.args = (in_flags(str(error), (one for source in sources for one in source.settings)),)
                raise

        called.__name__, called.__doc__ = run.__name__, run.__doc__
        seen_by_typer: Any = called
        seen_by_typer.__signature__ = Signature([one for source in sources for one in source.parameters()])
        return called

    return with_flags


def in_flags(message: str, settings: Iterable[Declared]) -> str:
    """A message in the words of a command line: the flags of these settings in the place of their names.

    "max_model_len: found 9 ..." becomes "--max-model-len: found 9 ...". A name that is also an English word is replaced
    only where errors begin with it or advise to change it. Sizes get the unit without which a flag refuses them.
    """
    given = [one for one in settings if not one.setting.is_positional]
    flags = {one.name: one.flag for one in given}
    if not flags:
        return message
    words = "|".join(sorted(flags, key=len, reverse=True))
    unmistakable = "|".join(sorted((name for name in flags if "_" in name), key=len, reverse=True)) or "(?!)"
    for pattern in (
        rf"^({words})(?=: found )",
        rf"^sampling field '({words})'(?=: )",
        rf"(?<=Change )({words})(?= or leave it out)",
        rf"(?<![\w'.-])({unmistakable})(?![\w'.-])",
        rf"(?<![\w'.-])({unmistakable})(?=\.(?:\s|$))",
    ):
        message = re.sub(pattern, lambda found: flags[found.group(1)], message)
    sizes = "|".join(re.escape(one.flag) for one in given if one.setting.parse is parse_size) or "(?!)"
    return re.sub(rf"((?:{sizes})(?: to|: found) \d+)\b(?![.,]\d)", r"\1B", message)
