"""The hunt for mutants is honest: crashes, wrong checkers, stale patches and polluted oracles are no kills.

The hunt itself, every mutant and every checker on clean code, is `python -m playhead.testing.mutants`.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from playhead.errors import SlotError
from playhead.testing.graph_checkers import GRAPH_CHECKERS
from playhead.testing.graph_mutants import STALE_LOC_TAIL
from playhead.testing.mutant import (
    Checker,
    Mutant,
    MutantError,
    Oracle,
    Oracles,
    Outcome,
    Package,
    applied,
    hunt,
    swapped,
)
from playhead.testing.mutants import PACKAGES, all_jobs, complaint, run_job


class Lock:
    """Something to break."""

    opens_at = 3

    def is_open(self, hour: int, *, strict: bool = False) -> bool:
        return hour > self.opens_at

    @classmethod
    def made(cls, hour: int) -> Lock:
        return cls()

    @staticmethod
    def shown(hour: int) -> str:
        return str(hour)


def always_open() -> Mutant:
    def opened(self: Lock, hour: int, *, strict: bool = False) -> bool:
        return True

    return Mutant(
        name="open", source="here", apply=lambda: swapped(Lock, "is_open", opened), killed_by=("looks at night",)
    )


def looks_at_night() -> list[str]:
    return ["open at 2"] if Lock().is_open(2) else []


AT_NIGHT = Checker(name="looks at night", run=looks_at_night)


def raising(error: Exception):
    def run() -> list[str]:
        if Lock().is_open(2):
            raise error
        return []

    return run


def test_a_mutant_dies_by_the_checker_it_names_and_is_gone_afterwards():
    answer = hunt(always_open(), [AT_NIGHT], Oracles())
    assert (answer.checker, answer.outcome, answer.said) == ("looks at night", Outcome.FIRED, "open at 2")
    assert Oracles().ask(AT_NIGHT).outcome is Outcome.SILENT


def test_an_error_that_the_checker_declares_is_a_kill():
    checker = Checker(name="refuses", run=raising(SlotError("s", "f", "w", "x")), raises=(SlotError,))
    assert hunt(always_open(), [checker], Oracles()).outcome is Outcome.FIRED


@pytest.mark.parametrize("error", [AttributeError("x"), TypeError("x"), KeyError("x"), AssertionError("x")])
def test_any_other_error_is_a_crash_and_shows_its_last_line(error):
    checker = Checker(name="refuses", run=raising(error), raises=(SlotError,))
    answer = hunt(always_open(), [checker], Oracles())
    assert answer.outcome is Outcome.CRASHED
    assert answer.said.startswith("test_mutants.py:")
    assert type(error).__name__ in answer.said


def test_a_crash_ends_the_hunt_although_another_checker_would_fire():
    crashing = Checker(name="crashes", run=raising(TypeError("x")))
    assert hunt(always_open(), [crashing, AT_NIGHT], Oracles()).outcome is Outcome.CRASHED


def test_a_checker_that_the_mutant_does_not_name_is_not_asked():
    mutant = Mutant(name="open", source="here", apply=always_open().apply, killed_by=("blind",))
    package = Package(name="p", mutants=(mutant,), checkers=(AT_NIGHT, Checker(name="blind", run=list)))
    assert hunt(mutant, package.checkers_of(mutant), Oracles()).outcome is Outcome.SILENT


@pytest.mark.parametrize("names", [(), ("looks at noon",)], ids=["none", "unknown"])
def test_a_mutant_must_name_checkers_of_its_package(names):
    mutant = Mutant(name="open", source="here", apply=nullcontext, killed_by=names)
    with pytest.raises(MutantError, match="mutant 'open'"):
        Package(name="p", mutants=(mutant,), checkers=(AT_NIGHT,))


def test_a_name_is_given_once():
    with pytest.raises(MutantError, match="named twice"):
        Package(name="p", mutants=(), checkers=(AT_NIGHT, AT_NIGHT))


STALE_PATCHES = {
    "renamed": ("is_open", lambda self, when, *, strict=False: True),
    "one more": ("is_open", lambda self, hour, minute, *, strict=False: True),
    "one less": ("is_open", lambda self, *, strict=False: True),
    "no keyword": ("is_open", lambda self, hour: True),
    "no default": ("is_open", lambda self, hour, *, strict: True),
    "positional": ("is_open", lambda self, hour, strict=False: True),
    "not called": ("is_open", True),
    "gone": ("is_shut", lambda self, hour: True),
    "class method": ("made", lambda cls, hour: Lock()),
    "static method": ("shown", lambda self, hour: ""),
}


@pytest.mark.parametrize("name", STALE_PATCHES)
def test_a_patch_with_other_parameters_than_its_target_is_refused(name):
    attribute, replacement = STALE_PATCHES[name]
    with pytest.raises(MutantError), swapped(Lock, attribute, replacement):
        pass


def test_a_patch_of_an_object_takes_no_self():
    lock = Lock()
    with pytest.raises(MutantError), swapped(lock, "is_open", lambda self, hour, *, strict=False: True):
        pass
    with swapped(lock, "is_open", lambda hour, *, strict=False: True):
        assert lock.is_open(2)
    assert not lock.is_open(2)


def test_patches_with_the_target_s_parameters_are_called_as_it_is():
    with swapped(Lock, "made", lambda hour: "mine"), swapped(Lock, "shown", lambda hour: "mine"):
        assert (Lock.made(1), Lock.shown(1), Lock().shown(1)) == ("mine", "mine", "mine")
    with swapped(Lock, "opens_at", 1), swapped(Lock, "is_open", lambda *args, **kwargs: None):
        assert (Lock.opens_at, Lock().is_open(2)) == (1, None)


def test_an_oracle_is_computed_before_the_mutant_is_applied():
    oracle = Oracle(name="at 2", compute=lambda: Lock().is_open(2))
    checker = Checker(
        name="against", run=lambda wanted: [] if wanted == Lock().is_open(2) else ["differs"], oracles=(oracle,)
    )
    assert hunt(always_open(), [checker], Oracles()).said == "differs"


def test_an_oracle_asked_for_under_a_mutant_is_refused():
    oracle, oracles = Oracle(name="at 2", compute=lambda: Lock().is_open(2)), Oracles()
    with applied(always_open()), pytest.raises(MutantError, match="'at 2' was asked for under mutant 'open'"):
        oracles.value(oracle)
    assert oracles.value(oracle) is False


def test_mutants_are_not_stacked():
    with applied(always_open()), pytest.raises(MutantError, match="on top of 'open'"), applied(always_open()):
        pass


def test_what_a_checker_says_on_clean_code_is_a_complaint():
    graph = next(i for i, package in enumerate(PACKAGES) if package.name == "graph")
    verdicts = [run_job(job, Oracles()) for job in all_jobs(PACKAGES) if job.package == graph and job.clean_run == 0]
    assert [verdict.is_right for verdict in verdicts] == [True]
    with STALE_LOC_TAIL.apply():
        (verdict,) = (run_job(verdict.job, Oracles()) for verdict in verdicts)
    assert not verdict.is_right
    assert complaint(verdict).startswith(f"false alarm on clean code: graph: {GRAPH_CHECKERS[0].name}: padded rows")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_patch_fits_the_code(package):
    """Cheap: each mutant is applied, none is hunted."""
    for mutant in package.mutants:
        with applied(mutant):
            pass


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_checker_is_the_first_that_some_mutant_is_hunted_with(package):
    """A checker that no mutant dies by may look at nothing. Of several that a mutant names, the first is asked."""
    hunters = {mutant.killed_by[0] for mutant in package.mutants}
    assert [checker.name for checker in package.checkers if checker.name not in hunters] == []
