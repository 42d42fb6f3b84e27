# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Programmatic dependent launch: a kernel starts while the one before it ends, and waits before it touches its data.

Every kernel that is launched with `dependent(...)` keeps two rules. `after_upstream` comes before the first load of
anything that an earlier kernel may have written, and before the first store; what is loaded earlier is weights alone.
Every program calls it: if all programs could end without it, the kernel could end before the kernel in front of it, and
the kernel behind would read too early. `after_upstream_if` lets programs without work end at once, but for the first
one. `let_downstream_start` may stand anywhere: the next kernel waits for the end of this one, wherever this one lets it
start.

Two kernels do more: the embedding and rope call `let_downstream_start` behind their own wait. So when any kernel of a
layer starts, everything before the embedding has ended: the step before, and the translation. Rope and attention load
what is settled by then before they wait: positions, locations, lengths, rows, page tables, and keys and values of
earlier tokens. Attention that follows rope reads this step's keys too, and waits for them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def after_upstream(DEPENDENT: tl.constexpr):
    """Returns when every kernel in front of this one has ended and its stores can be seen."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()


@triton.jit
def after_upstream_if(has_work, DEPENDENT: tl.constexpr):
    """`after_upstream` for programs with work. The first program of a launch waits in any case."""
    if has_work | (tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0):
        after_upstream(DEPENDENT)


@triton.jit
def let_downstream_start(DEPENDENT: tl.constexpr):
    """The next kernel may start once every program has been here."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()


def dependent(tensor: torch.Tensor) -> dict[str, Any]:
    """The launch options of a kernel that takes `DEPENDENT`, for the device that the tensor is on.

    Nothing waits in the interpreter and on GPUs older than Hopper. Tensors without a device are compiled for Hopper.
    """
    kind = tensor.device.type
    can = _can_depend(tensor.device.index) if kind == "cuda" else kind == "meta"
    return {"DEPENDENT": True, "launch_pdl": True} if can else {"DEPENDENT": False}


@cache
def _can_depend(device_index: int | None) -> bool:
    return torch.cuda.get_device_capability(device_index)[0] >= 9
