"""A generator of hostile checkpoints, and what comes of loading them.

    python -m playhead.testing.hostile            every case; counts per kind, exit status 1 if one ended wrongly
    python -m playhead.testing.hostile --every 5  every fifth

Each case loads right or ends in a `PlayheadError`, within 2 s of CPU time and 1 GiB. `run_cases` runs each in a process
of its own, so that a hang, an abort or a panic is an outcome like any other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from playhead.testing.hostile_files import (
    config_cases,
    gemma_gguf_cases,
    generation_cases,
    gguf_cases,
    index_cases,
    safetensors_cases,
)
from playhead.testing.hostile_run import CPU_S, HostileCase, Outcome, as_record, doctor_agrees, report, run_cases
from playhead.testing.hostile_text import template_cases, tokenizer_cases

__all__ = ["HostileCase", "Outcome", "all_cases", "report", "run_cases"]


def all_cases() -> list[HostileCase]:
    """Every case, always the same ones in the same order."""
    return [
        *safetensors_cases(range(150)),
        *index_cases(range(60)),
        *config_cases(range(100)),
        *generation_cases(range(60)),
        *tokenizer_cases(range(160)),
        *template_cases(range(60)),
        *gguf_cases(range(200)),
        *gemma_gguf_cases(range(60)),
    ]


def some_cases(every: int) -> Iterator[HostileCase]:
    """Each kind's sound case, and every so-many-th of all."""
    for i, case in enumerate(all_cases()):
        if i % every == 0 or case.name == "sound":
            yield case


def main() -> int:
    parser = argparse.ArgumentParser(description="Load hostile checkpoints and count how they end.")
    parser.add_argument("--every", type=int, default=1, help="one case in so many")
    parser.add_argument("--json", type=Path, help="write all outcomes here")
    parser.add_argument("--doctor", action="store_true", help="look at each first, and compare")
    args = parser.parse_args()
    outcomes = []
    act, cpu_s = (doctor_agrees, 2 * CPU_S) if args.doctor else (None, CPU_S)
    for outcome in run_cases(some_cases(args.every), act, cpu_s=cpu_s):
        outcomes.append(outcome)
        if not outcome.is_right:
            print(f"{outcome.kind}, {outcome.name}: {outcome.verdict}\n{outcome.said}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([as_record(outcome) for outcome in outcomes]))
    print(report(outcomes))
    return 0 if all(outcome.is_right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
