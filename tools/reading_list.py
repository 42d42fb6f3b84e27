"""The files that one decode step runs through: what somebody must read to follow a token from request to text.

A file counts if at least three of its lines run in a few decode steps of the embedded model, once as replays and once
eagerly, because a replay does not run the Python of the forward. Bodies of kernels (`kernels/cpu`, `kernels/triton`)
are left out: the declaration of an op says what the op computes.

    python tools/reading_list.py
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import playhead
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams

SOURCE = Path(playhead.__file__).parent
BODIES = ("kernels/cpu/", "kernels/triton/")
MIN_LINES_RUN = 3
NUM_STEPS_BEFORE = 8
NUM_STEPS = 4


def lines_run(graph_mode: str) -> dict[str, set[int]]:
    """The lines that decode steps run, by file, once everything is captured."""
    found: dict[str, set[int]] = defaultdict(set)

    def note(frame: FrameType, _: str, __: object) -> Any:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(SOURCE):
            return None
        found[path.relative_to(SOURCE).as_posix()].add(frame.f_lineno)
        return note

    with LLM("embedded", graph_mode=graph_mode, max_num_seqs=2) as llm:
        engine = llm.engine
        params = SamplingParams(temperature=0, max_tokens=NUM_STEPS_BEFORE + NUM_STEPS + 4, ignore_eos=True)
        engine.add_request("a", "It is a truth", params)
        for _ in range(NUM_STEPS_BEFORE):
            engine.step()
        sys.settrace(note)
        try:
            for _ in range(NUM_STEPS):
                engine.step()
        finally:
            sys.settrace(None)
    return found


def main() -> None:
    replayed, eager = lines_run("breakable"), lines_run("eager")
    num_run = {name: len(replayed[name] | eager[name]) for name in {*replayed, *eager} if not name.startswith(BODIES)}
    names = sorted(name for name, count in num_run.items() if count >= MIN_LINES_RUN)
    num_lines = {name: len((SOURCE / name).read_text().splitlines()) for name in names}
    for name in names:
        print(f"{num_run[name]:4} of {num_lines[name]:4} lines run  {name}")
    print(f"{sum(num_run.values())} lines run; {len(names)} files have {sum(num_lines.values())} lines")


if __name__ == "__main__":
    main()
