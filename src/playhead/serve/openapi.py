"""The OpenAPI 3.1 document of a server, made from the types of its routes and the limits of its requests. No torch.

msgspec writes the schemas of the Structs. Ranges of sampling fields are those of `SamplingParams` and `RequestLimits`,
so a number stands in one place. A field that is refused allows its neutral values alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from playhead.request_limits import RequestLimits
from playhead.sampling_params import PARAMETERS
from playhead.serve.failures import RETRIED
from playhead.serve.protocol.errors import ErrorBody
from playhead.serve.protocol.notes import notes_of
from playhead.serve.service import READS, Route

Schema = dict[str, Any]
INT64 = (-(2**63), 2**63 - 1)
REF = "#/components/schemas/{name}"
NESTED = ("items", "additionalProperties")
OTHER_NAMES = {"max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens", "top_logprobs": "logprobs"}
"""Fields that mean a sampling field of another name."""

WORDS = {
    200: "The answer",
    400: "The request cannot be served as it is",
    401: "No API key, or an unknown one",
    404: "No such model",
    405: "The route has other methods",
    408: "The request did not come in time",
    413: "The request is too large",
    415: "The body is not JSON",
    421: "The server does not answer under this host name",
    429: "The queue is full; try again later",
    431: "The headers are too large",
    500: "The server failed on this request; others go on",
    503: "There is no engine now; try again later",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPath:
    """A path that is not of the API, and what it gives."""

    path: str
    summary: str
    content_type: str = "application/json"
    is_public: bool = False


OTHER_PATHS = (
    OtherPath(path="/health", summary="Whether the server is alive", is_public=True),
    OtherPath(path="/ready", summary="Whether the server takes requests", is_public=True),
    OtherPath(path="/version", summary="The version of the server"),
    OtherPath(path="/metrics", summary="Counters for Prometheus", content_type="text/plain"),
)


def document(
    routes: Sequence[Route], *, version: str, limits: RequestLimits | None = None, vocab_size: int | None = None
) -> Schema:
    """The whole document."""
    kinds = [kind for route in routes for kind in (route.request, route.answer, route.chunk) if kind is not None]
    unique = list(dict.fromkeys([*kinds, ErrorBody]))
    _, components = msgspec.json.schema_components(unique, ref_template=REF)
    narrow = Narrow(limits or RequestLimits(), vocab_size)
    for route in routes:
        if route.request is not None:
            narrow.request(route.request, components[route.request.__name__])
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = operation(route)
    for other in OTHER_PATHS:
        paths.setdefault(other.path, {})["get"] = other_operation(other)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Playhead", "version": version, "description": "An OpenAI-compatible server."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def operation(route: Route) -> Schema:
    """What one route takes and gives."""
    made: Schema = {
        "summary": route.summary,
        "operationId": route.handler.__name__,
        "responses": {str(status): response(route, status) for status in sorted(route.statuses)},
        "security": [] if route.is_public else [{"key": []}],
    }
    if "{" in route.path:
        name = route.path.partition("{")[2].partition("}")[0]
        schema = {"type": "string", "minLength": 1}
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema}]
    if route.request is not None:
        content = {"application/json": {"schema": reference(route.request)}}
        made["requestBody"] = {"required": True, "content": content}
    return made


def other_operation(other: OtherPath) -> Schema:
    """What a path outside of the API gives. Probes say no by 503, with a body of their own."""
    responses = {
        str(status): {"description": WORDS[status], "content": {other.content_type: {}, "application/json": {}}}
        for status in READS
    }
    name = other.path.strip("/")
    security: list[Schema] = [] if other.is_public else [{"key": []}]
    return {"summary": other.summary, "operationId": name, "responses": responses, "security": security}


def response(route: Route, status: int) -> Schema:
    """What an answer of this status is."""
    made: Schema = {"description": WORDS[status]}
    if status in RETRIED:
        schema = {"type": "integer", "minimum": 0}
        made["headers"] = {"Retry-After": {"description": "Seconds to wait", "schema": schema}}
    if status >= 400:
        made["content"] = {"application/json": {"schema": reference(ErrorBody)}}
    elif route.answer is not None:
        made["content"] = {"application/json": {"schema": reference(route.answer)}}
        if route.chunk is not None:
            made["content"]["text/event-stream"] = {"schema": reference(route.chunk)}
    elif route.content_type:
        made["content"] = {route.content_type: {}}
    return made


def reference(kind: type[msgspec.Struct]) -> Schema:
    return {"$ref": REF.format(name=kind.__name__)}


class Narrow:
    """Adds to the schema of a request what the types do not say."""

    def __init__(self, limits: RequestLimits, vocab_size: int | None) -> None:
        last_id = INT64[1] if vocab_size is None else vocab_size - 1
        ids = {"type": "integer", "minimum": 0, "maximum": last_id}
        self._lists: dict[str, Schema] = {
            "stop_token_ids": {"maxItems": limits.stop_token_ids, "items": ids},
            "allowed_token_ids": {"minItems": 1, "maxItems": limits.allowed_token_ids, "items": ids},
            "bad_words": {"maxItems": limits.bad_words, "items": text(limits.bad_word_chars)},
            "stop": {"maxItems": limits.stop_strings, "items": text(limits.stop_chars)},
        }
        self._texts: dict[str, Schema] = {"stop": {"minLength": 1, "maxLength": limits.stop_chars}}
        bias = {"type": "number", "minimum": -limits.bias, "maximum": limits.bias}
        tables = {"maxProperties": limits.logit_bias, "propertyNames": {"pattern": "^[0-9]{1,10}$"}}
        self._tables: dict[str, Schema] = {"logit_bias": {**tables, "additionalProperties": bias}}
        self._highs: dict[str, float] = {
            "n": limits.n,
            "logprobs": limits.logprobs,
            "prompt_logprobs": limits.logprobs,
            "repetition_penalty": limits.repetition_penalty,
        }

    def request(self, kind: type[msgspec.Struct], schema: Schema) -> None:
        """Narrow the fields of one request."""
        notes = notes_of(kind)
        for name, field in schema["properties"].items():
            note = notes.get(name)
            if note is not None and note.is_refused:
                description = field.get("description", "")
                schema["properties"][name] = {"enum": [None, *note.neutral], "description": description}
                continue
            for branch in field.get("anyOf", [field]):
                self._branch(name, branch)

    def _branch(self, name: str, branch: Schema) -> None:
        """One of the types that a field can have."""
        known: Mapping[str, Callable[[], Schema]] = {
            "array": lambda: self._lists.get(name, {}),
            "string": lambda: self._texts.get(name, {}),
            "object": lambda: self._tables.get(name, {}),
            "integer": lambda: self._range(name, INT64),
            "number": lambda: self._range(name, (None, None)),
        }
        more = known.get(str(branch.get("type")), dict)()
        branch.update({key: value for key, value in more.items() if key not in branch or key in NESTED})

    def _range(self, name: str, widest: tuple[float | None, float | None]) -> Schema:
        """The range of a sampling field, or the widest one."""
        name = OTHER_NAMES.get(name, name)
        parameter = PARAMETERS.get(name)
        low, high = widest
        if parameter is not None:
            low = low if parameter.low is None else parameter.low
            high = self._highs.get(name, high if parameter.high is None else parameter.high)
        above = parameter is not None and parameter.above
        bounds = {"exclusiveMinimum" if above else "minimum": low, "maximum": high}
        return {key: value for key, value in bounds.items() if value is not None}


def text(max_chars: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": max_chars}
