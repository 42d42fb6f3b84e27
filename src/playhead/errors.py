"""Errors Playhead raises on purpose.

PlayheadError
├── ConfigError             a setting is wrong; raised before any device memory is taken
├── UnsupportedModelError   the config asks for something this decoder does not compute
├── CheckpointError         files and model description disagree, or a file is damaged
├── ChatTemplateError       a chat template refused its messages, or was refused itself
├── AbsentFeature           a name or a method of another engine that this one does not have
├── RequestError            this request cannot be served; others go on
│   ├── NoTokenLeft         an answer cannot go on: its grammar and its other fields forbid every token
│   └── QueueFull           the same request may be served later
├── RequestFailed           this request's own work raised after it had begun; others go on
├── StepFailed              a step raised, and this request was in flight
├── RequestTimedOut         this request waited or ran longer than it may; others go on
├── EngineStopped           an AsyncEngine was closed, or it is dead
│   └── EnginesLost         one engine after another was lost while it had this request
├── RankLost                a rank of a tensor-parallel engine has gone, and the engine with it
├── MisuseError             closed, a second event loop, a forked child, or a call from within a step
├── OutOfPages              a KV group has no free page; the scheduler handles it
├── ContextTooLong          a sequence was extended past the planned maximum context
├── LedgerError             the account of KV pages does not balance: a bug, never load
│   ├── DoubleFree          a page was given back that is not held
│   └── PagesLost           a running request had pages that do not balance; the request ended
├── StaleTranslation        a translation was used, or a step launched, with an outdated mapping: a bug
└── GraphError              a captured graph's contract was broken: a bug, never load
    ├── SlotError           a graph input was declared or filled wrongly
    └── CaptureError        what was to be captured cannot be replayed

A message says where, what was found, what was wanted, and what to do, as far as each says something.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

MAX_LISTED = 8
INT64_MAX = 2**63 - 1

NO_POOLING = "Playhead generates text: it has no pooling models."


class PlayheadError(Exception):
    """Base of all errors Playhead raises on purpose.

    >>> try:
    ...     llm.generate([1, 2, 999_999])
    ... except PlayheadError as error:
    ...     print(error)
    prompt: token id 999999; wanted ids in [0, 4096). Check the tokenizer.

    An error reaches other processes as it is: pools of processes send what a worker raised.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the class with the message alone. Most classes here want something else, and a pool that
        # cannot read a worker's error waits for ever.
        return unpickled, (type(self), self.args), self.__dict__


class DescribedError(PlayheadError):
    """An error whose four parts can be read one by one. `wanted` may be empty where the fix says it all."""

    def __init__(self, where: str, found: str, wanted: str, fix: str) -> None:
        super().__init__(f"{where}: {found}{f'; wanted {wanted}' if wanted else ''}. {fix}")
        self.where, self.found, self.wanted, self.fix = where, found, wanted, fix


class ConfigError(PlayheadError, ValueError):
    """A setting is wrong. A `ValueError` too: scripts for other engines catch that."""


class UnsupportedModelError(PlayheadError):
    """The config asks for something this decoder does not compute."""

    def __init__(self, key: str, found: object, supported: Iterable[object], fix: str = "") -> None:
        listed = ", ".join(str(value) for value in supported)
        value = f"{found!r:.200}" if isinstance(found, str) else shown(found)
        super().__init__(f"config key {key!r}: found {value}; supported: {listed}.{' ' + fix if fix else ''}")
        self.key, self.found = key, found

    def with_more(self, keys: Sequence[str]) -> UnsupportedModelError:
        """The same error, with the names of further keys that are wrong too."""
        error = UnsupportedModelError(self.key, self.found, ())
        error.args = (f"{self} Also wrong: {some_of(keys)}.",)
        return error


class CheckpointError(DescribedError):
    """Files and model description disagree, or a file is damaged. Nothing has been loaded."""


class ChatTemplateError(PlayheadError):
    """A chat template refused its messages, or was refused itself."""


class AbsentFeature(PlayheadError, ImportError):
    """A name or a method that other engines have and this one does not. An `ImportError` where a name was imported."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")


class RequestError(DescribedError, ValueError):
    """This request cannot be served. Nothing of it has started. A `ValueError` too, as in other engines."""


class NoTokenLeft(RequestError):
    """An answer cannot go on: what its grammar allows, other fields of the request forbid."""

    def __init__(self, request_id: str, num_tokens: int) -> None:
        super().__init__(
            f"request {request_id!r}",
            f"no token that may follow the {num_tokens} so far",
            "one that the grammar and the other sampling fields allow",
            "Change min_tokens, allowed_token_ids or bad_words, or the grammar.",
        )
        self.num_tokens = num_tokens


class QueueFull(RequestError):
    """The queue has no room for this request now. Sent again later it may be served."""

    @classmethod
    def of(cls, where: str, num_there: int, num_more: int, most: int) -> QueueFull:
        """There are `num_there` sequences, and `most` may be there."""
        found = f"{num_there} sequences running or waiting and {num_more} more"
        return cls(where, found, f"at most {most}", "Send it again when some are done.")


class RequestFailed(PlayheadError):
    """What belongs to this request alone raised: its text, its sampler row. `__cause__` is what was raised."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request {request_id!r} ended with an error of its own. Read the cause; other requests go on."
        )
        self.request_id = request_id


class StepFailed(PlayheadError):
    """A step raised while this request was in flight. `__cause__` is what it raised."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where}: a step raised an exception. Read the cause; new requests are taken.")


class RequestTimedOut(PlayheadError):
    """A request waited for its first token, or ran after it, longer than the server allows."""

    def __init__(self, request_id: str, what: str, limit_s: float) -> None:
        super().__init__(f"request {request_id!r}: {what} for more than {limit_s:g} s, the limit. Send it again later.")
        self.request_id = request_id


class EngineStopped(PlayheadError):
    """The engine was closed, or it is dead. `__cause__` is what it died of."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where}: the engine was closed, or it is dead. Start it again, or make a new one.")


class EnginesLost(EngineStopped):
    """One engine after another was lost while it had this request, which may be what ends them."""

    def __init__(self, request_id: str, num_engines: int) -> None:
        PlayheadError.__init__(
            self,
            f"request {request_id!r}: {num_engines} engines were lost while they had it. It may be what ends them: do "
            "not send it again as it is.",
        )
        self.request_id, self.num_engines = request_id, num_engines


class RankLost(PlayheadError):
    """A process that had a part of the model has gone, or no longer answers. The engine has ended with it."""

    def __init__(self, rank: int, found: str, num_ranks: int) -> None:
        super().__init__(f"rank {rank} of {num_ranks} {found}. The engine has ended: close it and make a new one.")
        self.rank = rank


class MisuseError(PlayheadError):
    """An engine was used in a way that it cannot be. Nothing of the call has happened; other calls go on."""


class OutOfPages(PlayheadError):
    """A KV group has no free page left."""

    def __init__(self, group: str, wanted: int, free: int) -> None:
        super().__init__(f"KV group {group!r}: wanted {wanted} pages, {free} free")
        self.group, self.wanted, self.free = group, wanted, free


class ContextTooLong(PlayheadError):
    """A sequence was extended past the planned maximum context."""

    def __init__(self, request: str, found_tokens: int, wanted_tokens: int) -> None:
        super().__init__(
            f"request {request!r}: {found_tokens} tokens; wanted at most {wanted_tokens}, the planned maximum context. "
            "Refuse the request at admission or plan with a larger max_context_tokens"
        )


class LedgerError(PlayheadError):
    """The account of pages does not balance."""


class DoubleFree(LedgerError):
    """A page was given back that is not held."""

    def __init__(self, group: str, page: int) -> None:
        super().__init__(
            f"KV group {group!r}: page {page} was given back, but it is not held; wanted a page handed out by take(). "
            "Freeing takes ownership: drop the list after giving it back"
        )
        self.group, self.page = group, page


class PagesLost(LedgerError):
    """A request's KV pages failed the ledger's audit, so its next tokens could be wrong: it ended."""

    def __init__(self, request: str, violation: object) -> None:
        super().__init__(
            f"request {request!r}: its KV pages failed the audit ({violation}). The pages are in quarantine and other "
            "requests go on. This is a bug in Playhead; please report it with what LLM.kv_report() prints"
        )
        self.violation = str(violation)


class StaleTranslation(PlayheadError):
    """The mapping changed after it was last published or translated."""

    def __init__(self, where: str, found: int, wanted: int, fix: str) -> None:
        super().__init__(f"{where}: mapping version {found}; wanted version {wanted}. {fix}")
        self.found, self.wanted = found, wanted


class GraphError(PlayheadError):
    """A captured graph's contract was broken."""


class SlotError(GraphError):
    """A graph input was declared or filled wrongly."""

    def __init__(self, slot: str, found: str, wanted: str, fix: str) -> None:
        super().__init__(f"slot {slot!r}: {found}; wanted {wanted}. {fix}")
        self.slot, self.found, self.wanted, self.fix = slot, found, wanted, fix


class CaptureError(GraphError):
    """What was to be captured cannot be replayed."""

    def __init__(self, op: str, where: str, why: str, fix: str) -> None:
        super().__init__(f"{op} at {where}: {why}. {fix}")
        self.op, self.where, self.why, self.fix = op, where, why, fix


def unpickled(kind: type[PlayheadError], args: tuple[object, ...]) -> PlayheadError:
    """An error with this message, made without `__init__`."""
    return kind.__new__(kind, *args)


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same refusal with fields called otherwise, wherever it speaks of them. What was found stays as it was."""
    own = rf"\b({'|'.join(map(re.escape, names))})\b"
    where, wanted, fix = (
        re.sub(own, lambda found: names[found[0]], part) for part in (error.where, error.wanted, error.fix)
    )
    return RequestError(where, error.found, wanted, fix)


def caused(error: PlayheadError, cause: BaseException | None) -> PlayheadError:
    """An error with what led to it, as `raise error from cause` would have it."""
    error.__cause__ = cause
    return error


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, spelled: Callable[[str], str] = str) -> str:
    """What to do about an unknown name: take the known one that is nearest, or `otherwise` if none is near."""
    import difflib  # `import playhead` brings this module, and few names are mistyped

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {spelled(close[0])}?" if close else otherwise


def shown(value: object) -> str:
    """A value as an error may print it: short, whatever was sent."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > INT64_MAX:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print the longest ones
    try:
        return reprlib.repr(value)
    except ValueError:  # such an integer inside
        return f"a {type(value).__name__}"


def some_of(names: Sequence[str]) -> str:
    """The first few names and how many more: a wrong checkpoint can have thousands."""
    listed = ", ".join(names[:MAX_LISTED])
    return listed if len(names) <= MAX_LISTED else f"{listed} and {len(names) - MAX_LISTED} more"
