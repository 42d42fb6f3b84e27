"""Kernels compiled as their launch functions would launch them, without a GPU."""

from __future__ import annotations

import torch
import triton

from playhead.testing.launched_kernels import HOPPER, launched


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


def indices(*shape):
    return meta(*shape, dtype=torch.int32)


def compiled(kernel, launch):
    """The kernel as `launch` would launch it, its options, and how many programs there would be."""
    found = launched(kernel, launch)
    return triton.compile(found.source, target=HOPPER, options=found.options), found.options, found.num_programs


def compiled_beside(other, kernel, launch):
    """The kernel as `launch` would launch it, which launches another one too."""
    other.run = lambda *args, **kwargs: None
    try:
        return compiled(kernel, launch)
    finally:
        del other.run
