"""Refusals of the transport as OpenAI error bodies: what goes wrong before a route sees a call."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from playhead.serve.call import Answer
from playhead.serve.failures import INVALID, SERVER
from playhead.serve.protocol.errors import ErrorBody, ErrorDetail
from playhead.serve.recorder import Refusal as Why


class Refusal(Exception):
    """A call that ends with this error. `message` goes to the client and names no path, prompt or key."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        why: Why = Why.INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.why, self.headers = status, message, code, why, headers or {}

    @property
    def answer(self) -> Answer:
        """The refusal as a response."""
        kind = SERVER if self.status >= 500 else INVALID
        error = ErrorBody(error=ErrorDetail(message=self.message, type=kind, code=self.code))
        return Answer(status=self.status, body=msgspec.json.encode(error), headers=self.headers)
