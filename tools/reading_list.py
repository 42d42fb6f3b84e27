"""The files that one decode step runs through: what somebody must read to follow a token from request to text.

Counts the files of src/playhead in which a function is called during a steady decode step of the embedded model, once
as a replay and once eagerly, because a replay does not run the Python of the forward. Bodies of kernels
(`kernels/cpu`, `kernels/triton`) are left out: the declaration of an op says what it computes.

    python tools/reading_list.py            the list, with lines
    python tools/reading_list.py --check    exit 1 if it is longer than the limits below
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import playhead
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams

MAX_FILES = 30
MAX_LINES = 5_500
SOURCE = Path(playhead.__file__).parent
BODIES = ("kernels/cpu/", "kernels/triton/")
NUM_STEPS_BEFORE = 8
NUM_STEPS = 4


def files_of_a_step(graph_mode: str) -> set[str]:
    """Names of the files whose functions a few decode steps call, once everything is captured."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            found.add(path.relative_to(SOURCE).as_posix())

    with LLM("embedded", graph_mode=graph_mode, max_num_seqs=2) as llm:
        params = SamplingParams(temperature=0, max_tokens=NUM_STEPS_BEFORE + NUM_STEPS + 4, ignore_eos=True)
        llm.engine.add_request("a", "It is a truth", params)
        for _ in range(NUM_STEPS_BEFORE):
            llm.engine.step()
        sys.setprofile(note)
        try:
            for _ in range(NUM_STEPS):
                llm.engine.step()
        finally:
            sys.setprofile(None)
    return {name for name in found if not name.startswith(BODIES)}


def main() -> int:
    names = sorted(files_of_a_step("breakable") | files_of_a_step("eager"))
    lines = {name: len((SOURCE / name).read_text().splitlines()) for name in names}
    for name, count in lines.items():
        print(f"{count:6}  {name}")
    print(f"{sum(lines.values()):6}  lines in {len(lines)} files; at most {MAX_LINES} in {MAX_FILES}")
    return int("--check" in sys.argv and (len(lines) > MAX_FILES or sum(lines.values()) > MAX_LINES))


if __name__ == "__main__":
    sys.exit(main())
