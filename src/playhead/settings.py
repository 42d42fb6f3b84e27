"""Settings declared once: a dataclass field carries what its check, its flag and its help are made of. No torch.

@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    num_prompts: int = declare(32, Setting(help="prompts, all sent at once", group="workload", low=1))

    def __post_init__(self) -> None:
        check_settings(self, WORKLOAD, refused_flag)

WORKLOAD = settings_of(Workload)

`Workload(num_prompts=0)` raises what `refused_flag` makes of it. The command line (`cli/command.py`) offers
`--num-prompts N` to every command that names the group "workload".
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from operator import attrgetter
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from playhead.errors import INT64_MAX, ConfigError, PlayheadError, shown

METADATA_KEY = "setting"
# Python refuses to read integers of thousands of digits.
SIZE = re.compile(r"(\d{1,100}(?:\.\d{1,100})?)\s*(?:B|([KMGT])(i?)B?)", re.IGNORECASE)
PLAIN_TYPES = frozenset({bool, int, float, str, type(None)})
POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}

Refused = Callable[[str, object, str], PlayheadError]
"""(field name, value, what was wanted) to the error that the setting's owner raises."""


def refused_setting(name: str, value: object, wanted: str) -> ConfigError:
    """The error for a setting that is called by its own name."""
    return ConfigError(f"{name}: found {shown(value)}; wanted {wanted}.")


def refused_flag(name: str, value: object, wanted: str) -> ConfigError:
    """The error for a setting that only a command line has."""
    return refused_setting("--" + name.replace("_", "-"), value, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Flags without a value: any of them sets the field to `sets`."""

    flags: tuple[str, ...]
    sets: object
    help: str


class Auto(NamedTuple):
    """What a setting becomes on one kind of device when it was left at None, and why."""

    value: Any
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a field says about itself besides its name, type and default. A subclass may say more.

    `low` and `high` bound a number and are allowed themselves; with `above` the number must be greater than `low`.
    `choices` are the only texts allowed; an enum's words need not be repeated here. `take` replaces these checks:
    `take(name, value)` gives the value to keep, or raises the owner's error.

    The flag is the field's name with dashes, or `flag`. `aliases` are further flags, such as vLLM's and SGLang's of the
    same meaning. A bool has no flag that takes a value: it has its `switches`, or one that sets it to True.
    `parse(where, text)` makes a value of a flag's text, or of a keyword given as text; its errors begin with `where`.
    With `is_positional` the value stands on the command line without a flag.
    `auto` has a value per kind of device ("cpu", "cuda") for a field that was left at None.
    """

    help: str
    group: str = ""
    flag: str = ""
    aliases: tuple[str, ...] = ()
    switches: tuple[Switch, ...] = ()
    is_positional: bool = False
    metavar: str = ""
    low: float | None = None
    high: float | None = None
    above: bool = False
    choices: tuple[str, ...] = ()
    take: Callable[[str, object], object] | None = None
    parse: Callable[[str, str], object] | None = None
    auto: Mapping[str, Auto] = field(default_factory=dict)


def declare(default: Any, setting: Setting) -> Any:
    """A dataclass field with its setting. With the default `MISSING` it must be given."""
    return field(default=default, metadata={METADATA_KEY: setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A field that has a `Setting`. `kind` is its type without None; a sequence's is that of its items."""

    name: str
    default: Any
    kind: type
    is_list: bool
    is_optional: bool
    setting: Setting
    value_of: Callable[[object], Any]

    @property
    def flag(self) -> str:
        return self.setting.flag or "--" + self.name.replace("_", "-")

    @property
    def words(self) -> tuple[str, ...]:
        """The only texts allowed; empty if any is."""
        return tuple(self.kind) if issubclass(self.kind, StrEnum) else self.setting.choices

    @property
    def wanted(self) -> str:
        """What values are allowed, as an error says it."""
        low, high, above = self.setting.low, self.setting.high, self.setting.above
        if self.kind is bool:
            return "True or False"
        if self.kind is int:
            least = -INT64_MAX - 1 if low is None else int(low)
            return f"a 64-bit integer from {least}" if high is None else f"an integer from {least} to {int(high)}"
        if self.kind is float:
            least_of = "" if low is None else f" {'above' if above else 'from'} {low:g}"
            return f"a finite number{least_of}" + (
                "" if high is None else f" {'and at most' if above else 'to'} {high:g}"
            )
        return f"one of {', '.join(self.words)}" if self.words else f"a {self.kind.__name__}"

    def taken(self, value: object, refused: Refused) -> object:
        """The value as the field keeps it, an enum's word as its member; or the owner's error."""
        if self.setting.take is not None:
            return self.setting.take(self.name, value)
        if value is None and self.is_optional:
            return value
        if isinstance(value, str) and self.setting.parse is not None:
            value = self.setting.parse(self.name, value)
        if not self._allows(value):
            raise refused(self.name, value, self.wanted)
        return self.kind(str(value)) if issubclass(self.kind, StrEnum) else value

    def _allows(self, value: object) -> bool:
        if self.kind is bool or isinstance(value, bool):
            return self.kind is bool and isinstance(value, bool)
        if self.kind is int or self.kind is float:
            if not isinstance(value, int if self.kind is int else (int, float)):
                return False
            edge = INT64_MAX if self.kind is int else float("inf")
            low = -edge - 1 if self.setting.low is None else self.setting.low
            high = edge if self.setting.high is None else self.setting.high
            # A NaN fails every comparison. An infinity can pass these and is refused by itself.
            return low <= value <= high and not (self.setting.above and value == low) and abs(value) != float("inf")
        is_kind = isinstance(value, str if issubclass(self.kind, StrEnum) else self.kind)
        return is_kind and (not self.words or value in self.words)


def settings_of(owner: type) -> tuple[Declared, ...]:
    """The declared settings of a dataclass, in its order."""
    hints = get_type_hints(owner)
    found = []
    for one in fields(owner):
        if METADATA_KEY not in one.metadata:
            continue
        is_union = get_origin(hints[one.name]) in (Union, types.UnionType)
        kinds = get_args(hints[one.name]) if is_union else (hints[one.name],)
        kind = next(kind for kind in kinds if kind is not type(None))
        is_list = get_origin(kind) is not None
        found.append(
            Declared(
                name=one.name,
                default=one.default,
                kind=get_args(kind)[0] if is_list else kind,
                is_list=is_list,
                is_optional=type(None) in kinds,
                setting=one.metadata[METADATA_KEY],
                value_of=attrgetter(one.name),
            )
        )
    return tuple(found)


def check_settings(owner: object, settings: Sequence[Declared], refused: Refused) -> None:
    """Check every field of a frozen dataclass in its `__post_init__`, and keep what `taken` gives."""
    check_values(owner, settings, [declared.value_of(owner) for declared in settings], refused)


def check_values(owner: object, settings: Sequence[Declared], values: Sequence[Any], refused: Refused) -> None:
    """The same where the fields' values are at hand."""
    for declared, value in zip(settings, values, strict=True):
        if value is declared.default:  # most are
            continue
        taken = declared.taken(plain(value), refused)
        if taken is not value:
            object.__setattr__(owner, declared.name, taken)  # frozen, so not by `=`


def plain(value: object) -> object:
    """A numpy scalar as the Python value it equals; anything else as it is."""
    if type(value) in PLAIN_TYPES:
        return value
    numpy = sys.modules.get("numpy")  # who has such a scalar has imported numpy; others need not
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def parse_size(where: str, text: str) -> int:
    """Bytes of a size as people write it: 1KiB is 1024, 1.5KB is 1500, 7B is 7. A number alone is refused."""
    found = SIZE.fullmatch(text.strip())
    if found is None:
        number = text.strip()
        example = f"{number}GiB, {number}MB, or {number}B for bytes" if number.isdecimal() else "139GiB, 80GB or 500MiB"
        raise ConfigError(f"{where}: found {shown(text)}; wanted a number and its unit. Write {example}.")
    amount, prefix, binary = found.groups()
    base = 1024 if binary else 1000
    return int(Fraction(amount) * base ** (POWERS[prefix.upper()] if prefix else 0))  # a float would round


def show_size(num_bytes: int) -> str:
    """Bytes for a person: 1536 is 1.50 KiB."""
    size, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{num_bytes} bytes" if unit == "bytes" else f"{size:.2f} {unit}"
