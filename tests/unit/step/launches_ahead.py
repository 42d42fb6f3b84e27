"""Prints the kernels that a new worker compiles and those that its steps launch: `python launches_ahead.py CONFIG`. And
what torch imported to tell shapes.

CONFIG is a model's config.json, as text. There is no GPU: the worker is built of shapes, Triton is told that the device
is a Hopper one, and launches are noted. With `--compile` the kernels are compiled for Hopper, and nothing is printed.
With `--batch-invariant` sums have fixed orders; with `--rank` the worker is the second of two ranks.
Must run without TRITON_INTERPRET: interpreted kernels are not launched through Triton.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from playhead.graph import staging
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.breaks import InlineScope
from playhead.kernels import rehearsal
from playhead.kernels.rehearsal import Rehearsal, Shape
from playhead.kernels.triton import compile_ahead
from playhead.kv.plan import KVLimits
from playhead.layers.parallel import weight_format
from playhead.layers.shard import WHOLE, Shard
from playhead.models.build import spec_from_config
from playhead.models.decoder import Decoder
from playhead.models.spec import StoredAs
from playhead.sampling_params import SamplingKind
from playhead.step import build, worker
from playhead.step.build import build_worker
from playhead.step.worker import HostStopwatch, WorkerConfig
from playhead.testing.gpu_tensors import GPU, WithoutDriver, without_pinned_memory
from playhead.types import TPMode
from tests.hopper_driver import Hopper

SLOW_IMPORT = "torch.fx.experimental.symbolic_shapes"  # sympy behind it: one to two seconds of a start
LIMITS = KVLimits(max_context_tokens=1024, max_running=160, chunk_tokens=900)


class NoCopies(staging.HostPort):
    """A port to memory that is not there."""

    def channel(self, dst: torch.Tensor, src: torch.Tensor) -> Any:
        return None


def pretend_a_gpu() -> None:
    """What a worker of CUDA tensors asks of a machine, answered without one."""
    driver.set_active(Hopper())
    torch._C._ensureCUDADeviceGuardSet()
    torch.cuda._lazy_init = lambda: None
    torch.cuda.get_device_capability = lambda index: (9, 0)
    staging.CudaPort = NoCopies
    build.CudaBackend = lambda device: EagerBackend()
    worker.stopwatches = lambda device, max_rows: HostStopwatch
    for name in ("__getitem__", "__setitem__", "copy_", "contiguous"):
        setattr(Shape, name, without_driver(getattr(torch.Tensor, name)))


def without_driver(method: Any) -> Any:
    """A method of tensors whose own way wants a driver."""
    return lambda *args, **kwargs: WithoutDriver().__torch_function__(method, (), args, kwargs)


@contextmanager
def noting(launched: set[tuple[str, ...]]) -> Iterator[None]:
    """In here a launch is noted by its kernel's key, and does nothing."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        *_, binder = self.device_caches[0]
        _, specialization, options = binder(*args, debug=False, instrumentation_mode="", **kwargs)
        launched.add((self.fn.__name__, str(specialization), str(options)))

    launch, JITFunction.run = JITFunction.run, run
    try:
        yield
    finally:
        JITFunction.run = launch


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
    worker_config = WorkerConfig(kv_memory_bytes=1 << 28, limits=LIMITS, batch_invariant="--batch-invariant" in options)
    if not compiles:
        compile_ahead.compiling_ahead = lambda: noting_ahead(ahead, imported)
    with Rehearsal(GPU), without_pinned_memory(), torch.no_grad():
        weights = weight_format(StoredAs.PLAIN, dtype=torch.bfloat16, device=GPU, shard=shard)
        made = build_worker(Decoder(spec_from_config(config), weights), worker_config)
        if compiles:
            return
        rehearsal.signature = lambda value: object()  # every op runs, whatever ran before
        with noting(launched):
            for runner in made.usual_runners:
                for size in runner.dispatcher.buckets:
                    ctx = runner.placeholder_context(size)
                    live = runner.step.plan({}, ctx, runner.views(ctx))
                    output = runner.step.fn(runner.graph_inputs(ctx), InlineScope(live))
                    if runner is made.prefill:
                        for kind in (SamplingKind.GREEDY, SamplingKind.DRAWN):
                            made.forward.sample_last(output, made.sampling_inputs(1), kind)
    print(json.dumps({"ahead": sorted(ahead), "launched": sorted(launched), "imported": imported}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
