"""Kernels compiled as their launch functions would launch them, without a GPU.

Launch functions are called on meta tensors with the kernel's own `run` replaced.
"""

from __future__ import annotations

import math

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

POINTERS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion", "launch_pdl")
ALIGNED = [["tt.divisibility", 16]]


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


def indices(*shape):
    return meta(*shape, dtype=torch.int32)


def compiled(kernel, launch):
    """The kernel as `launch` would launch it, its options, and how many programs there would be."""
    calls = []
    kernel.run = lambda *args, grid, warmup, **kwargs: calls.append((grid, args, kwargs))
    launch()
    del kernel.run
    ((grid, args, kwargs),) = calls
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if (
            parameter.is_constexpr
            or value is None
            or (type(value) is int and value == 1 and not parameter.do_not_specialize)
        ):
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
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options), options, math.prod(grid)


def compiled_beside(other, kernel, launch):
    """The kernel as `launch` would launch it, which launches another one too."""
    other.run = lambda *args, **kwargs: None
    try:
        return compiled(kernel, launch)
    finally:
        del other.run
