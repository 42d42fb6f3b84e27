"""Errors of the KV memory.

PlayheadError
├── LedgerError          the account of pages does not balance: a bug, never load
│   ├── DoubleFree       a page was given back that nobody held
│   └── PagesLost        a running request had pages that do not balance; it ended, and the pages are in quarantine
├── StaleTranslation     a translation was used, or a step launched, with an outdated mapping: a bug
└── ContextTooLong       a sequence was extended past the planned maximum context

`OutOfPages` (load, not a bug) lives in `playhead.errors`, because the scheduler handles it.
"""

from __future__ import annotations

from playhead.errors import PlayheadError


class LedgerError(PlayheadError):
    """The account of pages does not balance."""


class DoubleFree(LedgerError):
    """A page was given back that nobody held."""

    def __init__(self, group: str, page: int) -> None:
        super().__init__(
            f"KV group {group!r}: page {page} was given back, but nobody held it; wanted a page handed out by take(). "
            "Freeing takes ownership: drop the list after giving it back"
        )
        self.group, self.page = group, page


class PagesLost(LedgerError):
    """A request's KV pages failed the ledger's audit, so its next tokens could be wrong: it ended."""

    def __init__(self, request: str, violation: object) -> None:
        super().__init__(
            f"request {request!r}: its KV pages failed the audit ({violation}). The pages are in quarantine and other "
            "requests go on. This is a bug in Playhead; please report it with what LLM.kv_report() prints"
        )


class StaleTranslation(PlayheadError):
    """The mapping changed after it was last published or translated."""

    def __init__(self, where: str, found: int, wanted: int, fix: str) -> None:
        super().__init__(f"{where}: mapping version {found}; wanted version {wanted}. {fix}")
        self.found, self.wanted = found, wanted


class ContextTooLong(PlayheadError):
    """A sequence was extended past the planned maximum context."""

    def __init__(self, request: str, found_tokens: int, wanted_tokens: int) -> None:
        super().__init__(
            f"request {request!r}: {found_tokens} tokens; wanted at most {wanted_tokens}, the planned maximum context. "
            "Refuse the request at admission or plan with a larger max_context_tokens"
        )
