"""Kernels as their launch functions would launch them, for a Hopper GPU that need not be there.

Launch functions are called on meta tensors with the kernel's own `run` replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS: Mapping[torch.dtype, str] = MappingProxyType(
    {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
)
OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion", "launch_pdl")
ALIGNED = [["tt.divisibility", 16]]


class Launched(NamedTuple):
    """What the compiler is given, its options, and how many programs there would be."""

    source: Any
    options: dict[str, Any]
    num_programs: int


def launched(kernel: Any, launch: Callable[[], Any]) -> Launched:
    """The kernel as `launch` would launch it, once."""
    calls: list[Any] = []
    kernel.run = lambda *args, grid, warmup, **kwargs: calls.append((grid, args, kwargs))
    try:
        launch()
    finally:
        del kernel.run
    ((grid, args, kwargs),) = calls
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for i, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or is_one:
            signature[parameter.name], constants[i,] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name], attributes[i,] = POINTERS[value.dtype], ALIGNED
        elif isinstance(value, TensorDescriptor):
            signature[parameter.name] = f"tensordesc<bf16{list(value.block_shape)}>"
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[i,] = ALIGNED
    make_source = GluonASTSource if kernel.is_gluon() else ASTSource
    source = make_source(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return Launched(source, options, math.prod(grid))


def read(source: Any, options: Mapping[str, Any]) -> None:
    """Have the compiler read a kernel as far as its own representation, which nothing keeps.

    Raises its `CompilationError` if it refuses the code. The interpreter may run such code.
    """
    backend, context = make_backend(HOPPER), ir.context()
    parsed = backend.parse_options({**options, **source.parse_options()})
    ir.load_dialects(context)
    backend.load_dialects(context)
    source.make_ir(HOPPER, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)
