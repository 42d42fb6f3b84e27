"""The harmony format of gpt-oss: an answer is a row of messages, and the channel of each says who it is for.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>content<|return|>

The recipient may also stand before the channel: `<|start|>assistant to=functions.NAME<|channel|>commentary json`. The
commentary without a recipient is for the reader, as the final channel is.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from playhead.serve.tools.calls import ArgumentsReader, CallLog
from playhead.serve.tools.constraint import CallText
from playhead.serve.tools.events import Content, Reasoning
from playhead.serve.tools.json_scanner import Status
from playhead.serve.tools.reasoning import ReasoningMarks
from playhead.serve.tools.text import MarkerFinder

CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (CHANNEL, MESSAGE, START, "<|constrain|>", *ENDS)
HEADER_BEGINS = (CHANNEL, START, "to=")
MAX_HEADER_CHARS = 512

SPACE = re.compile(r"\s{0,64}")
CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
RECIPIENT = re.compile(r"to=([^\s<]+)")
FUNCTIONS = "functions."

HARMONY_TEXT = CallText(
    before=f"{CHANNEL}commentary to={FUNCTIONS}NAME <|constrain|>json{MESSAGE}",
    reasoning=ReasoningMarks(open=f"{CHANNEL}analysis{MESSAGE}", close="<|end|>"),
    reasoning_end=f"{START}assistant",
    answer=f"{CHANNEL}final{MESSAGE}",
)
HEADER_END, BODY_END = MarkerFinder([MESSAGE, *ENDS]), MarkerFinder([*ENDS, START, CHANNEL])


class HarmonyMessages:
    """Reads the messages of one answer, which begins after the `<|start|>assistant` of the prompt.

    Text in no message is content, for a model may lose the format. So is a call of a function that was not given. Two
    messages for the same reader are one text with a line end between them. A header that was cut off is dropped.
    """

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._text, self._at = "", 0
        self._kind: type[Content] | type[Reasoning] = Content
        self._written: set[type[Content] | type[Reasoning]] = set()
        self._needs_line = False
        self._header, self._name = "", ""
        self._reader: ArgumentsReader | None = None
        self._state: Callable[[], bool] = self._before_header

    def feed(self, text: str) -> None:
        """Make events of what is certain now."""
        self._text, self._at = self._text[self._at :] + text, 0
        while self._at < len(self._text) and self._state():
            pass

    def finish(self) -> None:
        """Make events of the rest."""
        if self._state == self._in_arguments:
            return
        rest = self._text[self._at :]
        if self._state == self._before_arguments:
            self._put(self._header + rest)
        elif self._state != self._in_header or not rest.startswith((CHANNEL, START)):
            self._put(rest if rest.strip() or self._state == self._in_body else "")

    def _put(self, text: str) -> None:
        if text:
            line = "\n" if self._needs_line and self._kind in self._written else ""
            self._log.events.append(self._kind(text=line + text))
            self._written.add(self._kind)
            self._needs_line = False

    def _begin(self, kind: type[Content] | type[Reasoning], *, is_message: bool = False) -> None:
        """Text of this kind follows."""
        self._kind, self._needs_line, self._state = kind, is_message, self._in_body

    def _before_header(self) -> bool:
        """A header begins here, or text that has lost its header."""
        space = SPACE.match(self._text, self._at)
        assert space is not None, "no white space is a match too"
        begun = self._text[space.end() : space.end() + len(CHANNEL)]
        if begun.startswith(HEADER_BEGINS):
            self._at, self._state = space.end(), self._in_header
        elif any(begin.startswith(begun) for begin in HEADER_BEGINS):
            return False
        else:
            self._begin(Content)
        return True

    def _in_header(self) -> bool:
        found = HEADER_END.find(self._text, self._at, self._at + MAX_HEADER_CHARS)
        if found is None and len(self._text) - self._at < MAX_HEADER_CHARS:
            return False
        if found is None or found[0] != MESSAGE:
            self._begin(Content)
            self._put(self._text[self._at])  # so that the same text is not taken for a header again
            self._at += 1
            return True
        self._header = self._text[self._at : found.end()]
        self._at = found.end()
        channel, recipient = CHANNEL_NAME.search(self._header), RECIPIENT.search(self._header)
        self._name = recipient[1].removeprefix(FUNCTIONS) if recipient is not None else ""
        if recipient is not None and recipient[1].startswith(FUNCTIONS) and self._log.knows(self._name):
            self._state = self._before_arguments
        elif recipient is not None:
            self._begin(Content)
            self._put(self._header)
        else:
            is_reasoning = channel is not None and channel[1] == "analysis"
            self._begin(Reasoning if is_reasoning else Content, is_message=True)
        return True

    def _before_arguments(self) -> bool:
        space = SPACE.match(self._text, self._at)
        assert space is not None, "no white space is a match too"
        if space.end() == len(self._text):
            return False
        if self._text[space.end()] == "{":
            self._at = space.end()
            self._reader, self._state = ArgumentsReader(self._log, self._name), self._in_arguments
        else:
            self._begin(Content)
            self._put(self._header)
        return True

    def _in_arguments(self) -> bool:
        assert self._reader is not None, "the arguments have begun"
        self._at = self._reader.feed(self._text, self._at)
        if self._reader.status is Status.OPEN:
            return False
        if self._reader.status is Status.WHOLE:
            self._state = self._after_arguments
        else:
            self._begin(Content)
        return True

    def _after_arguments(self) -> bool:
        """White space between a call and its end is no text."""
        if self._text[self._at].isspace():
            self._at += 1
        else:
            self._begin(Content)
        return True

    def _in_body(self) -> bool:
        found = BODY_END.find(self._text, self._at)
        end = BODY_END.end_of_plain(self._text, self._at) if found is None else found.start()
        self._put(self._text[self._at : end])
        self._at = end
        if found is None:
            return False
        self._at = found.end() if found[0] in ENDS else found.start()
        self._state = self._before_header
        return True
