"""How the values of sampling fields are taken: checked, copied, and refused by the field's name. No torch.

The bounds here are the library's: wider than any use, so that a mistake is refused before it takes memory. What a
server allows its clients is in `request_limits.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from playhead.errors import RequestError, shown
from playhead.settings import plain

MAX_TEXTS = 4_096
MAX_TEXT_CHARS = 65_536
MAX_TOKEN_IDS = 1 << 21  # more than any vocabulary has
MAX_LONG_WORDS = 256  # bad words of several tokens: a table on the device has a line for each
MAX_WORD_TOKENS = 17
BIAS_BOUND = 1e9  # a token is certain or impossible far below this, and float32 sums of it stay finite


def refused(name: str, value: object, wanted: str) -> RequestError:
    """The error for one field."""
    return RequestError(f"sampling field {name!r}", shown(value), wanted, f"Change {name} or leave it out.")


def entries(name: str, value: object, most: int, wanted: str) -> Sequence[object]:
    """The entries of a list or tuple that is not too long. None has none."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise refused(name, value, wanted)
    if len(value) > most:
        raise RequestError(f"sampling field {name!r}", f"{len(value)} entries", wanted, "Send fewer.")
    return value


def texts(name: str, value: object) -> tuple[str, ...]:
    """Strings that are not empty. A string alone counts as one, None as none."""
    wanted = f"at most {MAX_TEXTS} strings of 1 to {MAX_TEXT_CHARS} characters"
    given = entries(name, (value,) if isinstance(value, str) else value, MAX_TEXTS, wanted)
    strings = []
    for entry in given:
        if not isinstance(entry, str):
            raise refused(name, entry, wanted)
        if not 1 <= len(entry) <= MAX_TEXT_CHARS:
            found = f"a string of {len(entry)} characters"
            raise RequestError(f"sampling field {name!r}", found, wanted, f"Change {name} or leave it out.")
        strings.append(entry)
    return tuple(strings)


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """Token ids as given, each once; whether the vocabulary has them is checked later. None is none."""
    given = entries(name, value, MAX_TOKEN_IDS, f"at most {MAX_TOKEN_IDS} token ids")
    return tuple(dict.fromkeys(token_id(name, entry) for entry in given))


def allowed_ids(name: str, value: object) -> tuple[int, ...] | None:
    """The only token ids there may be, at least one. None allows all."""
    if value is None:
        return None
    ids = token_ids(name, value)
    if not ids:
        raise refused(name, value, "at least one token id, or None for all of them")
    return ids


def token_id(name: str, value: object) -> int:
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refused(name, value, "token ids: integers from 0")
    return value


def biases(name: str, value: object) -> dict[int, float]:
    """A copy of the bias by token id. None is none."""
    if value is None or (type(value) is dict and not value):  # most requests have none
        return {}
    wanted = f"at most {MAX_TOKEN_IDS} pairs of a token id and a number in [-{BIAS_BOUND:g}, {BIAS_BOUND:g}]"
    if not isinstance(value, Mapping):
        raise refused(name, value, wanted)
    if len(value) > MAX_TOKEN_IDS:
        raise RequestError(f"sampling field {name!r}", f"{len(value)} entries", wanted, "Send fewer.")
    return {token_id(name, key): bias(name, number) for key, number in value.items()}


def bias(name: str, value: object) -> float:
    value = plain(value)
    # A NaN fails every comparison.
    if isinstance(value, bool) or not isinstance(value, int | float) or not -BIAS_BOUND <= value <= BIAS_BOUND:
        raise refused(name, value, f"a finite number from {-BIAS_BOUND:g} to {BIAS_BOUND:g}")
    return value
