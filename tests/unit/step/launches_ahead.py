"""Prints the kernels that a new worker compiles and those that its steps launch: `python launches_ahead.py CONFIG`. And
what torch imported to tell shapes.

CONFIG is a model's config.json, as text. There is no GPU: the worker is built of shapes, and launches are noted. With
`--compile` the kernels are compiled for Hopper, and nothing is printed. With `--batch-invariant` sums have fixed
orders; with `--rank` the worker is the second of two ranks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime.jit import JITFunction

from playhead.kernels import rehearsal
from playhead.kernels.rehearsal import Rehearsal
from playhead.kernels.triton import compile_ahead
from playhead.kv.plan import KVLimits
from playhead.layers.shard import WHOLE, Shard
from playhead.sampling_params import SamplingKind
from playhead.step.worker import WorkerConfig
from playhead.testing.gpu_tensors import GPU, without_pinned_memory
from playhead.types import TPMode
from tests.steps_without_a_gpu import pretend_a_gpu, run_steps, specialized, worker_of

SLOW_IMPORT = "torch.fx.experimental.symbolic_shapes"  # sympy behind it: one to two seconds of a start
LIMITS = KVLimits(max_context_tokens=4096, max_running=256, chunk_tokens=900)  # a server's usual ones but for prompts


@contextmanager
def noting(launched: set[tuple[str, ...]]) -> Iterator[None]:
    """In here a launch is noted by its kernel's key, and does nothing."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        specialization, options = specialized(self, args, kwargs)
        launched.add((self.fn.__name__, str(specialization), str(options)))

    with patch.object(JITFunction, "run", run):
        yield


@contextmanager
def noting_imports(imported: list[str]) -> Iterator[None]:
    """In here the slow import is noted, although tests have it already."""
    known = sys.modules.pop(SLOW_IMPORT)
    try:
        yield
        imported += [SLOW_IMPORT] if SLOW_IMPORT in sys.modules else []
    finally:
        sys.modules[SLOW_IMPORT] = known


@contextmanager
def noting_ahead(launched: set[tuple[str, ...]], imported: list[str]) -> Iterator[None]:
    with noting(launched), noting_imports(imported):
        yield


def main(config: dict[str, Any], options: list[str]) -> None:
    pretend_a_gpu()
    ahead: set[tuple[str, ...]] = set()
    launched: set[tuple[str, ...]] = set()
    imported: list[str] = []
    compiles = "--compile" in options
    shard = Shard(rank=1, num_ranks=2, mode=TPMode.FAST, is_grouped=True) if "--rank" in options else WHOLE
    worker_config = WorkerConfig(kv_memory_bytes=1 << 34, limits=LIMITS, batch_invariant="--batch-invariant" in options)
    if not compiles:
        compile_ahead.compiling_ahead = lambda: noting_ahead(ahead, imported)
    with Rehearsal(GPU), without_pinned_memory(), torch.no_grad():
        made = worker_of(config, worker_config, shard)
        if compiles:
            return
        rehearsal.signature = lambda value: object()  # every op runs, whatever ran before
        with noting(launched):
            for runner in made.usual_runners:
                run_steps(made, runner, runner.dispatcher.buckets, (SamplingKind.GREEDY, SamplingKind.DRAWN))
    print(json.dumps({"ahead": sorted(ahead), "launched": sorted(launched), "imported": imported}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
