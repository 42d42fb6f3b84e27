"""How a function becomes a torch op: one declaration, over its torch reference.

    @op(out=like_first, bind="cpu.norm:bind_rms_norm", cuda="triton.norm:launch_rms_norm")
    def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, unit_offset: bool, centred: bool) -> Tensor: ...

makes `playhead::rms_norm`, which is called like the function. CUDA tensors go to the launch function, CPU tensors to
the bound body, or to the reference where there is none. Tapes, compilers and CUDA graphs see the op's name and schema.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import torch
from torch._ops import OpOverload

from playhead.errors import ConfigError
from playhead.kernels.quiet import quietly

P = ParamSpec("P")
R = TypeVar("R")

# Does what one call of an op does, with the values that the call's memory has by then.
Work = Callable[[], None]
Bind = Callable[..., Work]
# A function, or 'file:function' of this package, which the first call imports.
Body = Callable[..., Any] | str

NAMESPACE = "playhead"
NUMPY_DTYPES = frozenset({torch.float32, torch.int8, torch.int32, torch.int64, torch.bool})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Op(Generic[P, R]):
    """A declared op, called like its reference.

    `bind(*args)` works out what depends on addresses and shapes, and gives the work of `overload(*args)`: a tape, which
    repeats calls, binds each once. `into` is the twin of an op that returns new memory: it writes the result into its
    first argument, `out`.
    """

    reference: Callable[P, R]
    overload: OpOverload[..., Any]
    run: Callable[P, R]
    bind: Bind | None
    into: Op[..., None] | None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.run(*args, **kwargs)


def op(
    *,
    cuda: Body | None,
    mutates: tuple[str, ...] = (),
    out: Callable[..., torch.Tensor] | None = None,
    bind: Body | None = None,
    inline: bool = False,
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Declares the function below it as an op; the function is the op's reference.

    `mutates` names the arguments that the op writes; it writes nothing else. `out(*args)` makes the memory of the
    result, for ops that return one. `cuda` runs on CUDA tensors; None refuses them. `bind(*args)` gives the CPU's work
    by numpy. The reference does calls for which it gives None, and dtypes that numpy lacks; tests hold the work to the
    reference. An op with `out` and `bind` gets the twin `name_into`, and `bind` is given the twin's arguments.

    With `inline` a tape records the torch ops of the reference instead of the op: torch redoes them without new
    memory. The schema comes from the reference's annotations and is flat, so ops take more arguments than other
    functions: torch's dispatcher knows no dataclasses. A call names every argument.
    """

    def declare(reference: Callable[P, R]) -> Op[P, R]:
        name = reference.__name__
        # Without defaults: torch does not pass trailing arguments that equal them, and a body would lack its arguments.
        schema = re.sub(r"=[^,)]+", "", torch.library.infer_schema(reference, mutates_args=mutates))
        body: Callable[..., Any] = reference
        bound = into = None
        if bind is not None and out is not None:
            into = _twin(name, schema, reference, bind)
            body = partial(_run_into, out, into.run)
        elif bind is not None:
            bound = partial(_work, _imported(bind), reference)
            body = partial(_run_bound, bound)
        launch = partial(_no_cuda, name) if cuda is None else _imported(cuda)
        overload = _define(name + schema, cpu=body, cuda=launch, fake=out, inline=inline or into is not None)
        # The overload's own call, minus one Python frame that would only pass on its arguments.
        return Op(reference=reference, overload=overload, run=overload._op, bind=bound, into=into)

    return declare


def like_first(first: torch.Tensor, *_: object) -> torch.Tensor:
    """Memory for a result that has the shape of the op's first argument."""
    return first.new_empty(first.shape)


def _twin(name: str, schema: str, reference: Callable[..., Any], bind: Body) -> Op[..., None]:
    """`name_into(out, ...)`: the reference's result in `out`, which a tape can fill again."""

    def into_reference(out: torch.Tensor, *args: Any) -> None:
        out.copy_(reference(*args))

    arguments, _ = schema.rsplit(" -> ", 1)
    into_schema = arguments.replace("(", "(Tensor(out!) out, ", 1) + " -> ()"
    bound = partial(_work, _imported(bind), into_reference)
    overload = _define(
        f"{name}_into{into_schema}", cpu=partial(_run_bound, bound), cuda=partial(_no_cuda, f"{name}_into")
    )
    return Op(reference=into_reference, overload=overload, run=overload._op, bind=bound, into=None)


def _define(
    signature: str,
    *,
    cpu: Callable[..., Any],
    cuda: Callable[..., Any],
    fake: Callable[..., torch.Tensor] | None = None,
    inline: bool = False,
) -> OpOverload[..., Any]:
    """Tells torch about an op. `torch.library.custom_op` would do the same at 25 us a call where this takes 2: it wraps
    every op for autograd, which an inference engine never uses.
    """
    name, _, arguments = signature.partition("(")
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, f"({arguments}")
    torch.library.impl(qualified, "cpu", cpu)
    if inline:
        # Autograd's place in the dispatcher is before recorders' and tracers', which then see what it calls.
        torch.library.impl(qualified, "AutogradCPU", cpu)
    torch.library.impl(qualified, "cuda", cuda)
    torch.library.register_fake(qualified, fake or _no_output)
    overload: OpOverload[..., Any] = pkgutil.resolve_name(f"torch:ops.{NAMESPACE}.{name}.default")
    return overload


def _work(bind: Callable[..., Work | None], reference: Callable[..., Any], *args: Any) -> Work:
    """The bound work of one call; the reference's where numpy cannot do it."""
    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.dtype not in NUMPY_DTYPES:
            return partial(reference, *args)
    return bind(*args) or partial(reference, *args)


def _run_bound(bind: Bind, *args: Any) -> None:
    quietly(lambda: bind(*args)())  # padded rows may hold anything


def _run_into(out: Callable[..., torch.Tensor], into: Callable[..., None], *args: Any) -> torch.Tensor:
    result = out(*args)
    into(result, *args)
    return result


def _imported(body: Body) -> Callable[..., Any]:
    """The function itself. Given by name, the first call imports it: not every machine has Triton."""
    if not isinstance(body, str):
        return body
    load = cache(partial(pkgutil.resolve_name, f"playhead.kernels.{body}"))
    return lambda *args: load()(*args)


def _no_cuda(name: str, *_: object) -> NoReturn:
    raise ConfigError(f"{NAMESPACE}::{name} runs on CPU tensors alone, and was given CUDA tensors")


def _no_output(*_: object) -> None:
    """The fake of an op that only writes into its arguments."""
