"""Put every known bug back and require that a checker notices: `python -m playhead.testing.mutants`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from playhead.testing.engine_mutants import ENGINE_CHECKERS, ENGINE_MUTANTS
from playhead.testing.front_mutants import FRONT_CHECKERS, FRONT_MUTANTS
from playhead.testing.graph_checkers import GRAPH_CHECKERS
from playhead.testing.graph_mutants import GRAPH_MUTANTS
from playhead.testing.kv_checkers import KV_CHECKERS
from playhead.testing.kv_mutants import KV_MUTANTS
from playhead.testing.mutant import Checker, Mutant
from playhead.testing.step_mutants import STEP_CHECKERS, STEP_MUTANTS

TABLE_COLUMNS = 150

# Each package's mutants are hunted by its own checkers.
PACKAGES: tuple[tuple[str, tuple[Mutant, ...], tuple[Checker, ...]], ...] = (
    ("graph", GRAPH_MUTANTS, GRAPH_CHECKERS),
    ("kv", KV_MUTANTS, KV_CHECKERS),
    ("step", STEP_MUTANTS, STEP_CHECKERS),
    ("engine", ENGINE_MUTANTS, ENGINE_CHECKERS),
    ("front", FRONT_MUTANTS, FRONT_CHECKERS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one mutant: the first checker that fired, and what it said."""

    mutant: Mutant
    checker: str | None
    said: str


def violations(checker: Checker) -> list[str]:
    """What the checker says. An error it does not expect is a violation too: broken code may well raise."""
    try:
        return checker.run()
    except Exception as error:  # noqa: BLE001 - any failure of mutated code is a kill, and is shown
        return [f"{type(error).__name__}: {error}"]


def false_alarms(checkers: Sequence[Checker]) -> list[str]:
    """What the checkers say on the code as it is. Must be nothing."""
    return [f"{checker.name}: {said}" for checker in checkers for said in violations(checker)]


def hunt(mutant: Mutant, checkers: Sequence[Checker]) -> Verdict:
    """Apply the mutant and ask the checkers in turn."""
    with mutant.apply():
        for checker in checkers:
            said = violations(checker)
            if said:
                return Verdict(mutant=mutant, checker=checker.name, said=said[0])
    return Verdict(mutant=mutant, checker=None, said="")


def main() -> int:
    """Print the table. The exit status is 0 only if all were killed and clean code was silent."""
    console, started = Console(width=TABLE_COLUMNS), time.perf_counter()
    table = Table("package", "mutant", "source of the bug", "checker that fired")
    alarms: list[str] = []
    num_killed = num_mutants = 0
    for package, mutants, checkers in PACKAGES:
        alarms += false_alarms(checkers)
        for mutant in mutants:
            verdict = hunt(mutant, checkers)
            num_mutants += 1
            num_killed += verdict.checker is not None
            table.add_row(package, mutant.name, mutant.source, verdict.checker or "[bold red]survived")
    console.print(table)
    for alarm in alarms:
        console.print(f"false alarm on clean code: {alarm}", style="red")
    console.print(f"{time.perf_counter() - started:.0f} s, {len(alarms)} false alarms")
    console.print(f"{num_killed} of {num_mutants} killed", highlight=False)
    return 0 if num_killed == num_mutants and not alarms else 1


if __name__ == "__main__":
    sys.exit(main())
