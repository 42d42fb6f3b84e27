"""Bodies, decoded strictly: JSON as its standard has it, and values of exactly the declared types. No torch.

bytes -> size, depth and number of values -> JSON -> no key twice -> a Struct

The work before JSON is parsed is linear in the body, and a body that would take much memory is refused before it does.
Nothing is converted: `"stream": 0` is no truth value, `"n": 1.0` is no integer. An error names the field by its path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import msgspec
from msgspec.inspect import ListType, LiteralType, Metadata, StructType, Type, UnionType, type_info

from playhead.engine.conversations import TEXT_ONLY
from playhead.errors import RequestError, did_you_mean, renamed, shown

T = TypeVar("T", bound=msgspec.Struct)

MAX_DEPTH = 64
MAX_CONTAINERS = 1 << 16
"""Lists and tables in one body. Each takes about a hundred bytes, and two bytes of JSON make one."""

MAX_STRINGS = 1 << 18
"""Keys included."""

MAX_VALUES = 1 << 21
"""A prompt of so many token ids is longer than any context."""

# Never goes back: every quantifier is possessive, and the end of the body closes a string that nothing else closes.
STRINGS = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
BRACKETS = b"[]{}"
NOT_BRACKETS = bytes(set(range(256)) - set(BRACKETS))

UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>.*)`$", re.DOTALL)
EXPECTED = re.compile(r"Expected (?:`(?P<wanted>[^`]*)`|(?P<range>.*?))(?:, got `(?P<found>[^`]*)`)?$", re.DOTALL)
VALUE = re.compile(r"Invalid (?:enum )?value (?P<found>.*)$", re.DOTALL)
NAMES = re.compile(r"(?:^|\.)(\w+)")
PART_TYPE = re.compile(r"content\[\d+\]\.type$")
MAX_SHOWN_PATH = 200
MAX_SHOWN_VALUE = 60


class BodyError(RequestError):
    """A body that cannot be read as this route's request. `param` is the path of the field that is wrong, if one is."""

    def __init__(self, param: str | None, found: str, wanted: str, fix: str, *, code: str | None = None) -> None:
        super().__init__(param or "body", found, wanted, fix)
        self.param, self.code = param, code


@contextmanager
def forms_named(field: str | None) -> Iterator[None]:
    """An error about the form of an answer names the field that asked for the form. None: that is the form's own."""
    try:
        yield
    except RequestError as error:
        if field is None or not error.where.startswith("structured_outputs field"):
            raise
        raise BodyError(field, error.found, error.wanted, error.fix, code="invalid_value") from None


@contextmanager
def fields_named(names: Mapping[str, str]) -> Iterator[None]:
    """An error about a sampling field of the library names the field by which the client set it."""
    try:
        yield
    except RequestError as error:
        for old, new in names.items():
            if error.where == f"sampling field {old!r}":
                raise renamed(error, {old: new}) from None
        raise


def decode(body: bytes, kind: type[T]) -> T:
    """The body as a request of this kind, or `BodyError`."""
    table = parse(body)
    if not isinstance(table, dict):
        raise BodyError(None, f"a JSON {json_kind(table)}", "an object", "Send the fields of the request in braces.")
    return as_struct(table, kind)


def parse(body: bytes) -> object:
    """The JSON value in the body, or `BodyError`."""
    if not body:
        raise BodyError(None, "nothing", "a JSON object", "Send one.")
    bare, num_strings = STRINGS.subn(b"", body, MAX_STRINGS + 1)
    if num_strings > MAX_STRINGS:
        raise BodyError(None, f"over {MAX_STRINGS} strings", "fewer", "Send less in one request.")
    check_size(bare)
    try:
        value = msgspec.json.decode(body)
    except UnicodeDecodeError:  # its place is one in a string of the body
        found = f"bytes that are not UTF-8 at byte {num_utf8_bytes(body)}"
        raise BodyError(None, found, "JSON in UTF-8", "Encode it.") from None
    except msgspec.DecodeError as error:  # its message has positions and kinds, and nothing of the body
        raise BodyError(None, f"JSON that cannot be read: {error}", "JSON", "Correct it.") from None
    # In JSON every colon outside of strings stands behind a key.
    if num_keys(value) != bare.count(b":"):
        raise BodyError(
            None, f"the key {shown(repeated_key(body))} twice in one object", "every key once", "Remove one."
        )
    return value


def num_utf8_bytes(body: bytes) -> int:
    """How many bytes come before the first that is no UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(body)


def check_size(bare: bytes) -> None:
    """Refuse a body, given without its strings, that is nested too deeply or has too many values."""
    if (num_commas := bare.count(b",")) >= MAX_VALUES:
        raise BodyError(None, f"over {num_commas} values", f"at most {MAX_VALUES}", "Send less in one request.")
    brackets = bare.translate(None, NOT_BRACKETS)
    if (num_containers := len(brackets) // 2) > MAX_CONTAINERS:
        wanted = f"at most {MAX_CONTAINERS}"
        raise BodyError(None, f"{num_containers} lists and objects", wanted, "Send less in one request.")
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise BodyError(None, f"JSON deeper than {MAX_DEPTH} levels", "less", "Send a flatter body.")


def num_keys(value: object) -> int:
    """How many keys all objects inside a JSON value have."""
    count, open_values = 0, [value]
    while open_values:
        one = open_values.pop()
        if isinstance(one, dict):
            count += len(one)
            open_values.extend(one.values())
        # A list of token ids has a million entries and nothing to look into: its types are read without a Python loop.
        elif isinstance(one, list) and not {dict, list}.isdisjoint(set(map(type, one))):
            open_values.extend(one)
    return count


def repeated_key(body: bytes) -> str:
    """A key that one object of the body has twice."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        seen = set()
        for key, _ in pairs:
            if key in seen:
                repeated.append(key)
            seen.add(key)

    json.loads(body, object_pairs_hook=look)
    return repeated[0] if repeated else ""


def as_struct(table: Mapping[str, object], kind: type[T]) -> T:
    """The table as a Struct, or `BodyError` that names the field."""
    try:
        return msgspec.convert(table, kind, strict=True)
    except msgspec.ValidationError as error:
        raise_named(str(error), kind)


def raise_named(message: str, kind: type[msgspec.Struct]) -> NoReturn:
    """The error of a wrong field, in our words. Messages end in the path: "... - at `$.messages[0].content`"."""
    what, _, at = message.rpartition(" - at `$")
    what, path = (what, at.removesuffix("`").removeprefix(".")) if what else (message, "")
    path = path.replace("[...]", "")[:MAX_SHOWN_PATH]
    if found := UNKNOWN_FIELD.match(what):
        name = found["name"][:MAX_SHOWN_PATH]
        known = [one.encode_name for one in msgspec.structs.fields(kind)] if not path else []
        fix = did_you_mean(name, known, "Remove it.", spelled=repr)
        raise BodyError(inside(path, name), "unknown parameter", "", fix, code="unknown_parameter")
    if found := MISSING_FIELD.match(what):
        raise BodyError(inside(path, found["name"]), "missing", "", "Add it.", code="missing_required_parameter")
    if found := VALUE.match(what):
        # The parts of a message's content; other parts than text are known to clients, and not read here.
        fix = TEXT_ONLY if PART_TYPE.search(path) else "Change it."
        wanted = f"one of {', '.join(map(repr, words_at(path, kind)))}"
        raise BodyError(path, f"found {found['found'][:MAX_SHOWN_VALUE]}", wanted, fix, code="invalid_value")
    if (expected := EXPECTED.match(what)) is None:
        raise BodyError(path, what, "another value", "Change it.", code="invalid_value")
    wanted = (expected["wanted"] or expected["range"]).replace(" | ", " or ").replace("array", "list")
    found_kind = expected["found"]
    if found_kind is None:
        raise BodyError(path, "a value out of range", wanted, "Change it.", code="invalid_value")
    raise BodyError(path, f"found {found_kind}", wanted, "Change it.", code="invalid_type")


def words_at(path: str, kind: type[msgspec.Struct]) -> list[str]:
    """The words that the field at this path may hold: "messages[0].role" to the roles."""
    kinds = [type_info(kind)]
    for name in NAMES.findall(path):
        kinds = [field for one in parts_of(kinds) if isinstance(one, StructType) for field in fields_at(one, name)]
    return sorted({str(word) for one in parts_of(kinds) if isinstance(one, LiteralType) for word in one.values})


def fields_at(kind: StructType, name: str) -> list[Type]:
    """What a Struct has under this name. Its tag is the only word there."""
    found = [one.type for one in kind.fields if one.encode_name == name]
    return [*found, LiteralType(values=(str(kind.tag),))] if kind.tag_field == name else found


def parts_of(kinds: Iterable[Type]) -> Iterator[Type]:
    """The types themselves: members of unions, and items of lists."""
    for one in kinds:
        match one:
            case UnionType(types=types):
                yield from parts_of(types)
            case ListType(item_type=item):
                yield from parts_of([item])
            case Metadata(type=noted):
                yield from parts_of([noted])
            case _:
                yield one


def inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def json_kind(value: object) -> str:
    """JSON's word for a value that is no object."""
    kinds = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
