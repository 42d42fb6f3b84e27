"""Errors as answers: every `PlayheadError` has a status and an OpenAI error body. No torch.

| status | errors |
|---|---|
| 400 | `RequestError`, `BodyError`, `ChatTemplateError`: the request cannot be served as it is |
| 404 | `UnknownModel`: another model was asked for |
| 429 | `QueueFull`: the same request may be served later, when `Retry-After` says |
| 503 | `EngineStopped`: there is no engine now; `RequestTimedOut`: the request waited or ran too long |
| 500 | `EnginesLost`: engine after engine was lost with the request; clients are told not to send it again |
| 500 | `StepFailed`, `RequestFailed`, and everything unforeseen, of which nothing is told |

A message repeats at most a few characters of what its own sender sent. It shows no path, no trace and no key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from playhead.errors import (
    ChatTemplateError,
    EnginesLost,
    EngineStopped,
    QueueFull,
    RequestError,
    RequestFailed,
    RequestTimedOut,
    StepFailed,
    shown,
)
from playhead.serve.call import Answer
from playhead.serve.decode import BodyError
from playhead.serve.protocol.errors import ErrorBody, ErrorDetail

INVALID = "invalid_request_error"
OVERLOADED = "rate_limit_error"
SERVER = "server_error"
RETRIED = (429, 503)
"""Statuses whose answer says when to try again."""

FIELD = re.compile(r"(?P<owner>sampling|structured_outputs) field '(?P<name>\w+)'")
ENCODER = msgspec.json.Encoder()
TOO_LONG = re.compile(r"the context of|tokens of at most")
"""How the library says that a prompt or an answer does not fit, counted in tokens or in characters."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})


class UnknownModel(RequestError):
    """The request names a model that is not served here."""

    def __init__(self, found: str, served: str) -> None:
        super().__init__(
            "model", f"{shown(found)}, which is not served here", repr(served), "Change it or leave it out."
        )


def detail_of(error: BaseException, names: Mapping[str, str] = NO_NAMES) -> tuple[int, ErrorDetail]:
    """The status and the error as the client gets them. `names` are fields that the route calls otherwise."""
    match error:
        case UnknownModel():
            return 404, ErrorDetail(message=str(error), type=INVALID, param="model", code="model_not_found")
        case QueueFull():
            return 429, ErrorDetail(message=str(error), type=OVERLOADED, code="queue_full")
        case RequestError():
            param, code = named(error, names)
            return 400, ErrorDetail(message=str(error), type=INVALID, param=param, code=code)
        case ChatTemplateError():
            return 400, ErrorDetail(
                message=str(error), type=INVALID, param=names.get("prompt", "prompt"), code="chat_template_error"
            )
        case EnginesLost():
            message = "One engine after another was lost while it had this request. Do not send it again as it is."
            return 500, ErrorDetail(message=message, type=SERVER, code="engines_lost")
        case EngineStopped():
            return 503, ErrorDetail(message="There is no engine now. Try again.", type=SERVER, code="engine_stopped")
        case RequestTimedOut():
            message = "The request waited or ran longer than it may. Send it again later, or ask for less."
            return 503, ErrorDetail(message=message, type=SERVER, code="request_timed_out")
        case StepFailed():
            message = "A step failed, and this request was in it. New requests are taken."
            return 500, ErrorDetail(message=message, type=SERVER, code="step_failed")
        case RequestFailed():
            message = "This request failed. Other requests go on."
            return 500, ErrorDetail(message=message, type=SERVER, code="request_failed")
    message = "The server failed on this request. Other requests go on."
    return 500, ErrorDetail(message=message, type=SERVER, code="internal_error")


def named(error: RequestError, names: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The field that is wrong, as the client calls it, and a code for what is wrong with it.

    No single field is wrong where a request fails that has begun: the library names the request then.
    """
    if isinstance(error, BodyError):
        return error.param, error.code
    field = FIELD.match(error.where)
    if error.where == "chat, chat_template_kwargs":
        param = "chat_template_kwargs"
    elif field is not None:
        param = field["name"] if field["owner"] == "sampling" else f"structured_outputs.{field['name']}"
    else:
        param = "prompt" if error.where.startswith(("prompt", "chat")) else error.where.partition(",")[0]
    code = "context_length_exceeded" if TOO_LONG.search(error.wanted) else "invalid_value"
    return None if param.startswith("request ") else names.get(param, param), code


def failure(error: BaseException, names: Mapping[str, str] = NO_NAMES, *, retry_after_s: int = 1) -> Answer:
    """The answer to a call that failed."""
    status, detail = detail_of(error, names)
    headers = {"Retry-After": str(retry_after_s)} if status in RETRIED else {}
    if isinstance(error, EnginesLost):
        headers["X-Should-Retry"] = "false"  # clients of OpenAI send what failed twice more, unless they are told
    return Answer(status=status, body=ENCODER.encode(ErrorBody(error=detail)), headers=headers)


def failure_event(error: BaseException) -> bytes:
    """The last event of a stream that failed after it had begun."""
    _, detail = detail_of(error)
    return b"data: " + ENCODER.encode(ErrorBody(error=detail)) + b"\n\n"
