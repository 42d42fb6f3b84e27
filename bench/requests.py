"""What requests cost the host: `python -m bench.requests [--rounds 7] [--against OTHER/src] [--profile CASE]`.

Whole calls of `LLM.generate` on a CPU, over an engine whose graphs do nothing (`idle_engine.py`), with prefix caching
off and no tokenizer. One JSON line per case, in CPU microseconds of the thread, medians over the rounds: the whole
call, its parts inside steps, and `outside`, which is the rest: checking, queueing, making outputs. `end` is what one
request's end costs, by the reading of the steps in which all end less that of steps in which none does. A device would
stand still for `first`, up to the call's first replay, for `last`, from the reading of its last step on, and for
`idle` between them (`ImaginedDevice`).

`--against` measures a second source tree beside this one, in a process of its own, round by round in turns.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from bench import workload
from bench.idle_engine import CHUNK_TOKENS, ImaginedDevice, MeteredEngine, idle_worker
from bench.measure import emit
from playhead.engine.calls import Calls
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams

MAX_RUNNING = 256
MAX_CONTEXT = 1536
VOCABULARY = 60
HERE = Path(__file__).parent.parent


class Case(NamedTuple):
    """Requests that come at once, all as long; or each of its own length, as the scorecard's mixed set has them."""

    num_requests: int
    num_prompt: int = 0
    num_new: int = 0
    repeats: int = 1
    """Calls of one round: a short one after another case finds cold caches."""
    is_mixed: bool = False

    @property
    def num_ends(self) -> int:
        """Steps in which requests end. Requests of one chunk of prompts end together, those of a mixed set alone."""
        return self.num_requests if self.is_mixed else -(-self.num_requests * self.num_prompt // CHUNK_TOKENS)


CASES = {
    "1 x 128": Case(1, 128, 1, repeats=20),
    "16 x 512": Case(16, 512, 1, repeats=4),
    "128 x 128": Case(128, 128, 1),
    "128 x 128, 256 new": Case(128, 128, 256),
    "256 mixed": Case(256, is_mixed=True),
}


class IdleLLM(LLM):
    """The library's face over an engine whose graphs do nothing."""

    def __init__(self) -> None:
        worker = idle_worker(max_running=MAX_RUNNING, max_context=MAX_CONTEXT, window=512, prefix_caching=False)
        self.metered = MeteredEngine(worker)
        self._calls = Calls(self.metered)
        self.config, self.stats, self.tokenizer = self.metered.config, self.metered.stats, self.metered.tokenizer

    @property
    def num_captured(self) -> int:
        """Sizes that were captured by now."""
        return sum(len(runner.captured) for runner in self.metered.worker.runners)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """CPU microseconds of one call, by part; `end` of one request's end; `first`, `last`, `idle` without the device."""

    whole: float
    outside: float
    plan: float
    launch: float
    commit: float
    end: float
    first: float
    last: float
    idle: float


def requests_of(case: Case, number: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts, and a set of parameters for each, as the scorecard's cases give them."""
    if case.is_mixed:
        prompts, num_new = workload.throughput_set(f"requests{number}", case.num_requests)
    else:
        prompts = workload.prompts(f"requests{number}", [case.num_prompt] * case.num_requests)
        num_new = [case.num_new] * case.num_requests
    ids = [[token % VOCABULARY for token in prompt] for prompt in prompts]
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=most) for most in num_new]
    return ids, params


def measured(llm: IdleLLM, case: Case, number: int) -> CallCost:
    """The cost of one call. A call that captured a size is repeated."""
    while True:
        num_captured = llm.num_captured
        cost = measured_once(llm, case, number)
        if llm.num_captured == num_captured:
            return cost


def measured_once(llm: IdleLLM, case: Case, number: int) -> CallCost:
    prompts, params = requests_of(case, number)
    meter = llm.metered.meter
    clock = llm.metered.clock
    meter.clear()
    clock.clear()
    llm.metered.device = ImaginedDevice()
    started_s = time.thread_time()
    outputs = llm.generate(prompts, params)
    ended_s = time.thread_time()
    whole = 1e6 * (ended_s - started_s)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [one.max_tokens for one in params]
    steps, num_ends = meter.costs, case.num_ends
    commits = sorted((step.commit for step in steps), reverse=True)  # the dearest are those in which requests end
    usual = statistics.median(commits[num_ends:]) if len(commits) > 2 * num_ends else 0.0
    return CallCost(
        whole=whole,
        outside=whole - sum(step.total for step in steps),
        plan=sum(step.plan for step in steps),
        launch=sum(step.launch for step in steps),
        commit=sum(step.commit for step in steps),
        end=sum(commit - usual for commit in commits[:num_ends]) / case.num_requests,
        first=1e6 * (clock.first_replay_s - started_s),
        last=1e6 * (ended_s - clock.read_s),
        idle=1e6 * llm.metered.device.idle_s,
    )


def middle(costs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Medians by part."""
    return {part: statistics.median(cost[part] for cost in costs) for part in costs[0]}


def round_of(llm: IdleLLM, case: Case, number: int) -> dict[str, float]:
    """The costs of one round of a case, by part."""
    return middle([asdict(measured(llm, case, number * case.repeats + i)) for i in range(case.repeats)])


def measure_rounds(cases: Sequence[str]) -> None:
    """One round per line of the standard input, as a line of costs by case."""
    llm = IdleLLM()
    for name in cases:
        measured(llm, CASES[name], -1)
    gc.collect()
    gc.freeze()  # as an engine does that has captured its graphs
    for number, _ in enumerate(sys.stdin):
        print(json.dumps({name: round_of(llm, CASES[name], number) for name in cases}), flush=True)


class Tree:
    """A source tree, measured by a process of its own."""

    def __init__(self, source: Path, cases: Sequence[str]) -> None:
        command = [sys.executable, "-m", "bench.requests", "--serve", "--cases", "/".join(cases)]
        environment = {**os.environ, "PYTHONPATH": f"{source}:{HERE}", "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=HERE)

    def round(self) -> dict[str, dict[str, float]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("go", file=self._process.stdin, flush=True)
        found: dict[str, dict[str, float]] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate()


def measure(cases: Sequence[str], sources: dict[str, Path], rounds: int) -> None:
    """Every case in every tree, in turns."""
    trees = {name: Tree(source, cases) for name, source in sources.items()}
    found: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, tree in trees.items():
            found[name].append(tree.round())
    for tree in trees.values():
        tree.close()
    for case in cases:
        for name, costs in found.items():
            medians = middle([one[case] for one in costs])
            emit("requests", case=case, tree=name, **{f"{part}_us": cost for part, cost in medians.items()})


def profile(name: str, num_rows: int) -> None:
    """The functions of a call by their own time, and by their time with what they call."""
    llm, case = IdleLLM(), CASES[name]
    measured(llm, case, 0)
    gc.collect()
    gc.freeze()
    profiler = cProfile.Profile(time.thread_time)
    prompts, params = requests_of(case, 0)
    for _ in range(10):
        profiler.runcall(llm.generate, prompts, params)
    print(f"{name}: 10 calls")
    for order in ("tottime", "cumtime"):
        pstats.Stats(profiler).sort_stats(order).print_stats(num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="/".join(CASES), help="names with slashes between them")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--against", type=Path, help="another source tree, measured beside this one")
    parser.add_argument("--profile", choices=CASES, metavar="CASE", help="show where a case's time goes instead")
    parser.add_argument("--rows", type=int, default=40, help="functions that a profile shows [40]")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases = args.cases.split("/")
    if args.profile:
        profile(args.profile, args.rows)
    elif args.serve:
        measure_rounds(cases)
    else:
        sources = {"before": args.against} if args.against else {}
        measure(cases, {**sources, "now": HERE / "src"}, args.rounds)


if __name__ == "__main__":
    main()
