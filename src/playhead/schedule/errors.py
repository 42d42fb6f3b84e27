"""Errors about requests.

PlayheadError
├── RequestError    this request cannot be served; the others go on
└── RequestFailed   this request's own work raised after it had begun; the others go on
"""

from __future__ import annotations

from playhead.errors import PlayheadError


class RequestError(PlayheadError):
    """This request cannot be served. Nothing of it has started."""

    def __init__(self, where: str, found: str, wanted: str, fix: str) -> None:
        super().__init__(f"{where}: {found}; wanted {wanted}. {fix}")
        self.where, self.found, self.wanted, self.fix = where, found, wanted, fix


class RequestFailed(PlayheadError):
    """What belongs to this request alone raised: its text, its sampler row. `__cause__` is what was raised."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request {request_id!r} ended with an error of its own. Read the cause; other requests go on."
        )
        self.request_id = request_id
