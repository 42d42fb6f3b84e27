"""Parts that attention leaves to the product behind it, in whole decode steps: `python -m bench.parts llama3.2-1b`.

Each number of parts gets an engine of its own, in this process, which decodes a prompt of 128 tokens; 0 is attention
that merges, and the rule's number comes first. The figure is that of `bench.tiles`. One over 8,000 tokens:
`python -m bench.h200 --models gemma3-1b --cells context`.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import playhead.attention.triton
from bench.measure import emit
from bench.scorecard import MODELS
from bench.tiles import DecodeSteps
from playhead.kernels.splits import DecodeShape


def leaving(num_left: int) -> AbstractContextManager[Any]:
    """In here layers whose reader can merge parts leave so many in steps of one request."""

    def rule(shape: DecodeShape, num_requests: int) -> int:
        return num_left if num_requests == 1 else 0

    return patch.object(playhead.attention.triton, "parts_left", rule)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--left", type=lambda text: [int(n) for n in text.split(",")], default=[0, 4, 8, 16])
    arguments = parser.parse_args()
    report(arguments.model, "as the rule says")
    for num_left in arguments.left:
        with leaving(num_left):
            report(arguments.model, num_left)


def report(model: str, left: int | str) -> None:
    """Memory for parts is made with the engine, so a size cannot be captured anew with more of them."""
    with DecodeSteps(model) as steps:
        found = steps.us(1)
    emit("parts", model=model, left=left, us=found.mean, thirds=found.thirds)


if __name__ == "__main__":
    main()
