"""Settings declared once: a dataclass field carries what its check, its flag and its help are made of. No torch.

@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    num_prompts: int = declare(32, Setting(help="prompts, all sent at once", group="workload", low=1))

WORKLOAD = settings_of(Workload)

`check_settings(workload, WORKLOAD, refused)` in `__post_init__` refuses 0. The command line offers `--num-prompts N` to
every command that names the group "workload".
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

from playhead.errors import INT64_MAX, ConfigError, PlayheadError

METADATA_KEY = "setting"
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)
POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a field says about itself besides its name, type and default. Subclasses may say more.

    `low` and `high` bound a number and are allowed themselves; with `above` the number must be greater than `low`.
    `choices` are the only texts allowed; the words of an enum need not be repeated here. `take` replaces these checks:
    `take(value)` gives the value to keep or raises the owner's error.

    The flag is the field's name with dashes. `aliases` are further flags of the same meaning, such as vLLM's and
    SGLang's. `switches` are flags without a value: `{"--enforce-eager": "eager"}` sets the field to "eager". A bool
    has only switches. `parse` makes a value of a flag's text. `becomes` is shown as the default where None is.
    """

    help: str
    group: str = ""
    aliases: tuple[str, ...] = ()
    switches: Mapping[str, object] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    above: bool = False
    choices: tuple[str, ...] = ()
    take: Callable[[object], object] | None = None
    parse: Callable[[str], object] | None = None
    metavar: str = ""
    becomes: str = ""


def declare(default: Any, setting: Setting) -> Any:
    """A dataclass field with a setting's metadata."""
    return field(default=default, metadata={METADATA_KEY: setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A field that has a `Setting`. `kind` is its type without None; a list of texts has kind str and `is_list`."""

    name: str
    default: Any
    kind: type
    is_list: bool
    is_optional: bool
    setting: Setting
    value_of: Callable[[object], Any]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def wanted(self) -> str:
        """What values are allowed, as an error says it."""
        low, high = self.setting.low, self.setting.high
        if self.kind is bool:
            return "True or False"
        if self.kind is int:
            least = -INT64_MAX - 1 if low is None else int(low)
            return f"a 64-bit integer from {least}" if high is None else f"an integer from {least} to {int(high)}"
        if self.kind is float:
            bounds = f" {'above' if self.setting.above else 'from'} {low:g}" if low is not None else ""
            most = f" {'and at most' if self.setting.above else 'to'} {high:g}" if high is not None else ""
            return f"a finite number{bounds}{most}"
        return f"one of {', '.join(self.words)}"

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.kind) if issubclass(self.kind, StrEnum) else self.setting.choices

    def taken(self, value: object, refused: Refused) -> object:
        """The value as the field keeps it, an enum's word as its member, or the owner's error."""
        if self.setting.take is not None:
            return self.setting.take(value)
        if value is None and self.is_optional:
            return value
        if not self._allows(value):
            raise refused(self.name, value, self.wanted())
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
            # A NaN fails every comparison. An infinity passes the two and is refused by itself.
            return low <= value <= high and not (self.setting.above and value == low) and abs(value) != float("inf")
        return isinstance(value, str) and (not self.words or value in self.words)


Refused = Callable[[str, object, str], PlayheadError]
"""(field name, value, what was wanted) to the owner's error."""


def settings_of(owner: type) -> tuple[Declared, ...]:
    """The declared settings of a dataclass, in its order."""
    hints = get_type_hints(owner)
    found = []
    for one in fields(owner):
        setting = one.metadata.get(METADATA_KEY)
        if not isinstance(setting, Setting):
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
                setting=setting,
                value_of=attrgetter(one.name),
            )
        )
    return tuple(found)


def check_settings(owner: object, settings: Sequence[Declared], refused: Refused) -> None:
    """Check every field of a frozen dataclass in its `__post_init__`, and keep what `taken` gives."""
    for declared in settings:
        value = declared.value_of(owner)
        taken = declared.taken(value, refused)
        if taken is not value:
            object.__setattr__(owner, declared.name, taken)  # frozen, so not by `=`


def parse_size(text: str) -> int:
    """Bytes of a size as people write it: 1KiB is 1024, 1.5KB is 1500, 7 is 7."""
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"size: found {text!r}; wanted a number and a unit. Write it like 139GiB, 80GB or 500MiB.")
    number, prefix, binary = found.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** (POWERS[prefix.upper()] if prefix else 0))


def show_size(num_bytes: int) -> str:
    """Bytes for a person: 1536 is 1.50 KiB."""
    size, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{num_bytes} bytes" if unit == "bytes" else f"{size:.2f} {unit}"
