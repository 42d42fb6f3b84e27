"""What `batch_invariant` costs on one GPU: `python -m bench.batch_invariant [--models gemma3-1b] [--cells mixed]`.

The mixed workload, decode steps and prefills with and without the setting: dummy weights of the real shapes, bfloat16,
one JSON line for each number. `cost` is how much longer the same work takes with the setting.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench.measure import emit
from bench.measured_llm import MeasuredLLM
from bench.scorecard import MODELS

MAX_MODEL_LEN = 4096
SECONDS_OF: dict[str, Callable[[MeasuredLLM], float]] = {
    "mixed": lambda llm: 1.0 / llm.mixed_tokens_per_s()["measured"],
    "decode 1": lambda llm: llm.decode_ms(1, 128, rounds=1)["measured"] / 1e3,
    "decode 128": lambda llm: llm.decode_ms(128, 128, rounds=1)["measured"] / 1e3,
    "prefill 2048": lambda llm: llm.prefill_ms(1, 2048)["measured"] / 1e3,
}
"""Seconds of an output token, a step or a prompt, by cell."""


def measure(model: str, cells: list[str]) -> None:
    found: dict[tuple[str, bool], float] = {}
    for batch_invariant in (False, True):
        llm = MeasuredLLM(MODELS[model].path, MAX_MODEL_LEN, batch_invariant=batch_invariant)
        for cell in cells:
            found[cell, batch_invariant] = SECONDS_OF[cell](llm)
        llm.close()
    for cell in cells:
        without_us, with_us = found[cell, False] * 1e6, found[cell, True] * 1e6
        cost = with_us / without_us - 1.0
        emit("batch_invariant", model=model, cell=cell, without_us=without_us, with_us=with_us, cost=cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="gemma3-1b", help=f"some of {','.join(MODELS)}")
    parser.add_argument("--cells", default=",".join(SECONDS_OF), help=f"some of {','.join(SECONDS_OF)}")
    args = parser.parse_args()
    for model in args.models.split(","):
        measure(model, args.cells.split(","))


if __name__ == "__main__":
    main()
