"""What the host does for a step, and nothing else: `python -m bench.host [--sizes 128,256] [--cases ...] [--rounds 3]`.

python -m bench.host --profile steady --sizes 128      # the functions of a step by their own time

Runs on a CPU, over an engine whose graphs do nothing (`idle_engine.py`). One JSON line per case: CPU microseconds of
plan, launch and commit, medians over all rounds, which take turns; and how many Python functions a step calls, which a
busy machine does not change. `total` is the whole step with what stands between the parts, `mean` its mean: few steps
take pages, and for all at once, so a median does not see them.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import FrameType

from bench.idle_engine import CHUNK_TOKENS, MeteredEngine, StepCost, idle_worker
from bench.measure import emit
from playhead.engine.front import RequestOptions
from playhead.sampling_params import SamplingParams
from playhead.schedule.step_plan import StepPlan

PROMPT_TOKENS = 128
MAX_RUNNING = 256
MAX_CONTEXT = 1024
SETTLING_STEPS = 6  # after the prompts: a batch that goes on is one by then
WANTED_STEPS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a step was: its plan, the plan before it, and how many pages it took."""

    planned: StepPlan
    before: StepPlan
    num_new_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Requests that come and go in a certain way. `counts` tells which steps are measured.

    In every step `num_ending` requests end; with `is_refilled` as many arrive. With `is_staggered` the prompts have as
    many lengths as a page has places, so that windows slide and pages fill in every step.
    """

    counts: Callable[[Observed], bool]
    num_ending: int = 0
    is_refilled: bool = False
    is_staggered: bool = False
    streams: bool = False
    window: int = 512
    prefix_caching: bool = False
    num_steps: int = WANTED_STEPS


def goes_on(step: Observed) -> bool:
    return step.planned.is_decode and step.planned.requests == step.before.requests


def is_smaller(step: Observed) -> bool:
    return step.planned.is_decode and step.before.is_decode and len(step.planned) < len(step.before)


def takes_pages(step: Observed) -> bool:
    """All requests of these batches are as long, so they want pages at nearly the same step."""
    return goes_on(step) and step.num_new_pages > 0


def has_prompts(step: Observed) -> bool:
    return not step.planned.is_decode


CASES = {
    "steady": Case(counts=goes_on),
    "streamed": Case(counts=goes_on, streams=True),
    "one ends": Case(counts=is_smaller, num_ending=1),
    "eight end": Case(counts=is_smaller, num_ending=8, num_steps=12),
    "one ends, prefixes kept": Case(counts=is_smaller, num_ending=1, prefix_caching=True),
    "one ends, one comes": Case(counts=has_prompts, num_ending=1, is_refilled=True),
    "eight end, eight come": Case(counts=has_prompts, num_ending=8, is_refilled=True),
    "pages": Case(counts=takes_pages, num_steps=200),
    "windows slide": Case(counts=goes_on, is_staggered=True, window=64),
}


class Population:
    """The requests of one run of a case: all of them start at once, and then as many as end each step."""

    def __init__(self, engine: MeteredEngine, case: Case, num_requests: int) -> None:
        self.engine, self.case, self.num_requests = engine, case, num_requests
        self._ids: list[str] = []

    def start(self) -> None:
        """All prompts computed, and some steps behind them."""
        for place in range(self.num_requests):
            # The first ones to end are spread over the batch; those of a later chunk of prompts begin later.
            turn = (place * 37) % self.num_requests // self.case.num_ending if self.case.num_ending else MAX_CONTEXT
            self._add(SETTLING_STEPS + turn - place * PROMPT_TOKENS // CHUNK_TOKENS)
        for _ in range(SETTLING_STEPS):
            self.engine.step()

    def steps(self) -> Iterator[Callable[[], object]]:
        """Steps to be measured, one by one; between them the requests arrive that replace those which ended."""
        for _ in range(self.case.num_steps):
            yield self.engine.step
            if self.case.is_refilled:
                for _ in range(self.num_requests - sum(self.engine.num_requests)):
                    self._add(self.num_requests // self.case.num_ending)

    def end(self) -> None:
        """Everything is gone again."""
        for request_id in self._ids:
            self.engine.abort(request_id)
        while self.engine.has_work:
            self.engine.step()
        self.engine.meter.clear()

    def _add(self, num_tokens: int) -> None:
        number = len(self._ids)
        self._ids.append(f"r{number}")
        num_prompt = PROMPT_TOKENS + (number % 16 if self.case.is_staggered else 0)
        prompt = [(number * 31 + i) % 60 for i in range(num_prompt)]
        room = MAX_CONTEXT - num_prompt
        params = SamplingParams(temperature=0, max_tokens=min(num_tokens + 2, room), ignore_eos=True, detokenize=False)
        self.engine.add_request(self._ids[-1], prompt, params, RequestOptions(streams=self.case.streams))


def counts(engine: MeteredEngine, case: Case, number: int) -> bool:
    """Whether a step is one that the case is about."""
    meter = engine.meter
    before, planned = meter.plans[number - 1], meter.plans[number]
    num_new_pages = meter.num_pages[number] - meter.num_pages[number - 1]
    return bool(
        before and planned and case.counts(Observed(planned=planned, before=before, num_new_pages=num_new_pages))
    )


def measured(engine: MeteredEngine, case: Case, num_requests: int) -> list[StepCost]:
    """The costs of one run's steps that count."""
    population = Population(engine, case, num_requests)
    population.start()
    num_before = len(engine.meter.costs)
    for step in population.steps():
        step()
    found = [engine.meter.costs[i] for i in range(num_before, len(engine.meter.costs)) if counts(engine, case, i)]
    population.end()
    return found


def num_calls(engine: MeteredEngine, case: Case, num_requests: int) -> list[int]:
    """Functions that each step calls which counts, Python's and those of C, in one run."""
    population = Population(engine, case, num_requests)
    population.start()
    found = []
    for step in population.steps():
        calls = calls_of(step)
        if counts(engine, case, -1):
            found.append(calls)
    population.end()
    return found


def calls_of(work: Callable[[], object]) -> int:
    """Functions that `work` calls, Python's and those of C. No machine's speed is in it."""
    count = 0

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    collects = gc.isenabled()
    gc.disable()  # what a collection calls is not the work's
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    return count


class Engines:
    """One engine for all cases that want the same one."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, bool], MeteredEngine] = {}

    def of(self, case: Case) -> MeteredEngine:
        key = case.window, case.prefix_caching
        if key not in self._made:
            worker = idle_worker(
                max_running=MAX_RUNNING,
                max_context=MAX_CONTEXT,
                window=case.window,
                prefix_caching=case.prefix_caching,
            )
            self._made[key] = MeteredEngine(worker)
        return self._made[key]


def middle(costs: Sequence[StepCost]) -> dict[str, float]:
    """Medians by part, and the mean of the whole."""
    told = [asdict(cost) for cost in costs]
    medians = {f"{part}_us": statistics.median(cost[part] for cost in told) for part in told[0]}
    return {**medians, "mean_us": statistics.fmean(cost.total for cost in costs)}


def measure(cases: Sequence[str], sizes: Sequence[int], rounds: int) -> None:
    """Every case at every size, in turns, and one line for each."""
    engines = Engines()
    wanted = [(name, size) for name in cases for size in sizes]
    calls = {}
    for name, size in wanted:  # what is captured when it is first wanted is captured here
        measured(engines.of(CASES[name]), CASES[name], size)
        calls[name, size] = statistics.median_low(num_calls(engines.of(CASES[name]), CASES[name], size))
    costs: dict[tuple[str, int], list[StepCost]] = {one: [] for one in wanted}
    gc.collect()
    gc.freeze()  # as an engine does that has captured its graphs
    for _ in range(rounds):
        for name, size in wanted:
            costs[name, size] += measured(engines.of(CASES[name]), CASES[name], size)
    for (name, size), found in costs.items():
        emit("host", case=name, size=size, steps=len(found), calls=calls[name, size], **middle(found))


def profile(name: str, size: int, num_rows: int) -> None:
    """The functions of a case's steps by their own time, and by their time with what they call."""
    case = CASES[name]
    engine = Engines().of(case)
    measured(engine, case, size)
    population, profiler = Population(engine, case, size), cProfile.Profile(time.thread_time)
    population.start()
    num_steps = 0
    for step in population.steps():
        profiler.runcall(step)
        num_steps += 1
    print(f"{name}, {size} requests, {num_steps} steps")
    for order in ("tottime", "cumtime"):
        pstats.Stats(profiler).sort_stats(order).print_stats(num_rows)


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=numbers, default=[128, 256], help="how many requests run [128,256]")
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES), help="|".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", choices=CASES, metavar="CASE", help="show where a case's time goes instead")
    parser.add_argument("--rows", type=int, default=40, help="functions that a profile shows [40]")
    args = parser.parse_args()
    if args.profile:
        for size in args.sizes:
            profile(args.profile, size, args.rows)
    else:
        measure(args.cases, args.sizes, args.rounds)


if __name__ == "__main__":
    main()
