"""Errors Playhead raises on purpose.

PlayheadError
├── ConfigError             a setting is wrong; raised before any device memory is taken
├── CheckpointError         files and model description disagree (`models.errors`, with ChatTemplateError)
├── RequestError            this request cannot be served; others go on (`schedule.errors`, with RequestFailed)
├── MisuseError             closed, a second thread, a forked child, or a call from within a step (`exclusive`)
├── StepFailed              a step raised, and this request was in flight (`async_engine`, with EngineStopped)
├── OutOfPages              a KV group has no free page; the scheduler handles it
├── LedgerError ...         the account of pages was broken: a bug, never load (`kv.errors`)
└── GraphError              a captured graph's contract was broken: a bug, never load
    ├── SlotError           a graph input was declared or filled wrongly
    └── CaptureError        what was to be captured cannot be replayed

Every message says where, what was found, what was wanted, and what to do.
"""

from __future__ import annotations


class PlayheadError(Exception):
    """Base of all errors Playhead raises on purpose."""


class ConfigError(PlayheadError):
    """A setting is wrong."""


class OutOfPages(PlayheadError):
    """A KV group has no free page left."""

    def __init__(self, group: str, wanted: int, free: int) -> None:
        super().__init__(f"KV group {group!r}: wanted {wanted} pages, {free} free")
        self.group, self.wanted, self.free = group, wanted, free


class GraphError(PlayheadError):
    """A captured graph's contract was broken."""


class SlotError(GraphError):
    """A graph input was declared or filled wrongly."""

    def __init__(self, slot: str, found: str, wanted: str, fix: str) -> None:
        super().__init__(f"slot {slot!r}: {found}; wanted {wanted}. {fix}")
        self.slot, self.found, self.wanted, self.fix = slot, found, wanted, fix


class CaptureError(GraphError):
    """What was to be captured cannot be replayed."""

    def __init__(self, op: str, where: str, why: str, fix: str) -> None:
        super().__init__(f"{op} at {where}: {why}. {fix}")
        self.op, self.where, self.why, self.fix = op, where, why, fix


def caused(error: PlayheadError, cause: BaseException | None) -> PlayheadError:
    """An error with what led to it, as `raise error from cause` would have it."""
    error.__cause__ = cause
    return error
