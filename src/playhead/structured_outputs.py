"""What an answer must look like: a JSON schema, a regular expression, a list of texts or a grammar. No torch.

Names are those of vLLM's `StructuredOutputsParams`. Sizes and types are checked when the object is made. Whether a
schema, an expression or a grammar can be served is known when `playhead.grammar` compiles it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Self

from playhead.errors import RequestError, did_you_mean, shown

MAX_GRAMMAR_BYTES = 64 << 10
MAX_GRAMMAR_DEPTH = 32

KINDS = ("json", "regex", "choice", "grammar", "json_object")
UNSUPPORTED = {
    "structural_tag": "Write the tags into a grammar.",
    "disable_fallback": "There is one engine of grammars and nothing to fall back to.",
    "disable_additional_properties": "Write additionalProperties: false into the schema.",
    "whitespace_pattern": "disable_any_whitespace=True allows none between the parts of JSON.",
}
"""Fields of vLLM's that are refused, each with what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The form of an answer: exactly one of `json`, `regex`, `choice`, `grammar` and `json_object`.

    `json` is a JSON schema, as a dict or as its text. `regex` must match the whole answer. `choice` lists the texts
    that an answer can be. `grammar` is a Lark grammar, or one in GBNF, as llguidance reads them. `json_object=True`
    asks for any JSON object. With `disable_any_whitespace` JSON has no white space between its parts. `before` is a
    grammar, too, of what stands before the form: a model's reasoning.

    >>> StructuredOutputs(choice=["yes", "no"])
    StructuredOutputs(choice=('yes', 'no'))
    >>> StructuredOutputs(json={"type": "integer"}).json
    '{"type":"integer"}'
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    before: str | None = None

    def __new__(cls, **given: object) -> Self:
        # Before __init__, whose TypeError would not say what there is instead. Type checkers read __init__.
        for name in given:
            if name not in FIELDS:
                fix = UNSUPPORTED.get(name) or did_you_mean(name, FIELDS, "Remove it.")
                raise refused(name, "no such field", f"one of {', '.join(FIELDS)}", fix)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        flags = (("json_object", self.json_object), ("disable_any_whitespace", self.disable_any_whitespace))
        for name, flag in flags:
            if not (flag is None and name == "json_object") and not isinstance(flag, bool):
                raise refused(name, shown(flag), "True or False")
        given = [name for name in KINDS if is_given(attrgetter(name)(self))]
        if len(given) != 1:
            raise RequestError(
                "structured_outputs",
                f"{' and '.join(given) if given else 'no kind'}",
                f"exactly one of {', '.join(KINDS)}",
                "Send one request for each.",
            )
        taken = {"json": schema_text, "regex": pattern_text, "choice": choices, "grammar": pattern_text}
        take = taken.get(self.kind)
        if take is not None:
            object.__setattr__(self, self.kind, take(self.kind, attrgetter(self.kind)(self)))  # frozen, so not by `=`
        if self.before is not None:
            pattern_text("before", self.before)

    @property
    def kind(self) -> str:
        """The one field of `KINDS` that is given."""
        return next(name for name in KINDS if is_given(attrgetter(name)(self)))

    def values(self) -> dict[str, Any]:
        """The fields that are given, as plain values: `StructuredOutputs(**values)` is equal to this one."""
        return {name: value for name in FIELDS if is_given(value := attrgetter(name)(self))}

    def __repr__(self) -> str:
        return f"StructuredOutputs({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"


FIELDS = tuple(one.name for one in fields(StructuredOutputs))


def is_given(value: object) -> bool:
    return value is not None and value is not False


def structured_outputs(name: str, value: object) -> StructuredOutputs | None:
    """The value of a sampling field: the object itself, or one made of a mapping with its fields."""
    if value is None or isinstance(value, StructuredOutputs):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return StructuredOutputs(**value)
    wanted = "a StructuredOutputs, or a dict of its fields"
    raise RequestError(f"sampling field {name!r}", f"a {type(value).__name__}", wanted, "Make it one.")


def refused(name: str, found: str, wanted: str, fix: str = "") -> RequestError:
    """The error for one field."""
    return RequestError(f"structured_outputs field {name!r}", found, wanted, fix or f"Change {name}.")


def schema_text(name: str, value: object) -> str:
    """A JSON schema as compact text. The order of its keys stays: answers have their properties in that order."""
    if isinstance(value, str):
        checked_text(name, value)
        try:
            value = json.loads(value, parse_constant=not_a_number)
        except (ValueError, RecursionError):
            raise refused(name, "text that is not JSON", "a JSON schema", "Correct the schema.") from None
    if not isinstance(value, Mapping):
        raise refused(name, f"a {type(value).__name__}", "a JSON schema: an object, or its text")
    check_depth(name, value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):
        raise refused(name, "values that JSON does not have", "a JSON schema", "Correct the schema.") from None
    return checked_text(name, text)


def not_a_number(constant: str) -> None:
    raise ValueError(constant)


def check_depth(name: str, value: object) -> None:
    """Refuse JSON that is nested too deeply or has more values than its text could have bytes."""
    level, num_values = [value], 1
    for _ in range(MAX_GRAMMAR_DEPTH):
        level = [child for parent in level for child in children(parent)]
        num_values += len(level)
        if not level:
            return
        if num_values > MAX_GRAMMAR_BYTES:
            raise refused(name, "too many values", f"at most {MAX_GRAMMAR_BYTES} bytes of JSON", "Send a smaller one.")
    if any(isinstance(one, Mapping | list | tuple) for one in level):
        raise refused(name, "deeper nesting", f"a depth of at most {MAX_GRAMMAR_DEPTH}", "Send a flatter one.")


def children(value: object) -> Sequence[object]:
    if isinstance(value, Mapping):
        return tuple(value.values())
    return value if isinstance(value, list | tuple) else ()


def pattern_text(name: str, value: object) -> str:
    """A regular expression or a grammar, not nested too deeply."""
    text = checked_text(name, value)
    depth = deepest = 0
    is_escaped = False
    for char in text:
        if is_escaped:
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        else:
            depth += (char in "([{") - (char in ")]}")
            deepest = max(deepest, depth)
    if deepest > MAX_GRAMMAR_DEPTH:
        found, wanted = f"brackets {deepest} deep", f"at most {MAX_GRAMMAR_DEPTH}"
        raise refused(name, found, wanted, "Send a flatter one.")
    return text


def choices(name: str, value: object) -> tuple[str, ...]:
    """The texts an answer can be, each once."""
    wanted = f"a list of texts that are not empty, with at most {MAX_GRAMMAR_BYTES} bytes in all"
    if not isinstance(value, list | tuple) or not value:
        raise refused(name, shown(value), wanted)
    for one in value:
        if not isinstance(one, str) or not one:
            raise refused(name, shown(one), wanted)
    checked_text(name, "".join(value))
    return tuple(dict.fromkeys(value))


def checked_text(name: str, value: object) -> str:
    """Text that is not empty, not too long and Unicode."""
    if not isinstance(value, str) or not value:
        raise refused(name, shown(value), "a text that is not empty")
    if "\0" in value:
        raise refused(name, "a character U+0000", "text without it")
    try:
        num_bytes = len(value.encode())
    except UnicodeEncodeError:
        raise refused(name, "text that is not Unicode", "characters that UTF-8 can write") from None
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise refused(name, f"{num_bytes} bytes", f"at most {MAX_GRAMMAR_BYTES}", "Send a smaller one.")
    return value
