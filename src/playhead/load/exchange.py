"""One request of a load and what came back: when each token came, how it ended. No sockets here."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from playhead.load.wire import BadResponse, EventReader, ResponseReader

DONE = b"[DONE]"
MAX_KEPT_BODY_BYTES = 16 << 20


class Outcome(StrEnum):
    """How an exchange ended."""

    OPEN = "open"
    FINISHED = "finished"
    """All of the answer came."""
    REFUSED = "refused"
    """429 or 503: the server has no room now, and said so."""
    REJECTED = "rejected"
    """Any other status that is not 200."""
    FAILED = "failed"
    """200, and then an error in the stream."""
    BROKEN = "broken"
    """The connection was reset or closed in the middle, or what came is no answer."""
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed out"
    """By this client, not by the server."""
    LEFT = "left"
    """This client disconnected, as it was planned."""


REFUSING = (429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """A request and the moment it is sent, in seconds from the start of the load.

    With `leave_after_events` or `leave_after_s` the client disconnects after so many tokens or seconds.
    """

    at_s: float
    body: bytes
    input_len: int
    output_len: int
    is_warm_up: bool = False
    leave_after_events: int | None = None
    leave_after_s: float | None = None


class Exchange:
    """What happened to one planned request. Times are of `time.perf_counter`; those that did not happen are 0.

    An event with text counts as a token until the server's `usage` says how many there were.
    """

    __slots__ = (
        *("detail", "end_s", "first_s", "gaps_s", "last_s", "num_cached", "num_events", "num_prompt", "num_tokens"),
        *("outcome", "plan", "sent_s", "status", "texts", "_body", "_events", "_is_done"),
    )

    def __init__(self, plan: PlannedRequest, *, keeps_text: bool = False) -> None:
        self.plan, self.outcome, self.status, self.detail = plan, Outcome.OPEN, 0, ""
        self.sent_s = self.first_s = self.last_s = self.end_s = 0.0
        self.num_events = self.num_tokens = self.num_prompt = self.num_cached = 0
        self.gaps_s = array("d")
        self.texts: list[str] | None = [] if keeps_text else None
        self._events: EventReader | None = None
        self._body, self._is_done = bytearray(), False

    @property
    def text(self) -> str:
        return "".join(self.texts or ())

    def begin(self, response: ResponseReader) -> None:
        """The head of the response is there."""
        self.status = response.status
        self._events = EventReader() if response.is_event_stream else None

    def body(self, data: bytes, now_s: float) -> bool:
        """A part of the body. False: the time to leave has come."""
        if self._events is None:
            self._body += data
            if len(self._body) > MAX_KEPT_BODY_BYTES:
                raise BadResponse("an answer that does not end")
            return True
        for event in self._events.feed(data):
            if event == DONE:
                self._is_done = True
            else:
                self._event(event, now_s)
        leave_after = self.plan.leave_after_events
        return leave_after is None or self.num_events < leave_after

    def _event(self, data: bytes, now_s: float) -> None:
        event = parsed(data)
        usage = event.get("usage")
        if usage:
            self._usage(usage)
        if "error" in event:
            self.outcome, self.detail = Outcome.FAILED, error_code(event)
        for choice in event.get("choices") or ():
            text = choice.get("text")
            if text is None:
                delta = choice.get("delta") or {}
                text = delta.get("content") or delta.get("reasoning_content") or ("tool_calls" in delta and "\0")
            if text:
                self._token(text, now_s)

    def _token(self, text: str, now_s: float) -> None:
        if self.num_events:
            self.gaps_s.append(now_s - self.last_s)
        else:
            self.first_s = now_s
        self.last_s = now_s
        self.num_events += 1
        if self.texts is not None:
            self.texts.append(text)

    def _usage(self, usage: Mapping[str, Any]) -> None:
        self.num_tokens = int(usage.get("completion_tokens") or 0)
        self.num_prompt = int(usage.get("prompt_tokens") or 0)
        details = usage.get("prompt_tokens_details") or {}
        self.num_cached = int(details.get("cached_tokens") or 0)

    def end(self, now_s: float) -> None:
        """The response is whole."""
        self.end_s = now_s
        if self.outcome is not Outcome.OPEN:
            return
        if self.status != 200:
            self.outcome = Outcome.REFUSED if self.status in REFUSING else Outcome.REJECTED
            self.detail = error_code(parsed_or_empty(bytes(self._body)))
        elif self._events is None:
            self._whole_answer(now_s)
        elif self._is_done:
            self.outcome = Outcome.FINISHED
            self.num_tokens = self.num_tokens or self.num_events
        else:
            self.outcome, self.detail = Outcome.BROKEN, "no [DONE]"

    def _whole_answer(self, now_s: float) -> None:
        """An answer that was not streamed has one moment, its end."""
        answer = parsed(bytes(self._body))
        self._event(json.dumps({"choices": choices_of(answer), "usage": answer.get("usage")}).encode(), now_s)
        self.outcome = Outcome.FINISHED

    def fail(self, why: Outcome, detail: str, now_s: float) -> None:
        """There will be no more. What the server has said already stands."""
        self.end_s = now_s
        if self.outcome is Outcome.OPEN:
            self.outcome, self.detail = why, detail
        self.num_tokens = self.num_tokens or self.num_events


class Fetch:
    """The whole body of a response, for calls that are not part of the load."""

    def __init__(self) -> None:
        self.status, self.error = 0, ""
        self._parts: list[bytes] = []

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)

    def begin(self, response: ResponseReader) -> None:
        self.status = response.status

    def body(self, data: bytes, now_s: float) -> bool:
        self._parts.append(data)
        return True

    def end(self, now_s: float) -> None:
        return

    def fail(self, why: Outcome, detail: str, now_s: float) -> None:
        self.status, self.error = 0, f"{why}: {detail}" if detail else str(why)


def parsed(data: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        event = json.loads(data)
    except ValueError:
        raise BadResponse("an event that is no JSON") from None
    if not isinstance(event, dict):
        raise BadResponse("an event that is no JSON object")
    return event


def parsed_or_empty(data: bytes) -> dict[str, Any]:
    try:
        return parsed(data)
    except BadResponse:
        return {}


def choices_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The choices of an answer that was not streamed, as a stream would have them."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise BadResponse("an answer without choices")
    return [{"text": one["text"]} if "text" in one else {"delta": one.get("message")} for one in choices]


def error_code(answer: Mapping[str, Any]) -> str:
    """OpenAI's word for an error: bounded, because a server may write anything."""
    error = answer.get("error")
    if not isinstance(error, dict):
        return ""
    return str(error.get("code") or error.get("type") or "")[:60]
