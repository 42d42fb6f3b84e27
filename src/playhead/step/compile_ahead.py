"""Compiles the kernels of all usual steps at once, before the first step would compile them one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager

import torch

from playhead.graph.breaks import InlineScope
from playhead.graph.runner import GraphRunner
from playhead.kernels.rehearsal import Rehearsal
from playhead.logs import event
from playhead.step.worker import Worker

LOG = logging.getLogger(__name__)


def compile_ahead(worker: Worker, compiling: Callable[[], AbstractContextManager[None]]) -> None:
    """Have `compiling` compile what steps of prefill, greedy and drawing decode will launch.

    Steps are rehearsed in the sizes that are captured, with two layers of each kind. A kernel that no rehearsal
    launches is compiled when a step first launches it. So is everything if a step cannot be rehearsed.
    """
    rehearsal = Rehearsal(worker.device)
    try:
        with compiling(), worker.model.decoder.few_layers_of_each_kind():
            for runner in worker.usual_runners:
                for size in sizes_to_rehearse(worker, runner):
                    rehearse(runner, size, rehearsal)
    except RuntimeError as error:  # torch cannot tell the shape of some op's result
        event(LOG, logging.WARNING, "kernels are compiled one by one", reason=str(error))


def rehearse(runner: GraphRunner, size: int, rehearsal: Rehearsal) -> None:
    """A step of this size, with launches and without work."""
    # Views and plans are kept for the steps to come, so they are made of real tensors.
    ctx = runner.placeholder_context(size)
    live = runner.step.plan(runner.step.placeholder(ctx), ctx, runner.views(ctx))
    inputs = runner.graph_inputs(ctx)
    with rehearsal, torch.no_grad():
        runner.step.fn(inputs, InlineScope(live))


def sizes_to_rehearse(worker: Worker, runner: GraphRunner) -> list[int]:
    """Those of a runner's sizes that differ in what they launch."""
    is_decode = runner.step.axis == "bs"
    return telling_sizes(runner.dispatcher.buckets, worker.model.backend.kind_of_step if is_decode else None)


def telling_sizes(sizes: Sequence[int], kind_of: Callable[[int], Hashable] | None = None) -> list[int]:
    """The sizes that differ in what they launch, largest first: (1, 2, 12, 16, 20, 24) gives 24, 16, 2, 1.

    Rules of products change at powers of two, so one size between two of them is enough, or one of each kind if sizes
    have kinds. Triton makes another kernel where 16 divides a number: small sizes have the one, large sizes the other.
    """
    told = {((size - 1).bit_length(), kind_of(size) if kind_of else None): size for size in sorted(sizes)}
    return sorted(told.values(), reverse=True)
