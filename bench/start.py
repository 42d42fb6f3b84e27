"""What `playhead generate` on the embedded model takes from the shell to the shell, by parts; and `playhead --help`.

python -m bench.start --runs 5

Each run is a process of its own. Parts are medians over the runs, so they need not add up to the last digit. Seconds
mean something on an idle machine only; "of a core" is the time that the process had one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

PROMPT, NUM_TOKENS = "The whale", "30"

CHILD = """
import sys, time
begun = time.perf_counter()
import torch
with_torch = time.perf_counter()
import playhead.cli.main, playhead.cli.generate
from playhead.engine import build
from playhead.graph.runner import GraphRunner
imported = time.perf_counter()
parts = {}

def timed(part, work):
    def measured(*args, **kwargs):
        start = time.perf_counter()
        try:
            return work(*args, **kwargs)
        finally:
            parts[part] = parts.get(part, 0.0) + time.perf_counter() - start
    return measured

build.worker_config = timed("sizes", build.worker_config)
build.load_tokenizer = timed("tokenizer", build.load_tokenizer)
build.load_weights = timed("weights", build.load_weights)
build.build_worker = timed("KV memory, graph inputs", build.build_worker)
GraphRunner.capture_bucket = timed("captures", GraphRunner.capture_bucket)
import atexit, json, os
def report():
    ended = time.perf_counter()
    rest = ended - imported - sum(parts.values())
    started = {"start of Python": begun - float(os.environ["STARTED_S"]), "import torch": with_torch - begun}
    marks = {**started, "import the rest": imported - with_torch, **parts, "flags, tokens, output": rest}
    print(json.dumps({"parts": marks, "ended_s": ended}), file=sys.stderr)
atexit.register(report)
playhead.cli.main.app(sys.argv[1:])
"""


def run(arguments: Sequence[str]) -> tuple[float, float, str]:
    """Seconds of one process, those it had a core, and what it wrote to stderr."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    # The clock is the machine's: the child's readings can be compared with these.
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"STARTED_S": repr(start)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stderr


def parts_of_a_run() -> dict[str, float]:
    """Seconds of each part of one generation."""
    start = time.perf_counter()
    *_, told = run(["-c", CHILD, "generate", PROMPT, "--max-tokens", NUM_TOKENS, "--seed", "1"])
    ended = time.perf_counter()
    record = json.loads(told.splitlines()[-1])
    whole: dict[str, float] = record["parts"]
    return whole | {"end of Python": ended - record["ended_s"], "together": ended - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    num_runs = parser.parse_args().runs
    generate = ["-m", "playhead", "generate", PROMPT, "--max-tokens", NUM_TOKENS, "--seed", "1"]
    run(generate)  # reads the files from the disk
    runs = [parts_of_a_run() for _ in range(num_runs)]
    table = Table("part", "seconds", "of a core", title=f"playhead generate {PROMPT!r} --max-tokens {NUM_TOKENS}")
    for part in runs[0]:
        table.add_row(part, f"{median(one[part] for one in runs):.2f}")
    wholes = {
        "playhead generate, not taken apart": generate,
        "playhead --help": ["-m", "playhead", "--help"],
        "playhead generate --help": ["-m", "playhead", "generate", "--help"],
        "playhead --version": ["-m", "playhead", "--version"],
    }
    table.add_section()
    for name, arguments in wholes.items():
        whole = [run(arguments) for _ in range(num_runs)]
        seconds, core_seconds = median(one[0] for one in whole), median(one[1] for one in whole)
        table.add_row(name, f"{seconds:.2f}", f"{core_seconds:.2f}")
    console = Console()
    console.print(table)
    console.print(f"{num_runs} runs each, medians; load average {os.getloadavg()[0]:.1f}", highlight=False)


if __name__ == "__main__":
    main()
