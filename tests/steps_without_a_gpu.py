"""Steps of models on a Hopper GPU that is not there: up to the launches of their kernels.

Must run without TRITON_INTERPRET: interpreted kernels are not launched through Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from triton.runtime import driver

from playhead.graph import staging
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.breaks import InlineScope
from playhead.graph.runner import GraphRunner
from playhead.kernels.rehearsal import Shape
from playhead.layers.parallel import weight_format
from playhead.layers.shard import WHOLE, Shard
from playhead.models.build import spec_from_config
from playhead.models.decoder import Decoder
from playhead.models.spec import StoredAs
from playhead.sampling_params import SamplingKind
from playhead.step import build, worker
from playhead.step.build import build_worker
from playhead.step.worker import HostStopwatch, Worker, WorkerConfig
from playhead.testing.gpu_tensors import GPU, WithoutDriver
from tests.hopper_driver import Hopper


def specialized(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """What a launch's arguments are to the compiler, each told apart as far as it does, and its options."""
    *_, binder = kernel.device_caches[0]
    _, specialization, options = binder(*args, debug=False, instrumentation_mode="", **kwargs)
    return specialization, options


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


def worker_of(config: dict[str, Any], limits: WorkerConfig, shard: Shard = WHOLE) -> Worker:
    """A worker of a model's config.json, made of shapes. Call it in a `Rehearsal`."""
    weights = weight_format(StoredAs.PLAIN, dtype=torch.bfloat16, device=GPU, shard=shard)
    return build_worker(Decoder(spec_from_config(config), weights), limits)


def run_steps(made: Worker, runner: GraphRunner, sizes: Iterable[int], kinds: Sequence[SamplingKind]) -> None:
    """Steps of these sizes. Behind those over tokens a request's token is chosen in each of these ways."""
    for size in sizes:
        ctx = runner.placeholder_context(size)
        live = runner.step.plan({}, ctx, runner.views(ctx))
        output = runner.live_rows(runner.step.fn(runner.graph_inputs(ctx), InlineScope(live)), ctx)
        if runner is made.prefill:
            for kind in kinds:
                made.forward.sample_last(output, made.sampling_inputs(1), kind)
