"""A checker per requirement of `docs/seeds.md`: the tests that its row names, run in this process.

A row is kept by its tests only if they fail when the requirement is removed. Needs a checkout, because tests and
documents are not installed, and pytest (`playhead[dev]`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from playhead.errors import PlayheadError
from playhead.testing.mutant import Checker, Oracle

if TYPE_CHECKING:
    import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
SEEDS = CHECKOUT / "docs" / "seeds.md"
ROW = re.compile(r"^\| (S\d\.\d) ", re.MULTILINE)
NODE = re.compile(r"`([\w/]+\.py::[^`]+)`")
GPU_TESTS = "gpu/"
# Fast to start and to end, and nothing of this run is left in the checkout. pytest rewrites the modules of its plugins,
# and warns of those that are imported already: anyio, which the server uses. What Python could not raise is left to the
# suite, which runs these tests too: to find it takes two garbage collections, half a second each, at the end of a run.
PLUGINS = ("no:cacheprovider", "no:xdist", "no:hypothesispytest", "no:unraisableexception")
OPTIONS = (
    "-q",
    *(f"-p{plugin}" for plugin in PLUGINS),
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
    f"--rootdir={CHECKOUT}",
)


class TestsCrashed(Exception):
    """A test did not get as far as its assertions: it could not be collected, set up, or it raised another error."""

    __test__ = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRow:
    """One requirement: its number, and the CPU tests that its row names, as paths under `tests/` with `::`."""

    requirement: str
    tests: tuple[str, ...]


def seed_rows(text: str) -> list[SeedRow]:
    """The rows of the document, in its order. Tests that need a GPU are left out."""
    rows = []
    for line in text.splitlines():
        if (found := ROW.match(line)) is not None:
            tests = tuple(node for node in NODE.findall(line) if not node.startswith(GPU_TESTS))
            rows.append(SeedRow(requirement=found[1], tests=tests))
    return rows


def what_is_missing() -> str | None:
    """Why the rows cannot be run here, or None."""
    if not SEEDS.is_file() or not (CHECKOUT / "tests").is_dir():
        return "docs/seeds.md and tests/ are not installed. Run it in a checkout"
    return None if find_spec("pytest") else "pytest is not installed. Install playhead[dev]"


@dataclass(slots=True, eq=False)  # mutable: pytest reports to it
class Outcomes:
    """What became of the tests of one run."""

    num_passed: int = 0
    failures: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.crashes.append(f"{report.nodeid} cannot be collected: {report.longreprtext.splitlines()[-1]}")

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        import pytest

        if call.excinfo is None:
            self.num_passed += call.when == "call"
            return
        said = f"{item.name}: {call.excinfo.exconly().splitlines()[0]}"
        # pytest's own failure is an expected error that did not come.
        ours = AssertionError, PlayheadError, pytest.fail.Exception
        if call.when == "call" and call.excinfo.errisinstance(ours):
            self.failures.append(said)
            item.session.shouldfail = "one failure is enough"
        elif not call.excinfo.errisinstance(pytest.skip.Exception):
            self.crashes.append(f"{call.when} of {said}")


def run_tests(tests: Sequence[str], *options: str) -> Outcomes:
    """Run tests of the checkout in this process, with whatever is patched in it."""
    import pytest

    outcomes = Outcomes()
    paths = [str(CHECKOUT / "tests" / test) for test in tests]
    with redirect_stdout(io.StringIO()) as shown:
        code = pytest.main([*OPTIONS, "-c", str(CHECKOUT / "pyproject.toml"), *options, *paths], plugins=[outcomes])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        outcomes.crashes.append(f"pytest ended with {code}: {' '.join(shown.getvalue().split())[-200:]}")
    return outcomes


def seeds_checkers(rows: Sequence[SeedRow]) -> tuple[Checker, ...]:
    """A checker per row, by the requirement's number."""

    def import_all() -> None:
        """Test modules take names from ours when they are imported: never while one of these is patched."""
        crashes = run_tests(tests_of(rows), "--collect-only").crashes
        if crashes:
            raise TestsCrashed("; ".join(crashes))

    imported = Oracle(name="test modules", compute=import_all)

    def checker(row: SeedRow) -> Checker:
        return Checker(name=row.requirement, run=lambda _: failures_of(row.tests), oracles=(imported,))

    return tuple(checker(row) for row in rows)


def all_rows(rows: Sequence[SeedRow]) -> Checker:
    """The tests of all rows, each once: what clean code must pass."""
    return Checker(name="all rows", run=lambda: failures_of(tests_of(rows)))


def tests_of(rows: Sequence[SeedRow]) -> list[str]:
    return list(dict.fromkeys(test for row in rows for test in row.tests))


def failures_of(tests: Sequence[str]) -> list[str]:
    """The first failure of these tests. One that fails as it should is enough, whatever became of those before it."""
    outcomes = run_tests(tests)
    if outcomes.failures:
        return outcomes.failures
    if outcomes.crashes or not outcomes.num_passed:
        raise TestsCrashed("; ".join(outcomes.crashes) or f"none of {list(tests)} ran")
    return []
