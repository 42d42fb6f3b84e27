"""The simulator against two real replicas of the embedded model on this machine: `python -m bench.calibrate`.

Two processes each run an engine. Rounds alternate: loads to measure steps under (other seeds, several rates), then one
that counts. The cost model is fitted to the steps of the first kind; then the requests of the second kind, behind the
same router, are simulated, and throughput and time to first token are compared. The rate is a share of what the
replicas turned out to do at most. Takes about two minutes on two idle cores. On a busy machine `--clock cpu` runs both
engines by turns and counts their CPU seconds. The exit code is 1 if one of the two is off by more than `--most`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection, wait

import numpy as np

from bench.calibrate_replica import Answer, Ask, CpuClock, Facts, TimedEngine, TimedStep, run_replica
from playhead.scale.cost import CostModel, Gpu
from playhead.scale.fit import Fit, MeasuredStep, fit
from playhead.scale.router import Loads, Router, page_keys
from playhead.scale.simulation.fleet import Arrival, Fleet, PrefixAware
from playhead.scale.simulation.request import ReplicaSpec, SimRequest

NAMES = ("r1", "r2")
HOST = Gpu(name="this CPU", memory_bytes=0, bytes_per_s=1e10, flops_per_s=1e11)
"""Round numbers: the coefficients are fitted, so they carry what the machine is."""
NUM_PREFIXES, PREFIX_TOKENS = 8, 96
OWN_TOKENS, OUTPUT_TOKENS = (16, 96), (8, 64)
VOCAB = (16, 4000)
RUSH_RATE, NUM_RUSHING = 1e6, 96
SHARES = (0.6, 1.0, 1.4)
"""Of the rate that counts: loads that steps are measured under."""
SHOWN = {
    "tokens_per_s": "output tokens/s",
    "first_p50_ms": "first token p50, ms",
    "first_p95_ms": "first token p95, ms",
    "whole_ms": "whole request, mean, ms",
    "cached_share": "prompt tokens cached",
}
JUDGED = ("tokens_per_s", "first_p95_ms")
PAUSE_S = 3600.0
"""Between simulated loads, so that each finds idle replicas, as the real ones do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of a seed: independent arrivals for so many seconds."""

    seed: int
    rate: float
    seconds: float

    def draw(self) -> list[tuple[float, int, Ask]]:
        """(moment, prefix, request), in order."""
        rng, now_s, made = random.Random(self.seed), 0.0, list[tuple[float, int, Ask]]()
        prefixes = [random.Random(f"prefix {i}") for i in range(NUM_PREFIXES)]
        shared = [tuple(one.randrange(*VOCAB) for _ in range(PREFIX_TOKENS)) for one in prefixes]
        while (now_s := now_s + rng.expovariate(self.rate)) < self.seconds:
            prefix = rng.choices(range(NUM_PREFIXES), weights=[1 / (i + 1) for i in range(NUM_PREFIXES)])[0]
            own = tuple(rng.randrange(*VOCAB) for _ in range(rng.randint(*OWN_TOKENS)))
            ask = Ask(index=len(made), prompt=shared[prefix] + own, output_tokens=rng.randint(*OUTPUT_TOKENS))
            made.append((now_s, prefix, ask))
        return made


class Replicas:
    """Two real replicas behind the real router. A subclass says where they run and what time it is."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._router, self._loads = Router(NAMES), Loads(NAMES)

    def play(self, load: Load) -> list[Answer]:
        """Send a load at its moments; gives the answers in its order, with seconds from its start."""
        raise NotImplementedError

    def steps(self) -> list[TimedStep]:
        """The steps since the last time. All requests have ended."""
        raise NotImplementedError

    def _choose(self, ask: Ask) -> str:
        keys = page_keys(ask.prompt, "", page_tokens=self.facts.page_size)
        name = self._router.choose(keys, self._loads).replica
        self._router.observe(keys, name)
        self._loads.add(name, 1)
        return name


class Processes(Replicas):
    """Each replica in a process of its own, in real time."""

    def __init__(self, pipes: dict[str, Connection]) -> None:
        facts = [pipe.recv() for pipe in pipes.values()]
        super().__init__(facts[0])
        self._pipes = pipes

    def play(self, load: Load) -> list[Answer]:
        asked, answers = load.draw(), dict[int, Answer]()
        began_s, sent = time.perf_counter(), 0
        while len(answers) < len(asked):
            left_s = asked[sent][0] - (time.perf_counter() - began_s) if sent < len(asked) else None
            if left_s is not None and left_s <= 0:
                ask = asked[sent][2]
                self._pipes[self._choose(ask)].send(ask)
                sent += 1
                continue
            ready = wait(list(self._pipes.values()), timeout=left_s)
            for name, pipe in self._pipes.items():
                if pipe in ready:
                    answer: Answer = pipe.recv()
                    self._loads.add(name, -1)
                    first_s, end_s = answer.first_s - began_s, answer.end_s - began_s
                    answers[answer.index] = replace(answer, first_s=first_s, end_s=end_s)
        return [answers[i] for i in range(len(asked))]

    def steps(self) -> list[TimedStep]:
        found: list[TimedStep] = []
        for pipe in self._pipes.values():
            pipe.send("steps")
            found += pipe.recv()
        return found


class Turns(Replicas):
    """Both replicas in this process, by turns, each on the clock of its own CPU seconds."""

    def __init__(self) -> None:
        self._clocks = {name: CpuClock() for name in NAMES}
        self._engines = {name: TimedEngine(clock) for name, clock in self._clocks.items()}
        super().__init__(self._engines[NAMES[0]].facts)

    def play(self, load: Load) -> list[Answer]:
        for clock in self._clocks.values():
            clock.now_s = 0.0
        answers: dict[int, Answer] = {}
        asked = load.draw()
        ended: list[tuple[float, str]] = []  # ends that the router has not been told of
        for at_s, _, ask in asked:
            self._run_to(at_s, answers, ended)
            for end in [one for one in ended if one[0] <= at_s]:
                ended.remove(end)
                self._loads.add(end[1], -1)
            name = self._choose(ask)
            clock = self._clocks[name]
            clock.now_s = max(clock.now_s, at_s)
            with clock.runs():
                self._engines[name].submit(ask)
        self._run_to(float("inf"), answers, ended)
        for _, name in ended:
            self._loads.add(name, -1)
        return [answers[i] for i in range(len(asked))]

    def _run_to(self, until_s: float, answers: dict[int, Answer], ended: list[tuple[float, str]]) -> None:
        """Every step that begins before this moment."""
        for name, engine in self._engines.items():
            while engine.has_work and self._clocks[name].now_s < until_s:
                with self._clocks[name].runs():
                    found = engine.step()
                for answer in found:
                    answers[answer.index] = answer
                    ended.append((answer.end_s, name))

    def steps(self) -> list[TimedStep]:
        return [step for engine in self._engines.values() for step in engine.take_steps()]


def measured(steps: Sequence[TimedStep], facts: Facts) -> list[MeasuredStep]:
    """Steps as the fit takes them, in the sizes that they were padded to. The slowest of a hundred are left out: what
    stopped them was not the step."""
    most_s = float(np.percentile([one.seconds for one in steps], 99))
    made = []
    for i, one in enumerate(steps):
        if one.seconds > most_s:
            continue
        work, padding = one.work, one.padded_tokens - one.work.num_rows - one.work.num_prompt_tokens
        if work.num_prompt_tokens:
            flops = work.prompt_flops + padding * facts.shape.layer_flops
            work = work._replace(num_prompt_tokens=work.num_prompt_tokens + padding, prompt_flops=flops)
        else:
            work = work._replace(num_rows=one.padded_tokens)
        made.append(MeasuredStep(name=str(i), shape=facts.shape, work=work, ms=1e3 * one.seconds))
    return made


def fitted(steps: Sequence[TimedStep], facts: Facts) -> tuple[CostModel, Fit]:
    """Costs whose sum over all steps is the time that they took, the slow ones included."""
    cells = measured(steps, facts)
    found = fit(HOST, cells)
    model = CostModel(shape=facts.shape, gpu=HOST, costs=found.costs)
    predicted_s = sum(model.step_s(one.work) for one in cells) * len(steps) / len(cells)
    scale = sum(one.seconds for one in steps) / predicted_s
    scaled = type(found.costs).of_vector(found.costs.vector() * scale)
    return CostModel(shape=facts.shape, gpu=HOST, costs=scaled), found


def simulate(loads: Sequence[Load], cost: CostModel, facts: Facts) -> list[list[SimRequest]]:
    """The same requests at the same moments behind the same router, on simulated replicas that keep their caches."""
    spec = ReplicaSpec(
        cost=cost,
        max_running=facts.max_running,
        chunk_tokens=facts.chunk_tokens,
        kv_bytes=facts.kv_bytes,
        max_context_tokens=facts.max_context_tokens,
        page_size=facts.page_size,
        has_overlap=False,
    )
    arrivals: list[Arrival] = []
    found: list[list[SimRequest]] = []
    began_s = 0.0
    for load in loads:
        found.append([])
        for at_s, prefix, ask in load.draw():
            request = SimRequest(
                index=len(arrivals),
                arrival_s=began_s + at_s,
                prompt_tokens=len(ask.prompt),
                output_tokens=ask.output_tokens,
                path=(prefix,),
                ends=(PREFIX_TOKENS,),
            )
            found[-1].append(request)
            arrivals.append(Arrival(request, page_keys(ask.prompt, "", page_tokens=facts.page_size)))
        began_s += load.seconds + PAUSE_S
    Fleet(spec, len(NAMES), PrefixAware()).play(arrivals)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is compared. A request is one column: its arrival, first token and end, and its cached tokens."""

    tokens_per_s: float
    first_p50_ms: float
    first_p95_ms: float
    whole_ms: float
    cached_share: float

    @classmethod
    def of(cls, load: Load, times: Sequence[tuple[float, float, float]], cached: Sequence[int]) -> Figures:
        """Of (arrival, first token, end) of each request. Throughput is from the first arrival to the last token."""
        asked = [ask for _, _, ask in load.draw()]
        at, first, end = np.array(times).T
        return cls(
            tokens_per_s=float(sum(ask.output_tokens for ask in asked) / (end.max() - at.min())),
            first_p50_ms=float(1e3 * np.percentile(first - at, 50)),
            first_p95_ms=float(1e3 * np.percentile(first - at, 95)),
            whole_ms=float(1e3 * (end - at).mean()),
            cached_share=sum(cached) / sum(len(ask.prompt) for ask in asked),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Real and simulated figures of each load that counts, and the fit behind them."""

    runs: tuple[tuple[Figures, Figures], ...]
    cost: CostModel
    num_steps: int
    fit_error: float

    def error(self, name: str) -> float:
        """The relative error of a figure's mean over all runs."""
        real, simulated = (np.mean([asdict(run[i])[name] for run in self.runs]) for i in range(2))
        return float(simulated / real - 1)


def most_rate(replicas: Replicas) -> float:
    """Requests per second of both replicas when many come at once; the second time, when the machine is warm."""
    for seed in (97, 98):
        load = Load(seed=seed, rate=RUSH_RATE, seconds=NUM_RUSHING / RUSH_RATE)
        answers = replicas.play(load)
        replicas.steps()
    return len(answers) / max(one.end_s for one in answers)


def calibrate(replicas: Replicas, rounds: int, seconds: float, rate: float) -> Calibration:
    """Rounds of loads to fit to and a load that counts, so that the machine is the same under both."""
    steps, loads, real = list[TimedStep](), list[Load](), dict[int, Figures]()
    for i in range(rounds):
        for share in SHARES:
            loads.append(Load(seed=1000 + len(loads), rate=share * rate, seconds=seconds / 6))
            replicas.play(loads[-1])
        steps += replicas.steps()
        load = Load(seed=i, rate=rate, seconds=seconds)
        answers = replicas.play(load)
        replicas.steps()  # these are not for the fit
        moments = [at_s for at_s, _, _ in load.draw()]
        times = [(at, one.first_s, one.end_s) for at, one in zip(moments, answers, strict=True)]
        real[len(loads)] = Figures.of(load, times, [one.num_cached for one in answers])
        loads.append(load)
    cost, found = fitted(steps, replicas.facts)
    played = simulate(loads, cost, replicas.facts)
    runs = []
    for place, figures in real.items():
        times = [(one.arrival_s, one.first_s, one.end_s) for one in played[place]]
        runs.append((figures, Figures.of(loads[place], times, [one.num_cached for one in played[place]])))
    error = float(np.mean(np.abs([*found.errors.values()])))
    return Calibration(runs=tuple(runs), cost=cost, num_steps=len(steps), fit_error=error)


@contextmanager
def processes() -> Iterator[Replicas]:
    """Two processes with an engine each, ready."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = dict[str, Connection](), []
    for name in NAMES:
        pipes[name], theirs = context.Pipe()
        processes.append(context.Process(target=run_replica, args=(theirs,), daemon=True))
        processes[-1].start()
        theirs.close()
    try:
        yield Processes(pipes)
    finally:
        for pipe in pipes.values():
            pipe.close()
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()


def show(found: Calibration) -> str:
    lines = [f"{found.num_steps:,} steps fitted, error {found.fit_error:.1%} of a step in the mean"]
    lines.append("| | real | simulated | error |\n|---|---|---|---|")
    for name, words in SHOWN.items():
        real, simulated = (", ".join(f"{asdict(run[i])[name]:,.2f}" for run in found.runs) for i in range(2))
        lines.append(f"| {words} | {real} | {simulated} | {found.error(name):+.1%} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a load that counts [20]")
    parser.add_argument("--share", type=float, default=0.5, help="of the most that the replicas can do [0.5]")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: by turns in one process, for a busy machine"
    )
    parser.add_argument("--most", type=float, default=0.15, help="the error that is allowed [0.15]")
    args = parser.parse_args()
    with nullcontext(Turns()) if args.clock == "cpu" else processes() as replicas:
        rate = args.share * most_rate(replicas)
        found = calibrate(replicas, args.rounds, args.seconds, rate)
    print(f"{rate:.1f} requests/s, {args.share:.0%} of what both replicas can do")
    print(show(found))
    print(json.dumps({name: round(found.error(name), 4) for name in SHOWN}))
    return 1 if max(abs(found.error(name)) for name in JUDGED) > args.most else 0


if __name__ == "__main__":
    sys.exit(main())
