"""Errors about requests.

PlayheadError
└── RequestError   this request cannot be served; the others go on
"""

from __future__ import annotations

from playhead.errors import PlayheadError


class RequestError(PlayheadError):
    """This request cannot be served. Nothing of it has started."""

    def __init__(self, where: str, found: str, wanted: str, fix: str) -> None:
        super().__init__(f"{where}: {found}; wanted {wanted}. {fix}")
        self.where, self.found, self.wanted, self.fix = where, found, wanted, fix
