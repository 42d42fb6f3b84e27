"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from msgspec import Struct


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """`param` is the path of the field that is wrong, if one is. `code` can be compared; `message` is for people."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Struct, frozen=True, kw_only=True):
    """The body of every answer that is no success."""

    error: ErrorDetail
