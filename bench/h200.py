"""The whole scorecard in one command, one JSON line per number: `python -m bench.h200 [--models ...] [--cells ...]`.

python -m bench.h200 --models gemma3-1b --cells decode,prefill --budget 60
python -m bench.h200 --models gemma3-1b --profile --batches 1,128      # microseconds of each kernel of a decode step
python -m bench.report RESULTS.jsonl                                   # tables and plots of what was measured

Dummy weights of the real shapes in bfloat16, on one GPU. Prompts and lengths are those that the peers were measured
with (`workload.py`). A size is captured when a case first wants it, and a timed run that captured anything is repeated.
`--budget` skips the cases that would take longer than what is left of so many seconds, and says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from bench import decode_profile, scorecard
from bench.fresh_start import start_in_new_process
from bench.measured_llm import MeasuredLLM
from bench.scorecard import CELLS, MODELS, Case

SHORT, LONG = 4096, 9216  # tokens of the longest context: of the peers' runs of the short and of the long workloads
ENGINE_SECONDS = 6.0  # to build an engine and to run its first step
Line = dict[str, Any]


@dataclass(kw_only=True)  # mutable: it counts seconds down and writes lines
class Run:
    """Where lines go, and how many seconds are left."""

    budget_s: float | None = None
    out: TextIO | None = None
    started_s: float = field(default_factory=time.perf_counter)

    def write(self, line: Line, text: str | None = None) -> None:
        """The line, to the screen and to the file; a text takes its place on the screen."""
        print(text or json.dumps(line), flush=True)
        if self.out is not None:
            print(json.dumps(line), file=self.out, flush=True)

    def has_room(self, model: str, case: Case, extra_s: float = 0.0) -> bool:
        """Whether the budget has room for a case; where it has not, a line says so."""
        needed_s = case.seconds * MODELS[model].relative_cost + extra_s
        left_s = float("inf") if self.budget_s is None else self.budget_s - (time.perf_counter() - self.started_s)
        if needed_s > left_s:
            told = f"takes about {needed_s:.0f} s, and {left_s:.0f} s of the budget are left"
            self.write({"model": model, "cell": case.cell, "case": case.name, "skipped": told})
        return needed_s <= left_s


def decode(llm: MeasuredLLM, case: Case) -> Line:
    return llm.decode_ms(case.batch, case.prompt_tokens, rounds=1 if case.batch * case.prompt_tokens > 1 << 19 else 3)


def memory(llm: MeasuredLLM, case: Case) -> Line:
    """The tokens that KV memory has room for; or what stays allocated when the model is closed, nothing collected."""
    if case.unit == "tokens":
        fits = llm.llm.engine.worker.kv.plan.capacity(8192)
        return {"measured": float(fits.num_tokens), "floor": float(fits.bound_tokens)}
    llm.close()
    return {"measured": torch.cuda.memory_allocated() / 2**30}


MEASURE: dict[str, Callable[[MeasuredLLM, Case], Line]] = {
    "decode": decode,
    "context": decode,
    "prefill": lambda llm, case: llm.prefill_ms(case.batch, case.prompt_tokens),
    "mixed": lambda llm, case: llm.mixed_tokens_per_s(),
    "workload_a": lambda llm, case: llm.workload_a_tokens_per_s(case.name),
    "host": lambda llm, case: llm.host_us(case.batch, changes=case.name.startswith("changed")),
    "memory": memory,
}
"""How a number is taken from an engine, by cell."""


def measure_engine(run: Run, model: str, cases: Sequence[Case], max_model_len: int) -> None:
    """All cases that share an engine."""
    first = next((case for case in cases if run.has_room(model, case, ENGINE_SECONDS)), None)
    if first is None:
        return
    llm = MeasuredLLM(MODELS[model].path, max_model_len)
    for case in cases[cases.index(first) :]:
        if case is first or run.has_room(model, case):
            run.write(measured_line(model, case, llm))
    llm.close()
    del llm
    free_memory()


def measured_line(model: str, case: Case, llm: MeasuredLLM) -> Line:
    """A number, or what went wrong: a case that fails must not take the others with it."""
    try:
        return scorecard.line(model, case, **MEASURE[case.cell](llm, case))
    except Exception as error:  # noqa: BLE001
        return {"model": model, "cell": case.cell, "case": case.name, "error": f"{type(error).__name__}: {error}"}


def free_memory() -> None:
    """What the last engine left, so that the next one finds an empty device."""
    gc.collect()
    torch.cuda.empty_cache()


def measure_starts(run: Run, model: str, cases: Sequence[Case]) -> None:
    """Starts in processes of their own. The warm one finds the modules and kernels that the cold one compiled."""
    with tempfile.TemporaryDirectory(prefix="compiled-") as caches:
        for name in ("cold", "warm"):
            wanted = [case for case in cases if case.name == name and run.has_room(model, case)]
            if wanted:
                captures = any(case.cell == "capture" for case in wanted)
                found = start_in_new_process(MODELS[model].path, Path(caches), captures=captures)
                for case in wanted:
                    run.write(scorecard.line(model, case, **found[case.cell]))


def profile(run: Run, model: str, batches: Iterable[int], prompt_tokens: int) -> None:
    """Microseconds of a decode step, kernel by kernel."""
    llm = MeasuredLLM(MODELS[model].path, LONG if prompt_tokens > SHORT // 2 else SHORT)
    for batch in batches:
        found = decode_profile.of_decode_step(llm.llm.engine, batch, prompt_tokens)
        facts = {"model": model, "cell": "profile", "case": f"batch {batch}", "prompt_tokens": prompt_tokens}
        run.write(facts | found, decode_profile.table(facts | found))
    llm.close()
    del llm
    free_memory()


def measure(run: Run, model: str, cells: Sequence[str]) -> None:
    wanted = [case for name, cases in CELLS.items() if name in cells for case in cases]
    in_fresh = [case for case in wanted if case.cell in ("start", "capture")]
    long = [case for case in wanted if case.cell == "context"]
    measure_engine(run, model, [case for case in wanted if case not in (*in_fresh, *long)], SHORT)
    measure_engine(run, model, long, LONG)
    measure_starts(run, model, in_fresh)


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Reads a list like `decode,mixed` of known names; argparse shows the message."""
    allowed = list(known)

    def read(text: str) -> list[str]:
        found = text.split(",")
        wrong = [name for name in found if name not in allowed]
        if wrong:
            raise argparse.ArgumentTypeError(f"found {', '.join(wrong)}; wanted some of {','.join(allowed)}")
        return found

    return read


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names(MODELS), default=list(MODELS), help=f"some of {','.join(MODELS)}")
    parser.add_argument("--cells", type=names(CELLS), default=list(CELLS), help=f"some of {','.join(CELLS)}")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="skip the cases that would take longer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the lines to this file too")
    parser.add_argument("--profile", action="store_true", help="microseconds of each kernel of a decode step instead")
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 128])
    parser.add_argument("--prompt-tokens", type=int, default=128, help="of the requests that are profiled [128]")
    return parser.parse_args(arguments)


def main() -> None:
    args = options()
    with args.json.open("a") if args.json else nullcontext() as out:
        run = Run(budget_s=args.budget, out=out)
        run.write({"cell": "device", "name": torch.cuda.get_device_name(), "torch": torch.__version__})
        for model in args.models:
            if args.profile:
                profile(run, model, args.batches, args.prompt_tokens)
            else:
                measure(run, model, args.cells)


if __name__ == "__main__":
    main()
