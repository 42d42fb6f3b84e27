"""A soak: random requests on the embedded model for as long as you like, with faults injected every so many steps.

    python -m playhead.testing.soak --minutes 30 --fault-every 200

Every request's tokens are compared with those that it gets alone. Printed at intervals: steps, requests, faults, wrong
tokens, leaks; live tensor bytes, pages in use, rows and Python objects, which must not grow; and the process's memory,
which is only shown. Ends by itself, with status 1 if a token was wrong or anything was lost.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import torch

from playhead.engine.engine import Engine
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams
from playhead.testing.fault_runs import FaultPicker, FaultReport, faulty_step, keep_last, leftovers

CONTEXT = 96
MAX_RUNNING = 6
NUM_DIFFERENT = 48  # requests whose tokens are known; they come again and again
IDLE_EVERY = 500  # steps, after which the engine is run empty and counted
SHOWN_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request and the tokens that it gets alone."""

    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: list[int]


@dataclass(slots=True, kw_only=True)  # mutable: counters of a run
class SoakCounts:
    num_steps: int = 0
    num_requests: int = 0
    num_failed: int = 0
    num_wrong: int = 0
    leaks: list[str] = field(default_factory=list)


def small_llm(*, prefix_caching: bool = True) -> LLM:
    return LLM(
        "embedded",
        max_model_len=CONTEXT,
        max_num_seqs=MAX_RUNNING,
        max_num_batched_tokens=32,
        kv_memory_bytes=700_000,
        page_size=4,
        overlap=True,
        enable_prefix_caching=prefix_caching,
    )


def known_requests(rng: random.Random) -> list[Wanted]:
    """Requests with shared beginnings, greedy and drawn, and what each gets with the engine to itself."""
    with small_llm(prefix_caching=False) as llm:
        vocab_size = llm.engine.worker.model.decoder.spec.vocab_size
        starts = [[rng.randrange(vocab_size) for _ in range(24)] for _ in range(4)]
        known = []
        for number in range(NUM_DIFFERENT):
            own = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 16))]
            prompt = tuple(rng.choice(starts)[: rng.choice([0, 8, 24])] + own)
            params = SamplingParams(
                max_tokens=rng.randint(1, 40),
                ignore_eos=True,
                stop=("e ", "q") if number % 5 == 0 else (),
                temperature=float(number % 2),
                top_k=20,
                seed=number,
            )
            tokens = llm.generate(prompt, params)[0].outputs[0].token_ids
            known.append(Wanted(prompt=prompt, params=params, tokens=tokens))
    return known


class Soak:
    """One engine under random load."""

    def __init__(self, engine: Engine, known: list[Wanted], seed: int) -> None:
        self._engine, self._known = engine, known
        self._rng = random.Random(seed)
        self.picker = FaultPicker(rng=self._rng)
        self.counts = SoakCounts()
        self._running: dict[str, Wanted] = {}

    def run(self, *, until_s: float, fault_every: int) -> None:
        shown_s = time.monotonic()
        while time.monotonic() < until_s:
            self._feed()
            self._step(is_faulty=self.counts.num_steps % fault_every == fault_every - 1)
            if self.counts.num_steps % IDLE_EVERY == 0:
                self._run_empty()
            if time.monotonic() - shown_s > SHOWN_EVERY_S:
                shown_s = time.monotonic()
                self.show()
        self._run_empty()

    def _feed(self) -> None:
        """A new request now and then, and one that is given up."""
        while len(self._running) < 2 * MAX_RUNNING and self._rng.random() < 0.4:
            self.counts.num_requests += 1
            name, wanted = f"s{self.counts.num_requests}", self._rng.choice(self._known)
            self._engine.add_request(name, wanted.prompt, wanted.params)
            self._running[name] = wanted
        if self._running and self._rng.random() < 0.01:
            name = self._rng.choice(sorted(self._running))
            self._engine.abort(name)
            del self._running[name]

    def _step(self, *, is_faulty: bool) -> None:
        self.counts.num_steps += 1
        report = FaultReport()
        if is_faulty:
            faulty_step(self._engine, self.picker, report)
        elif self._engine.has_work:
            keep_last(report, self._engine.step())
        self.counts.leaks += report.found
        for name, output in report.outputs.items():
            wanted = self._running.pop(name, None)
            if wanted is None:
                continue
            tokens = output.outputs[0].token_ids
            if output.error is not None:
                self.counts.num_failed += 1
                self.counts.num_wrong += tokens != wanted.tokens[: len(tokens)]
            else:
                self.counts.num_wrong += tokens != wanted.tokens

    def _run_empty(self) -> None:
        """Everybody to the end: then nothing may be held, and nobody be missing."""
        while self._engine.has_work:
            self._step(is_faulty=False)
        self.counts.leaks += leftovers(self._engine)
        self.counts.leaks += [f"request {name!r} has no end" for name in self._running]
        self._running.clear()

    def show(self) -> None:
        counts, kv = self.counts, self._engine.worker.kv
        objects = gc.get_objects()
        storages = (t.untyped_storage() for t in objects if type(t) in (torch.Tensor, torch.nn.Parameter))
        num_bytes = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        num_taken = sum(group.num_taken for group in kv.allocator.groups)
        print(
            f"{counts.num_steps} steps, {counts.num_requests} requests, {self.picker.num_raised} faults, "
            f"{counts.num_failed} failed, {counts.num_wrong} wrong, {len(counts.leaks)} leaks; "
            f"{num_bytes / 1e6:.1f} MB of tensors, {num_taken} pages taken, "
            f"{len(kv.sequences)} rows, {len(objects)} objects, "
            f"RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB at most",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--fault-every", type=int, default=200, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    until_s = time.monotonic() + 60 * args.minutes
    known = known_requests(random.Random(args.seed))
    with small_llm() as llm:
        soak = Soak(llm.engine, known, args.seed)
        soak.run(until_s=until_s, fault_every=args.fault_every)
        soak.show()
        for leak in soak.counts.leaks[:10]:
            print(leak)
        faults: Counter[str] = soak.picker.num_by_site
        print("faults by site:", dict(faults), "by error:", dict(soak.picker.num_by_error))
    return 1 if soak.counts.num_wrong or soak.counts.leaks else 0


if __name__ == "__main__":
    sys.exit(main())
