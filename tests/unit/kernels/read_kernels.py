"""Has Triton read every kernel that steps of models launch: `python read_kernels.py NAME,NAME [OPTION ...]`.

Names are those of `public_models.py`. The compiler refuses code that the interpreter runs, and what it refuses depends
on what a model has. So each kernel is read with the arguments that it is launched with, as far as Triton's own
representation. Of kernels that differ only in constants above 1, or in what is no matter to their code, one is read.
Grids are checked too.

With `--whole` all are compiled for Hopper instead, and what they take is compared with what there is. The other options
are ways to run a model: `--batch-invariant`, `--rank`, `--rank-exact`. Must run without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.runtime.jit import JITFunction

from playhead.engine.config import EngineConfig
from playhead.engine.ranks import check_ranks
from playhead.errors import ConfigError
from playhead.kernels import rehearsal
from playhead.kernels.rehearsal import Rehearsal
from playhead.kv.plan import KVLimits
from playhead.layers.shard import WHOLE, Shard
from playhead.models.build import spec_from_config
from playhead.sampling_params import SamplingKind
from playhead.step import build
from playhead.step.compile_ahead import sizes_to_rehearse
from playhead.step.worker import Worker, WorkerConfig
from playhead.testing.gpu_tensors import GPU, without_pinned_memory
from playhead.testing.launched_kernels import read
from playhead.types import TPMode
from tests.quick_triton import describe_each_shape_once, tell_types_apart_at_once
from tests.steps_without_a_gpu import pretend_a_gpu, run_steps, specialized, worker_of
from tests.unit.kernels.public_models import PUBLIC_MODELS
from tests.unit.kernels.read_compiled import usage

CONTEXTS = (8192, 65536)  # layers that see more than 16,384 keys have a rope kernel in decode steps, others have none
SM_REGISTERS, BLOCK_SHARED_BYTES, SPILLED_BYTES = 65536, 227 * 1024, 128
MOST_PROGRAMS = 65_535  # along all dimensions of a grid but the first
FOR_THE_BACK_END = frozenset({"num_warps", "num_stages", "maxnreg"})  # Triton's code cannot see them; Gluon's does
RANKS = {"--rank": TPMode.FAST, "--rank-exact": TPMode.EXACT}


class Reader:
    """Reads each kernel once for what is told of its arguments, and notes what would be refused."""

    def __init__(self, told_by: Callable[[Any], Any], *, is_whole: bool) -> None:
        self.told_by, self.is_whole = told_by, is_whole
        self.where = ""
        self.seen: set[tuple[str, ...]] = set()
        self.refused: dict[str, str] = {}
        self.spilled: dict[str, int] = {}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """In here a launch has its kernel read and does nothing."""

        def compile_kernel(kernel: Any, _key: str, signature: Any, _device: int, constants: Any, *rest: Any) -> None:
            options, attributes, _ = rest
            options = replace(options, sanitize_overflow=False)  # ops for an assert that is off
            source = kernel.ASTSource(kernel, signature, constants, attributes)
            try:
                read(source, options.__dict__)
            except Exception as error:  # noqa: BLE001  whatever the compiler raises, it refuses the kernel
                self.refused[f"{kernel.fn.__name__}, {self.where}"] = str(error)[-500:]

        launch = self._launch(JITFunction.run)
        with patch.object(JITFunction, "_do_compile", compile_kernel), patch.object(JITFunction, "run", launch):
            yield

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """In here a launch has its kernel compiled."""
        made: list[tuple[str, Any]] = []
        launch = self._launch(JITFunction.run)

        def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
            if (found := launch(kernel, *args, **kwargs)) is not None:
                made.append((f"{kernel.fn.__name__}, {self.where}", found))

        pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        with pool, patch.object(JITFunction, "run", run), triton.AsyncCompileMode(pool, ignore_errors=True):
            yield
        for name, found in made:
            self._note(name, found)

    def _launch(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        def run(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> Any:
            if min(grid) < 1 or max(grid[1:], default=1) > MOST_PROGRAMS:
                self.refused[f"{kernel.fn.__name__}, {self.where}"] = f"a grid of {grid}"
            specialization, options = specialized(kernel, args, kwargs)
            if not (self.is_whole or kernel.is_gluon()):
                options = {name: value for name, value in options.items() if name not in FOR_THE_BACK_END}
            key = kernel.fn.__name__, str([self.told_by(one) for one in specialization]), str(options)
            if key in self.seen:
                return None
            self.seen.add(key)
            return launch(kernel, *args, grid=grid, warmup=True, **kwargs)

        return run

    def _note(self, name: str, found: Any) -> None:
        try:
            binary = found.result() if hasattr(found, "result") else found
            registers, stack_bytes = usage(binary)
        except Exception as error:  # noqa: BLE001  whatever the compiler raises, it refuses the kernel
            self.refused[name] = str(error)[-500:]
            return
        if binary.metadata.shared > BLOCK_SHARED_BYTES or 32 * binary.metadata.num_warps * registers > SM_REGISTERS:
            self.refused[name] = f"{binary.metadata.shared} bytes of shared memory, {registers} registers"
        if stack_bytes > SPILLED_BYTES:
            self.spilled[name] = stack_bytes


def kind_of(argument: tuple[str, Any]) -> tuple[str, Any]:
    """What the compiler knows of an argument; of a constant whether it is 0, 1 or more."""
    name, value = argument
    return name, min(value, 2) if type(value) is int else value


def main(names: list[str], options: list[str]) -> None:
    pretend_a_gpu()
    is_whole = "--whole" in options
    reader = Reader(str if is_whole else kind_of, is_whole=is_whole)
    if not is_whole:
        describe_each_shape_once()
        tell_types_apart_at_once()
    shards = {name: shard for name in names if (shard := shard_of(PUBLIC_MODELS[name], options)) is not None}
    contexts = CONTEXTS if is_whole else CONTEXTS[:1]
    working = reader.compiling if is_whole else reader.reading
    build.compile_ahead = lambda *_: None  # all kernels come from the steps below
    with without_pinned_memory(), torch.no_grad(), working():
        for name, shard in shards.items():
            for max_context in contexts:
                with Rehearsal(GPU):
                    made = worker_of(PUBLIC_MODELS[name], sizes_of(max_context, options), shard)
                    rehearsal.signature = lambda value: object()  # every op runs, whatever ran before
                    run_all(made, reader, f"{name} of {max_context} tokens", is_whole=is_whole)
    print(json.dumps({"num_kernels": len(reader.seen), "refused": reader.refused, "spilled": reader.spilled}))


def shard_of(config: dict[str, Any], options: list[str]) -> Shard | None:
    """All of a model, or what the second of two ranks has; None where the engine refuses to divide it."""
    mode = next((mode for option, mode in RANKS.items() if option in options), None)
    if mode is None:
        return WHOLE
    try:
        check_ranks(EngineConfig(tensor_parallel_size=2, tp_mode=mode), spec_from_config(config), torch.device("cpu"))
    except ConfigError:
        return None
    return Shard(rank=1, num_ranks=2, mode=mode, is_grouped=True)


def sizes_of(max_context: int, options: list[str]) -> WorkerConfig:
    """A server's usual sizes."""
    limits = KVLimits(max_context_tokens=max_context, max_running=256, chunk_tokens=8448)
    return WorkerConfig(kv_memory_bytes=1 << 36, limits=limits, batch_invariant="--batch-invariant" in options)


def run_all(made: Worker, reader: Reader, model: str, *, is_whole: bool) -> None:
    """Steps of every sort and kind of sampling, in the sizes that differ in what they launch, or in three of them."""
    for runner in (made.prefill, *map(made.decoder_for, SamplingKind)):
        sizes = sizes_to_rehearse(made, runner)
        for size in sizes if is_whole else sizes[:: len(sizes) // 2]:
            reader.where = f"{model}, {runner.step.name} of {size}"
            run_steps(made, runner, (size,), tuple(SamplingKind))


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2:])
