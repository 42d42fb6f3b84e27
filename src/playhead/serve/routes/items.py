"""The output items of one response while they grow, and the events that tell of each change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from playhead.serve.protocol.chat import TokenLogprob
from playhead.serve.protocol.responses import (
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    Status,
    StreamEvent,
)
from playhead.serve.service import ENCODER, new_id
from playhead.serve.tools.events import Content, Event, Parser, Reasoning, ToolCallArguments, ToolCallStart

TEXT = "response.output_text"
REASONING = "response.reasoning_text"
ARGUMENTS = "response.function_call_arguments"
PREFIXES = {TEXT: "msg", REASONING: "rs", ARGUMENTS: "fc"}


@dataclass(slots=True, kw_only=True)  # mutable: its text grows
class OpenItem:
    """The item that is being written. `events` begins the names of its events. A call has its beginning in `call`."""

    id: str
    index: int
    events: str
    call: ToolCallStart | None = None
    has_reports: bool = False
    pieces: list[str] = field(default_factory=list)
    reports: list[TokenLogprob] = field(default_factory=list)
    delta_start: bytes = b""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def place(self) -> dict[str, Any]:
        """Where its events happen."""
        place = {"item_id": self.id, "output_index": self.index}
        return place if self.call is not None else place | {"content_index": 0}

    @property
    def part(self) -> OutputText | ReasoningText:
        """Its only part. A call has none."""
        if self.events == REASONING:
            return ReasoningText(text=self.text)
        return OutputText(text=self.text, logprobs=self.reports if self.has_reports else [])

    def item(self, status: Status) -> OutputItem:
        """The item as far as it has come. One that has just begun has no part yet."""
        if self.call is not None:
            call = self.call
            return OutputCall(id=self.id, call_id=call.id, name=call.name, arguments=self.text, status=status)
        part = None if status == "in_progress" else self.part
        if self.events == REASONING:
            return OutputReasoning(id=self.id, status=status, content=[part] if isinstance(part, ReasoningText) else [])
        return OutputMessage(id=self.id, status=status, content=[part] if isinstance(part, OutputText) else [])


class Items:
    """The items of one response. `done` are those that are whole; at most one more is open.

    Almost all events are one piece of text. The bytes before its number and its text are made once for each item.
    """

    def __init__(self, *, has_reports: bool) -> None:
        self.done: list[OutputItem] = []
        self.parser: Parser | None = None
        self._has_reports = has_reports
        self._open: OpenItem | None = None
        self._number = 0
        self._events: list[bytes] = []
        self._waiting: list[TokenLogprob] = []

    def tell(self, kind: str, **fields: Any) -> None:
        """An event of this kind happens. `fields` are those of `StreamEvent`."""
        event = StreamEvent(type=kind, sequence_number=self._next_number(), **fields)
        self._events.append(b"event: %s\ndata: %s\n\n" % (kind.encode(), ENCODER.encode(event)))

    def taken(self) -> bytes:
        """The events since the last call."""
        events, self._events = b"".join(self._events), []
        return events

    def take(self, found: Sequence[Event], reports: list[TokenLogprob]) -> None:
        """What some tokens made, with the reports of these tokens, which go with the first piece.

        A parser keeps text that may become a marker. The reports of such tokens wait for the message's next piece.
        """
        reports, self._waiting = self._waiting + reports, []
        if not found and (self._open is None or self._open.events == TEXT):
            self._waiting = reports
        for one in found:
            self.add(one, reports)
            reports = []

    def add(self, event: Event, reports: list[TokenLogprob]) -> None:
        """One more piece of the answer. Reports belong to the text of a message."""
        match event:
            case Content():
                if event.text or reports:
                    self._piece(self._opened(TEXT), event.text, reports)
            case Reasoning():
                self._piece(self._opened(REASONING), event.text, [])
            case ToolCallStart():
                self.end("completed")
                self._begin(ARGUMENTS, event)
            case ToolCallArguments():
                assert self._open is not None, "arguments come after the start of their call"
                self._piece(self._open, event.text, [])

    def end(self, status: Status) -> None:
        """The open item is as it will stay."""
        item, self._open = self._open, None
        if item is None:
            return
        if item.call is not None:
            self.tell(f"{ARGUMENTS}.done", **item.place, arguments=item.text, name=item.call.name)
        else:
            reports = {"logprobs": item.reports} if item.events == TEXT else {}
            self.tell(f"{item.events}.done", **item.place, text=item.text, **reports)
            self.tell("response.content_part.done", **item.place, part=item.part)
        whole = item.item(status)
        self.tell("response.output_item.done", output_index=item.index, item=whole)
        self.done.append(whole)

    def end_all(self, status: Status) -> None:
        """The answer has ended. An answer of nothing is a message without text."""
        if self._waiting:
            self.add(Content(text=""), self._waiting)
        if self._open is None and not self.done:
            self._begin(TEXT, None)
        self.end(status)

    def _next_number(self) -> int:
        number, self._number = self._number, self._number + 1
        return number

    def _opened(self, events: str) -> OpenItem:
        """The open item, if it is of this kind, or a new one."""
        if self._open is not None and self._open.events == events:
            return self._open
        self.end("completed")
        return self._begin(events, None)

    def _begin(self, events: str, call: ToolCallStart | None) -> OpenItem:
        item = self._open = OpenItem(
            id=new_id(PREFIXES[events], "_"),
            index=len(self.done),
            events=events,
            call=call,
            has_reports=self._has_reports,
        )
        self.tell("response.output_item.added", output_index=item.index, item=item.item("in_progress"))
        if call is None:
            self.tell("response.content_part.added", **item.place, part=item.part)
        fields = {"type": f"{events}.delta", **item.place}
        item.delta_start = b"event: %s.delta\ndata: %s" % (events.encode(), ENCODER.encode(fields)[:-1])
        return item

    def _piece(self, item: OpenItem, text: str, reports: list[TokenLogprob]) -> None:
        item.pieces.append(text)
        if reports:
            item.reports += reports
            self.tell(f"{item.events}.delta", **item.place, delta=text, logprobs=reports)
            return
        none = b',"logprobs":[]' if item.events == TEXT else b""
        number, delta = self._next_number(), ENCODER.encode(text)
        self._events.append(b'%s%s,"sequence_number":%d,"delta":%s}\n\n' % (item.delta_start, none, number, delta))
