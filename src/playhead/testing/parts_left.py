"""Tiny engines that run a GPU's ops by their references, and leave attention's output in parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import playhead.attention.triton
import playhead.step.build
from playhead.kernels.splits import DecodeShape
from playhead.layers.linear import PlainLinear
from playhead.testing.mutant import swapped


@contextmanager
def as_on_a_gpu(num_left: int) -> Iterator[None]:
    """Engines that are made in here run the ops of a GPU, and one request's attention leaves so many parts."""

    def left(shape: DecodeShape, num_requests: int) -> int:
        return num_left if num_requests == 1 else 0

    with ExitStack() as stack:
        stack.enter_context(swapped(PlainLinear, "is_fused_on", lambda self, x_TI: True))
        stack.enter_context(swapped(playhead.step.build, "attention_backend", playhead.step.build.gpu_attention))
        stack.enter_context(swapped(playhead.attention.triton, "parts_left", left))
        yield
