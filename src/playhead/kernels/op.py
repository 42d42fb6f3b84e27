"""How a function becomes a torch op: one name that tapes, compilers and CUDA graphs see, one body per device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar, cast

import numpy as np
import torch

# torch imports it in the middle of the first call of an op, and a cycle in there keeps all frames on the stack: engine,
# worker and KV memory would outlive an LLM that is dropped, until the garbage collector runs.
import torch._dynamo

from playhead.bound_ops import Work, register_bind
from playhead.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

NAMESPACE = "playhead"


def register_op(
    name: str,
    *,
    reference: Callable[P, R],
    cuda: Callable[..., R],
    fake: Callable[..., R],
    mutates: tuple[str, ...] = (),
    cpu: Callable[P, R] | None = None,
    inline: bool = False,
) -> Callable[P, R]:
    """The op `playhead::name`, callable like its reference: on CPU tensors it runs that, on CUDA tensors `cuda`.

    `cpu` is for a reference that is too slow to run: it takes the reference's place, and tests hold it to it. With
    `inline` a tape records the torch ops in it instead of the op: their replay makes no memory and repeats no views.

    The schema comes from the reference's annotations; `mutates` names the arguments it writes, and no op writes
    anything else. `fake` gives outputs of the right shape, for tracing. Schemas are flat, so the ops take more
    arguments than other functions here: the dispatcher knows no dataclasses.

    `torch.library.custom_op` would do the same at 25 us a call where this takes 2: it wraps every op for autograd,
    which an inference engine never uses.
    """
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, torch.library.infer_schema(reference, mutates_args=mutates))
    torch.library.impl(qualified, "cpu", cpu or reference)
    if inline:
        # Autograd's place in the dispatcher is before recorders' and tracers', which then see what it calls.
        torch.library.impl(qualified, "AutogradCPU", cpu or reference)
    torch.library.impl(qualified, "cuda", cuda)
    torch.library.register_fake(qualified, fake)
    # torch hands out its ops by attribute; this is the one place that asks for one by a name it has as a string.
    packet = getattr(getattr(torch.ops, NAMESPACE), name)
    return cast(Callable[P, R], packet.default)


def register_bound_op(
    name: str,
    *,
    reference: Callable[P, None],
    bind: Callable[P, Work],
    cuda: Callable[..., None],
    mutates: tuple[str, ...],
) -> Callable[P, None]:
    """An op whose CPU body is `bind(...)()`, which a tape calls without torch; tests hold it to the reference."""

    def cpu(*args: P.args, **kwargs: P.kwargs) -> None:
        # Rows that nobody reads hold anything, and numpy would warn about them.
        with np.errstate(all="ignore"):
            bind(*args, **kwargs)()

    op = register_op(name, reference=reference, cpu=cpu, cuda=cuda, fake=no_output, mutates=mutates)
    register_bind(op, bind)
    return op


def no_cuda(*_: object) -> NoReturn:
    """The CUDA body of an op that is a part of another one's CPU body."""
    raise ConfigError("a CPU's op: found CUDA tensors; wanted the CPU's. Call the op it is a part of")


def no_output(*_: object) -> None:
    """The fake of an op that only writes into its arguments."""
