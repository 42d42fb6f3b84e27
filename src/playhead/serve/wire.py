"""What the HTTP side and the engine's process say to each other. No torch, and nothing that could run code.

    frame:  | bytes of the payload, 4 bytes | kind, 1 byte | payload |

A message is msgpack of one of the structs below. The tokens of a step, which come most often, are arrays of 32-bit
numbers. The engine's process sends one frame of tokens per step, whatever the number of rows.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, get_type_hints

import msgspec

from playhead import __version__
from playhead.engine.config import ENGINE_SETTINGS, EngineConfig
from playhead.engine.snapshot import EngineSnapshot
from playhead.errors import (
    CheckpointError,
    ConfigError,
    DescribedError,
    NoTokenLeft,
    PagesLost,
    PlayheadError,
    QueueFull,
    RequestError,
    RequestFailed,
    StepFailed,
)
from playhead.outputs import FinishReason, Logprob
from playhead.sampling_params import SAMPLING_SETTINGS, SamplingParams
from playhead.settings import Declared
from playhead.types import TokenReport

HEAD = struct.Struct("<IB")
STEP_HEAD = struct.Struct("<QII")
MAX_FRAME_BYTES = 1 << 28  # a prompt of a million tokens is 4 MB; a length beyond this is not one of ours
WORD = "I"
ENDS: tuple[FinishReason | None, ...] = (None, *FinishReason)
"""How a row's end is written: its place in here."""

Report = tuple[int, float, int | None]
"""Token id, logprob, rank."""


class Kind(IntEnum):
    """What a frame's payload is."""

    MESSAGE = 1
    STEP = 2


class FrameError(ValueError):
    """Bytes that no process of ours sends. The connection cannot be used any more."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """To the engine: the first message, what to load. `version` is the front's: its messages are those of no other."""

    model: str
    config: dict[str, Any]
    name: str | None
    version: str = __version__


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """To the engine: run this sequence. `ids` are an array. Stop strings and texts stay on the HTTP side.

    `output` are the tokens that another engine gave of it, also as an array; their logprobs stay on the HTTP side too.
    """

    number: int
    ids: bytes
    params: dict[str, Any]
    max_new_tokens: int
    bad_words: tuple[tuple[int, ...], ...] = ()
    ending_ids: tuple[int, ...] = ()
    late_ids: tuple[int, ...] = ()
    salt: str = ""
    priority: int = 0
    output: bytes = b""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """To the engine: end these sequences, whose tokens are no longer wanted. There is no answer."""

    numbers: tuple[int, ...]


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """To the engine: show yourself. The answer is `Shown`."""

    after_step: int


class Here(msgspec.Struct, frozen=True, tag="here"):
    """To the engine, twice a second: its front is there. Later ones have greater numbers; a beat says the last one."""

    number: int


class ErrorNote(msgspec.Struct, frozen=True):
    """An error by its name and the texts it is made of."""

    name: str
    texts: tuple[str, ...] = ()


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """From the engine: it is loaded. `facts` are those of `ModelFacts` that do not come from the tokenizer.

    The default parameters stand beside them.
    """

    facts: dict[str, Any]
    default_params: dict[str, Any]
    tokenizer_path: str
    snapshot: EngineSnapshot


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """From the engine: it cannot be loaded, and its process ends."""

    error: ErrorNote


class Reports(msgspec.Struct, frozen=True, tag="reports"):
    """From the engine, before the step's tokens: the logprobs of a sequence that asked for them.

    Those of a long prompt come in several of these.
    """

    number: int
    tokens: tuple[tuple[Report, ...], ...] = ()
    prompt: tuple[tuple[Report, ...], ...] = ()


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """From the engine: a sequence that ended with an error."""

    number: int
    error: ErrorNote


class Shown(msgspec.Struct, frozen=True, tag="shown"):
    """From the engine: what was asked for."""

    snapshot: EngineSnapshot


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """From the engine, twice a second and in the middle of a step too: how many steps are done.

    Where it loads, captures a graph or compiles a grammar, no step may end for a while. `num_heard` is the number of
    the last `Here` that came. `cpu_s` is how long an engine on a CPU has computed so far.
    """

    num_steps: int
    is_preparing: bool
    num_heard: int = 0
    cpu_s: float = 0.0


Order = Begin | Submit | Abort | Ask | Here
News = Ready | Refused | Reports | Failed | Shown | Beat

ENCODER = msgspec.msgpack.Encoder()
ORDERS = msgspec.msgpack.Decoder(Order)
NEWS = msgspec.msgpack.Decoder(News)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """What a step gave: one row per sequence with new tokens or an end. `ends` are places in `ENDS`.

    `tokens` has those of all rows, one row after the other, `counts` how many each has.
    """

    num_steps: int
    numbers: Sequence[int]
    counts: Sequence[int]
    ends: Sequence[int]
    cached: Sequence[int]
    tokens: Sequence[int]


def framed(message: Order | News) -> bytes:
    """A message as a frame."""
    payload = ENCODER.encode(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(payload)} bytes; at most {MAX_FRAME_BYTES}")
    return HEAD.pack(len(payload), Kind.MESSAGE) + payload


def read_order(payload: bytes) -> Order:
    """A message to the engine."""
    try:
        order: Order = ORDERS.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError("not a message to an engine") from error
    return order


def read_news(payload: bytes) -> News:
    """A message from the engine."""
    try:
        news: News = NEWS.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError("not a message from an engine") from error
    return news


def framed_step(step: StepTokens) -> bytes:
    """A step's tokens as a frame."""
    columns = (step.numbers, step.counts, step.ends, step.cached, step.tokens)
    payload = STEP_HEAD.pack(step.num_steps, len(step.numbers), len(step.tokens))
    payload += b"".join(array(WORD, column).tobytes() for column in columns)
    return HEAD.pack(len(payload), Kind.STEP) + payload


def read_step(payload: bytes) -> StepTokens:
    """The tokens of a step's frame."""
    if len(payload) < STEP_HEAD.size:
        raise FrameError(f"a step of {len(payload)} bytes")
    num_steps, num_rows, num_tokens = STEP_HEAD.unpack_from(payload)
    words = words_of(payload[STEP_HEAD.size :])
    if len(words) != 4 * num_rows + num_tokens:
        raise FrameError(f"a step of {len(words)} numbers; wanted {4 * num_rows + num_tokens}")
    numbers, counts, ends, cached = (words[i * num_rows : (i + 1) * num_rows] for i in range(4))
    tokens = words[4 * num_rows :]
    if sum(counts) != num_tokens or any(end >= len(ENDS) for end in ends):
        raise FrameError(f"a step of {num_tokens} tokens; its rows have {sum(counts)}, and ends {sorted(set(ends))}")
    return StepTokens(num_steps=num_steps, numbers=numbers, counts=counts, ends=ends, cached=cached, tokens=tokens)


def words_of(data: bytes) -> array[int]:
    """32-bit numbers from their bytes."""
    words = array(WORD)
    if len(data) % words.itemsize:
        raise FrameError(f"{len(data)} bytes; wanted whole numbers of {words.itemsize}")
    words.frombytes(data)
    return words


class Frames:
    """Frames from a stream of bytes that comes in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The kind and the payload of every frame that is complete now."""
        self._bytes += data
        at = 0
        while len(self._bytes) - at >= HEAD.size:
            num_bytes, kind = HEAD.unpack_from(self._bytes, at)
            if num_bytes > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {num_bytes} bytes; at most {MAX_FRAME_BYTES}")
            end = at + HEAD.size + num_bytes
            if len(self._bytes) < end:
                break
            yield kind, bytes(self._bytes[at + HEAD.size : end])
            at = end
        del self._bytes[:at]


def fields_of(owner: object, settings: Sequence[Declared]) -> dict[str, Any]:
    """The declared fields of a dataclass that are not at their defaults, as msgpack has them."""
    values = {one.name: one.value_of(owner) for one in settings}
    defaults = {one.name: one.default for one in settings}
    return {name: msgspec.to_builtins(value) for name, value in values.items() if value is not defaults[name]}


@lru_cache(maxsize=8)
def hints_of(owner: type) -> Mapping[str, Any]:
    """The types of a dataclass's fields."""
    return get_type_hints(owner)


def params_of(fields: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters from their fields, checked anew."""
    hints = hints_of(SamplingParams)
    return SamplingParams(**{name: msgspec.convert(value, hints[name]) for name, value in fields.items()})


def params_fields(params: SamplingParams) -> dict[str, Any]:
    """Sampling parameters as `params_of` reads them."""
    return fields_of(params, SAMPLING_SETTINGS)


def config_of(fields: Mapping[str, Any]) -> EngineConfig:
    """An engine's settings from their fields, checked anew."""
    return EngineConfig(**fields)


def config_fields(config: EngineConfig) -> dict[str, Any]:
    """An engine's settings as `config_of` reads them."""
    return fields_of(config, ENGINE_SETTINGS)


def report_of(table: Mapping[int, Logprob]) -> tuple[Report, ...]:
    """One position's logprobs, the chosen token first."""
    return tuple((token, one.logprob, one.rank) for token, one in table.items())


def reports_from(report: Sequence[Report]) -> list[TokenReport]:
    """One position's logprobs as a sampler reports them."""
    return [TokenReport(token, logprob, rank or 0) for token, logprob, rank in report]


def note_of(error: PlayheadError) -> ErrorNote:
    """An error for the other side."""
    if isinstance(error, NoTokenLeft):
        return ErrorNote("NoTokenLeft", (str(error.num_tokens),))
    if isinstance(error, DescribedError):
        return ErrorNote(type(error).__name__, (error.where, error.found, error.wanted, error.fix))
    if isinstance(error, PagesLost):
        return ErrorNote("PagesLost", (error.violation,))
    return ErrorNote(type(error).__name__, (str(error),))


def request_error(note: ErrorNote, request_id: str) -> PlayheadError:
    """The error of one request, which on this side has this id."""
    if note.name in ("RequestError", "QueueFull") and len(note.texts) == 4:
        return (QueueFull if note.name == "QueueFull" else RequestError)(*note.texts)
    if note.name == "PagesLost":
        return PagesLost(request_id, "".join(note.texts))
    if note.name == "NoTokenLeft":
        return NoTokenLeft(request_id, int("".join(note.texts)))
    if note.name == "StepFailed":
        return StepFailed(f"request {request_id!r}")
    return RequestFailed(request_id)


def start_error(note: ErrorNote) -> PlayheadError:
    """The error for which an engine could not be loaded."""
    if note.name == "CheckpointError" and len(note.texts) == 4:
        return CheckpointError(*note.texts)
    return (ConfigError if note.name == "ConfigError" else PlayheadError)(" ".join(note.texts))
