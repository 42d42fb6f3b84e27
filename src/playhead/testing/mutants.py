"""Put every known bug back and require that the right checker notices: `python -m playhead.testing.mutants`.

Mutants and clean runs of all checkers are shuffled together, so that whatever a mutant leaves behind shows as a false
alarm. `--seed` repeats an order, `-j` shares the work among processes.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from rich.console import Console
from rich.table import Table

from playhead.testing.backend_mutants import BACKEND_CHECKERS, BACKEND_MUTANTS
from playhead.testing.compiler_mutants import COMPILER_CHECKERS, COMPILER_MUTANTS
from playhead.testing.engine_mutants import ENGINE_CHECKERS, ENGINE_MUTANTS
from playhead.testing.field_mutants import FIELD_CHECKERS, FIELD_MUTANTS
from playhead.testing.front_mutants import FRONT_CHECKERS, FRONT_MUTANTS
from playhead.testing.gguf_mutants import GGUF_CHECKERS, GGUF_MUTANTS
from playhead.testing.graph_checkers import GRAPH_CHECKERS
from playhead.testing.graph_mutants import GRAPH_MUTANTS
from playhead.testing.kv_checkers import KV_CHECKERS
from playhead.testing.kv_mutants import KV_MUTANTS
from playhead.testing.metrics_mutants import METRICS_CHECKERS, METRICS_MUTANTS
from playhead.testing.model_checkers import MODEL_CHECKERS
from playhead.testing.model_mutants import MODEL_MUTANTS
from playhead.testing.mutant import Answer, MutantError, Oracles, Outcome, Package, hunt, last_line
from playhead.testing.order_checkers import ORDER_CHECKERS
from playhead.testing.order_mutants import ORDER_MUTANTS
from playhead.testing.parallel_mutants import PARALLEL_CHECKERS, PARALLEL_MUTANTS
from playhead.testing.protocol_mutants import PROTOCOL_CHECKERS, PROTOCOL_MUTANTS
from playhead.testing.resume_mutants import RESUME_CHECKERS, RESUME_MUTANTS
from playhead.testing.ring_mutants import RING_CHECKERS, RING_MUTANTS
from playhead.testing.scale_mutants import SCALE_CHECKERS, SCALE_MUTANTS
from playhead.testing.seeds_checkers import SEEDS, all_rows, seed_rows, seeds_checkers, what_is_missing
from playhead.testing.seeds_mutants import SEEDS_MUTANTS
from playhead.testing.step_mutants import STEP_CHECKERS, STEP_MUTANTS
from playhead.testing.structured_mutants import STRUCTURED_CHECKERS, STRUCTURED_MUTANTS
from playhead.testing.tool_mutants import TOOL_CHECKERS, TOOL_MUTANTS
from playhead.testing.transport_mutants import TRANSPORT_CHECKERS, TRANSPORT_MUTANTS

TABLE_COLUMNS = 150
MAX_SEED = 2**31


def seeds() -> tuple[Package, ...]:
    """The requirements of docs/seeds.md, where there are tests to hunt their removal with."""
    if what_is_missing() is not None:
        return ()
    rows = seed_rows(SEEDS.read_text())
    checkers, clean = seeds_checkers(rows), (all_rows(rows),)
    return (Package(name="seeds", mutants=SEEDS_MUTANTS, checkers=checkers, on_clean_code=clean),)


PACKAGES: tuple[Package, ...] = (
    Package(name="graph", mutants=GRAPH_MUTANTS, checkers=GRAPH_CHECKERS),
    Package(name="kv", mutants=KV_MUTANTS, checkers=KV_CHECKERS),
    Package(name="models", mutants=MODEL_MUTANTS, checkers=MODEL_CHECKERS),
    Package(name="files", mutants=GGUF_MUTANTS, checkers=GGUF_CHECKERS),
    Package(name="step", mutants=STEP_MUTANTS, checkers=STEP_CHECKERS),
    Package(name="ring", mutants=RING_MUTANTS, checkers=RING_CHECKERS),
    Package(name="compiler", mutants=COMPILER_MUTANTS, checkers=COMPILER_CHECKERS),
    Package(name="parallel", mutants=PARALLEL_MUTANTS, checkers=PARALLEL_CHECKERS),
    Package(name="order", mutants=ORDER_MUTANTS, checkers=ORDER_CHECKERS),
    Package(name="engine", mutants=ENGINE_MUTANTS, checkers=ENGINE_CHECKERS),
    Package(name="resume", mutants=RESUME_MUTANTS, checkers=RESUME_CHECKERS),
    Package(name="fields", mutants=FIELD_MUTANTS, checkers=FIELD_CHECKERS),
    Package(name="front", mutants=FRONT_MUTANTS, checkers=FRONT_CHECKERS),
    Package(name="transport", mutants=TRANSPORT_MUTANTS, checkers=TRANSPORT_CHECKERS),
    Package(name="backend", mutants=BACKEND_MUTANTS, checkers=BACKEND_CHECKERS),
    Package(name="scale", mutants=SCALE_MUTANTS, checkers=SCALE_CHECKERS),
    Package(name="protocol", mutants=PROTOCOL_MUTANTS, checkers=PROTOCOL_CHECKERS),
    Package(name="metrics", mutants=METRICS_MUTANTS, checkers=METRICS_CHECKERS),
    Package(name="tools", mutants=TOOL_MUTANTS, checkers=TOOL_CHECKERS),
    Package(name="structured", mutants=STRUCTURED_MUTANTS, checkers=STRUCTURED_CHECKERS),
    *seeds(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run: a mutant of a package, or a checker on the code as it is. Indices, because patches cannot be sent."""

    package: int
    mutant: int | None = None
    clean_run: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A job's answer and what it cost."""

    job: Job
    answer: Answer
    seconds: float

    @property
    def is_right(self) -> bool:
        wanted = Outcome.SILENT if self.job.mutant is None else Outcome.FIRED
        return self.answer.outcome is wanted

    @property
    def has_crashed(self) -> bool:
        return self.answer.outcome is Outcome.CRASHED


def all_jobs(packages: Sequence[Package]) -> list[Job]:
    jobs = []
    for index, package in enumerate(packages):
        jobs += [Job(package=index, clean_run=i) for i in range(len(package.clean_runs))]
        jobs += [Job(package=index, mutant=i) for i in range(len(package.mutants))]
    return jobs


def run_job(job: Job, oracles: Oracles) -> Verdict:
    started, package = time.perf_counter(), PACKAGES[job.package]
    try:
        if job.clean_run is not None:
            answer = oracles.ask(package.clean_runs[job.clean_run])
        else:
            assert job.mutant is not None, "a job is one or the other"
            mutant = package.mutants[job.mutant]
            answer = hunt(mutant, package.checkers_of(mutant), oracles)
    except MutantError as error:
        answer = Answer(checker="none", outcome=Outcome.CRASHED, said=last_line(error))
    return Verdict(job=job, answer=answer, seconds=time.perf_counter() - started)


def run_jobs(jobs: Sequence[Job]) -> list[Verdict]:
    oracles = Oracles()
    return [run_job(job, oracles) for job in jobs]


def run_in_processes(jobs: Sequence[Job], num_processes: int) -> list[Verdict]:
    """Every process gets an equal share of the shuffled jobs."""
    if num_processes == 1:
        return run_jobs(jobs)
    shares = [jobs[i::num_processes] for i in range(num_processes)]
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        return [verdict for verdicts in pool.map(run_jobs, shares) for verdict in verdicts]


def table_of(verdicts: Sequence[Verdict]) -> Table:
    """A row per mutant, in the order of the packages."""
    table = Table("package", "mutant", "source of the bug", "checker that fired")
    for verdict in sorted(verdicts, key=lambda v: (v.job.package, v.job.mutant or 0)):
        package, index = PACKAGES[verdict.job.package], verdict.job.mutant
        if index is not None:
            mutant, fired = package.mutants[index], verdict.answer.checker
            shown = fired if verdict.is_right else "[bold red]crashed" if verdict.has_crashed else "[bold red]survived"
            table.add_row(package.name, mutant.name, mutant.source, shown)
    return table


def complaint(verdict: Verdict) -> str:
    """What is wrong, in a line."""
    package, answer = PACKAGES[verdict.job.package], verdict.answer
    if verdict.job.mutant is None:
        what = "crash" if verdict.has_crashed else "false alarm"
        return f"{what} on clean code: {package.name}: {answer.checker}: {answer.said}"
    mutant = package.mutants[verdict.job.mutant]
    if verdict.has_crashed:
        return f"crashed: {package.name}: {mutant.name}, under checker {answer.checker!r}: {answer.said}"
    return f"survived: {package.name}: {mutant.name}; silent: {', '.join(mutant.killed_by)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. The exit status is 0 only if all were killed by their checkers and clean code was silent."""
    parser = argparse.ArgumentParser(prog="python -m playhead.testing.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(MAX_SEED), help="repeat this order")
    parser.add_argument("-j", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--package", choices=[package.name for package in PACKAGES], help="this one alone")
    parser.add_argument("--times", action="store_true", help="print what each job took")
    options = parser.parse_args(arguments)
    console, started = Console(width=TABLE_COLUMNS), time.perf_counter()
    jobs = [job for job in all_jobs(PACKAGES) if options.package in (None, PACKAGES[job.package].name)]
    random.Random(options.seed).shuffle(jobs)
    verdicts = run_in_processes(jobs, options.j)
    console.print(table_of(verdicts))
    if options.times:
        for verdict in sorted(verdicts, key=lambda v: -v.seconds):
            console.print(f"{verdict.seconds:6.2f} s  {verdict.job}  {verdict.answer.checker}", highlight=False)
    for verdict in verdicts:
        if not verdict.is_right:
            console.print(complaint(verdict), style="red", markup=False, soft_wrap=True)
    if (missing := what_is_missing()) is not None:
        console.print(f"seeds: not hunted: {missing}.", highlight=False)
    hunted = [verdict for verdict in verdicts if verdict.job.mutant is not None]
    num_crashes = sum(verdict.has_crashed for verdict in verdicts)
    num_alarms = sum(not v.is_right and not v.has_crashed for v in verdicts if v.job.mutant is None)
    seconds = time.perf_counter() - started
    console.print(
        f"{seconds:.0f} s, {num_alarms} false alarms, {num_crashes} crashes, order seed {options.seed}", highlight=False
    )
    console.print(f"{sum(verdict.is_right for verdict in hunted)} of {len(hunted)} killed", highlight=False)
    return 0 if all(verdict.is_right for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
