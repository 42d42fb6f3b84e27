"""A start of the engine in a process of its own: `python -m bench.fresh_start bench/models/gemma3-1b [--capture]`.

Prints, as one line of JSON, the seconds from the process's start until the model is there and until its first token,
and what capturing all graphs takes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import workload
from bench.measured_llm import GREEDY, MeasuredLLM
from playhead.graph.spec import CaptureReport

MAX_MODEL_LEN = 4096


def installed(caches: Path) -> dict[str, str]:
    """This environment, but Python and Triton keep what they compile, and look for it, in `caches`.

    Where PYTHONDONTWRITEBYTECODE is set and torch has no compiled modules, each process compiles 1,400 of them anew.
    """
    kept = {"PYTHONPYCACHEPREFIX": str(caches / "modules"), "TRITON_CACHE_DIR": str(caches / "kernels")}
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | kept


def start_in_new_process(model: Path, caches: Path, *, captures: bool) -> dict[str, dict[str, Any]]:
    """What a start measured, by cell. What it compiles is kept in `caches`, where the next start finds it."""
    found = subprocess.run(
        [sys.executable, "-m", "bench.fresh_start", str(model), *(["--capture"] if captures else [])],
        env=installed(caches),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(found.stdout.splitlines()[-1]))


def start(model: Path) -> tuple[MeasuredLLM, dict[str, Any]]:
    """An engine that has given its first token, and the seconds since this process was started."""
    llm = MeasuredLLM(model, MAX_MODEL_LEN)
    ready_s = workload.since_start()
    llm.llm.generate(workload.prompts("start", [128]), replace(GREEDY, max_tokens=1))
    return llm, {"measured": workload.since_start(), "ready_s": ready_s}


def capture(llm: MeasuredLLM) -> dict[str, Any]:
    """All graphs, with what they take."""
    reports: list[CaptureReport] = []
    started_s = time.perf_counter()
    llm.llm.capture_graphs(reports.append)
    seconds = time.perf_counter() - started_s
    return {
        "measured": seconds,
        "graphs": len(reports),
        "mib": sum(report.num_bytes for report in reports) / 2**20,
        "largest_nodes": max(report.num_nodes for report in reports),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a directory with a config.json")
    parser.add_argument("--capture", action="store_true", help="capture all graphs too")
    args = parser.parse_args()
    llm, found = start(args.model)
    print(json.dumps({"start": found, "capture": capture(llm) if args.capture else None}))


if __name__ == "__main__":
    main()
