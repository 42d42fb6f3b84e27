"""Fields that are read and then ignored, and fields that are refused, each with its reason beside its type.

store: Annotated[bool | None, ignored("nothing is stored")] = None
suffix: Annotated[str | None, refused("Models here continue a prompt; they do not fill gaps.")] = None

A request gets an answer that does not depend on an ignored field. A refused field would change the answer: any value
but null and the neutral ones is an error. The table in the documents is made from these notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec

from playhead.serve.decode import BodyError, inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What happens to a field: it is ignored, or it is refused unless its value is one of `neutral`."""

    why: str
    is_refused: bool
    neutral: tuple[object, ...] = ()


def ignored(why: str) -> msgspec.Meta:
    """A field that changes nothing."""
    return msgspec.Meta(extra={"note": Note(why=why, is_refused=False)}, description=f"Ignored: {why}.")


def refused(fix: str, *neutral: object) -> msgspec.Meta:
    """A field that cannot be served. `fix` says what to do instead."""
    note = Note(why=fix, is_refused=True, neutral=neutral)
    return msgspec.Meta(extra={"note": note}, description=f"Refused. {fix}")


@cache
def notes_of(kind: type[msgspec.Struct]) -> Mapping[str, Note]:
    """The noted fields of a request, by name."""
    notes = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for meta in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            if isinstance(meta, msgspec.Meta) and meta.extra is not None and "note" in meta.extra:
                notes[name] = meta.extra["note"]
    return notes


def check_refused(request: msgspec.Struct, path: str = "") -> None:
    """`BodyError` for the first field that asks for what cannot be served. `path` is where the Struct stands."""
    for name, note in notes_of(type(request)).items():
        if not note.is_refused:
            continue
        value = attrgetter(name)(request)
        if value is not None and value not in note.neutral:
            raise BodyError(inside(path, name), "not supported", "", note.why, code="unsupported_parameter")
