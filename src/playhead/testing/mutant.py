"""A bug we know, as a patch; and the checks that must notice it.

A mutant names the checkers it may die by. A checker speaks by returning violations, or by raising one of the errors it
declares as its own. Every other exception means that the mutant or the checker is out of date: it is a crash, never a
kill.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any
from unittest.mock import patch

# The mutant in force, so that no oracle can be computed by broken code. Set by `applied` and nothing else.
_ACTIVE: ContextVar[str | None] = ContextVar("active mutant", default=None)


class MutantError(Exception):
    """A mutant or a checker is wrong in itself: a stale patch, an unknown checker, an oracle asked of broken code."""


Patch = AbstractContextManager[None]
"""A bug in the running code, from enter to exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug class with the place it was seen. `apply` puts it into the running code and takes it out again.

    State that a bug needs (a memo, a set of rows) is made inside `apply`, so that nothing outlives it.
    """

    name: str
    source: str
    apply: Callable[[], Patch]
    killed_by: tuple[str, ...]


def mutant(name: str, *, source: str, killed_by: tuple[str, ...]) -> Callable[[Callable[[], Patch]], Mutant]:
    """Declares a patch as a mutant: `apply` is the function below."""
    return lambda apply: Mutant(name=name, source=source, apply=apply, killed_by=killed_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """What sound code answers. `Oracles` computes it before a mutant is applied and hands it to the checker."""

    name: str
    compute: Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """Looks for violations. `run` gets the values of `oracles`, in order, and returns what it found.

    `raises` are the errors by which the checked code itself refuses a wrong state, such as `LedgerError`.
    """

    name: str
    run: Callable[..., list[str]]
    oracles: tuple[Oracle, ...] = ()
    raises: tuple[type[Exception], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """The mutants of one part of the engine, and the checkers that hunt them.

    `on_clean_code` are run on the code as it is. None means all checkers; a package whose checkers overlap has fewer.
    """

    name: str
    mutants: tuple[Mutant, ...]
    checkers: tuple[Checker, ...]
    on_clean_code: tuple[Checker, ...] | None = None

    def __post_init__(self) -> None:
        known = [checker.name for checker in self.checkers]
        names = [mutant.name for mutant in self.mutants]
        for twice in {name for name in names if names.count(name) > 1} | {k for k in known if known.count(k) > 1}:
            raise MutantError(f"package {self.name!r}: {twice!r} is named twice")
        for mutant in self.mutants:
            unknown = sorted(set(mutant.killed_by) - set(known))
            if unknown or not mutant.killed_by:
                raise MutantError(
                    f"mutant {mutant.name!r}: killed_by names {unknown or 'no checker'}; "
                    f"the checkers of package {self.name!r} are {known}"
                )

    @property
    def clean_runs(self) -> tuple[Checker, ...]:
        return self.checkers if self.on_clean_code is None else self.on_clean_code

    def checkers_of(self, mutant: Mutant) -> list[Checker]:
        return [checker for name in mutant.killed_by for checker in self.checkers if checker.name == name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one checker said: its first violation, or the last line of a traceback."""

    checker: str
    outcome: Outcome
    said: str = ""


class Outcome(Enum):
    """How a checker's run ended."""

    SILENT = "silent"
    FIRED = "fired"
    CRASHED = "crashed"


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The mutant in force, and no oracle computed meanwhile. Mutants are not stacked."""
    if (other := _ACTIVE.get()) is not None:
        raise MutantError(f"mutant {mutant.name!r} was applied on top of {other!r}")
    token = _ACTIVE.set(mutant.name)
    try:
        with mutant.apply():
            yield
    finally:
        _ACTIVE.reset(token)


class Oracles:
    """The oracles' values. Each is computed once, on sound code."""

    def __init__(self) -> None:
        self._values: dict[Oracle, Any] = {}

    def prepare(self, checkers: Sequence[Checker]) -> None:
        for checker in checkers:
            for oracle in checker.oracles:
                self.value(oracle)

    def value(self, oracle: Oracle) -> Any:
        if oracle not in self._values:
            if (mutant := _ACTIVE.get()) is not None:
                raise MutantError(f"oracle {oracle.name!r} was asked for under mutant {mutant!r}. Prepare it before")
            self._values[oracle] = oracle.compute()
        return self._values[oracle]

    def ask(self, checker: Checker) -> Answer:
        """Run a checker. Errors of the framework itself are raised: they are about neither code nor checker."""
        values = [self.value(oracle) for oracle in checker.oracles]
        try:
            found = checker.run(*values)
        except MutantError:
            raise
        except checker.raises as error:
            return Answer(checker=checker.name, outcome=Outcome.FIRED, said=last_line(error))
        except Exception as error:  # noqa: BLE001 - shown as a crash, which fails the run
            return Answer(checker=checker.name, outcome=Outcome.CRASHED, said=last_line(error))
        outcome = Outcome.FIRED if found else Outcome.SILENT
        return Answer(checker=checker.name, outcome=outcome, said=found[0] if found else "")


def hunt(mutant: Mutant, checkers: Sequence[Checker], oracles: Oracles) -> Answer:
    """Apply the mutant and ask its checkers in turn, until one fires or crashes. The last answer counts."""
    oracles.prepare(checkers)
    with applied(mutant):
        for checker in checkers:
            answer = oracles.ask(checker)
            if answer.outcome is not Outcome.SILENT:
                break
    return answer


def last_line(error: BaseException) -> str:
    """Where and what: the last frame of a traceback and its message."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}: " if frames else ""
    return where + traceback.format_exception_only(error)[-1].strip()


@contextmanager
def swapped(owner: object, name: str, replacement: Any) -> Iterator[None]:
    """One attribute replaced for a while: most mutants are one of these.

    A replacement must take the parameters of what it replaces: a patch that was forgotten when a method changed would
    die of its own signature, and look like a bug that was noticed.
    """
    original = inspect.getattr_static(owner, name, None)
    if original is None:
        raise MutantError(f"{owner!r} has no attribute {name!r} to replace")
    _refuse_other_parameters(owner, name, original, replacement)
    if isinstance(original, staticmethod | classmethod) and inspect.isfunction(replacement):
        replacement = staticmethod(replacement)  # called as the original is: without the class
    with patch.object(owner, name, replacement):
        yield


def _refuse_other_parameters(owner: object, name: str, original: Any, replacement: Any) -> None:
    function = original.__func__ if isinstance(original, staticmethod | classmethod) else original
    if isinstance(original, property) or not callable(function):
        return
    if not callable(replacement):
        raise MutantError(f"{name!r} of {owner!r} is called, and its replacement is {replacement!r}")
    wanted, found = _parameters(function), _parameters(replacement)
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= {kind for _, kind, _ in found}:
        return  # it takes anything
    if isinstance(original, classmethod) or (inspect.isfunction(original) and not _holds(owner, name)):
        wanted = wanted[1:]  # bound already, and the replacement is not
    elif inspect.isclass(owner) and inspect.isfunction(original):
        wanted, found = wanted[1:], found[1:]  # `self` may have any name
    if wanted != found:
        names, others = ([name for name, _, _ in parameters] for parameters in (found, wanted))
        raise MutantError(f"a replacement of {name!r} of {owner!r} takes {names}; the original takes {others}")


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, bool]]:
    """Name, kind and whether there is a default, of each parameter."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default is not p.empty) for p in parameters]


def _holds(owner: object, name: str) -> bool:
    """Whether an attribute is the owner's own (or its class's, for a class), not bound from an instance's class."""
    return inspect.isclass(owner) or name in vars(owner)
