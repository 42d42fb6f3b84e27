"""What the memory's own checks found: raised in tests, kept and counted in production."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from playhead.errors import DoubleFree, LedgerError


class ViolationKind(Enum):
    """Why an account does not balance."""

    DOUBLE_FREE = "double free"
    """A page was given back that was not handed out."""
    LEAK = "leak"
    """A page was handed out and is in no other state, or slabs are missing."""
    TWO_STATES = "page in two states"
    """A page is free and in use, or given up twice, or two groups have its slab."""
    WRONG_COUNT = "count differs from its holders"
    """The number of holders, or of pages in a state, is not what the sequences and the prefix cache come to."""
    BAD_MAPPING = "mapping not one-to-one"
    """A window page lies under two full pages, or under one that does not keep it."""
    BAD_ROW = "row differs from its sequence"
    """A row of the page table shows other pages than its sequence has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that is not as it must be; `page` is -1 where no single page is to blame."""

    kind: ViolationKind
    group: str
    page: int
    detail: str
    row: int | None = None
    """The row that is wrong, where one is."""

    def __str__(self) -> str:
        return f"{self.kind.value}: group {self.group!r}, page {self.page}: {self.detail}"


class ViolationLog:
    """Where violations go. Strict raises at once; otherwise they are counted and the last ones kept to be read."""

    MAX_KEPT = 100

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.num_by_kind: Counter[ViolationKind] = Counter()
        self.kept: list[Violation] = []
        self.new: list[Violation] = []
        """What was added since the ledger looked last."""

    def add(self, violation: Violation) -> None:
        if self.strict:
            if violation.kind is ViolationKind.DOUBLE_FREE:
                raise DoubleFree(violation.group, violation.page)
            raise LedgerError(f"{violation}; wanted every page once. This is a bug: keep the report and file it")
        self.num_by_kind[violation.kind] += 1
        self.kept = [*self.kept, violation][-self.MAX_KEPT :]
        self.new.append(violation)
