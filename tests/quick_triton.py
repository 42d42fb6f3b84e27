"""Triton's interpreter without work that it does again and again: two thirds of what interpreted tests take.

An interpreted kernel calls the same functions of numpy with the same numbers as before. What is left out:

- A launch exchanges the functions of `triton.language` for its own, and puts the old ones back when it ends. So does
  each device function that a kernel calls, over the same functions and without putting anything back. Here the first
  one of a launch does it for each module.
- Behind each sum of integers six more ops find out whether a wider sum is the same. An assert is to read that, and
  asserts are off in the interpreter: nothing is checked.
- Each tensor's shape is checked, wrapped and described anew. Here this is done once for each shape.
- Types are compared by their names, and looked up in tables that are made for one look-up.

The compiler describes shapes and compares types as the interpreter does, while it reads a kernel.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

READ = "3.7.1"  # the version whose functions are replaced here
COMPILED_RANGE = tl.range
PLAIN = frozenset({int, float, bool, str, type(None), core.tensor, core.dtype, core.block_type, core.pointer_type})


def be_quick() -> None:
    """From now on kernels are interpreted so. Another version of Triton is left as it is."""
    if triton.__version__ != READ:
        return
    exchange_once()
    leave_out_what_no_assert_reads()
    describe_each_shape_once()
    tell_types_apart_at_once()


def exchange_once() -> None:
    """A launch exchanges each module's functions once."""
    exchange = interpreter._patch_lang
    nothing_to_put_back = interpreter._LangPatchScope()
    exchanged: set[str] = set()

    @cache
    def modules_of(fn: Any) -> set[str]:
        return {value.__name__ for value in fn.__globals__.values() if value is tl or value is core}

    def exchange_new(fn: Any) -> Any:
        if tl.range is COMPILED_RANGE:  # a launch: what the one before exchanged was put back
            exchanged.clear()
        if modules_of(fn) <= exchanged:
            return nothing_to_put_back
        exchanged.update(modules_of(fn))
        return exchange(fn)

    interpreter._patch_lang = exchange_new


def leave_out_what_no_assert_reads() -> None:
    """No sum of integers is computed a second time."""
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "asserts are on, and one reads whether a sum overflowed"
    builder.options = replace(builder.options, sanitize_overflow=False)


def describe_each_shape_once() -> None:
    """Tensors of one shape share its description, so that equal shapes are mostly one object."""
    check, broadcast, are_equal = core.block_type.__init__, TritonSemantic.broadcast_impl_value, core.block_type.__eq__
    checked: dict[tuple[int, ...], tuple[Any, int]] = {}
    names: dict[tuple[str, tuple[int, ...]], str] = {}
    described: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def check_once(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([one.value if type(one) is core.constexpr else one for one in shape])
        if (known := checked.get(sizes)) is None:
            check(self, element_ty, shape)
            checked[sizes] = self.shape, self.numel
            return
        self.element_ty = element_ty
        self.shape, self.numel = known
        if (name := names.get((element_ty.name, sizes))) is None:
            name = names[element_ty.name, sizes] = f"<{self.shape}, {element_ty}>"
        self.name = name

    def describe_once(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        sizes = tuple(type.shape.values) if type.is_block() else ()
        if (known := described.get(sizes)) is None:
            shape = core.tuple([core.constexpr(size) for size in sizes])
            known = described[sizes] = core.constexpr(math.prod(sizes)), shape
        self.numel, self.shape = known

    def broadcast_unequal(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = (one.type.shape if one.type.is_block() else None for one in (lhs, rhs))
        return (lhs, rhs) if left is right else broadcast(self, lhs, rhs)

    core.block_type.__init__ = check_once
    core.block_type.__eq__ = lambda self, other: self is other or are_equal(self, other)
    core.tensor.__init__ = describe_once
    TritonSemantic.broadcast_impl_value = broadcast_unequal


def tell_types_apart_at_once() -> None:
    """Of a type that is only looked at."""
    integers = frozenset(core.dtype.SINT_TYPES + core.dtype.UINT_TYPES)
    are_equal, find, unwrap = core.dtype.__eq__, interpreter._get_np_dtype, core._unwrap_if_constexpr
    found: dict[str, np.dtype[Any]] = {}

    def find_once(type: Any) -> np.dtype[Any]:
        if (known := found.get(type.name)) is None:
            known = found[type.name] = find(type)
        return known

    def unwrap_at_once(one: Any) -> Any:
        kind = type(one)
        if kind in PLAIN:
            return one
        return one.value if kind is core.constexpr else unwrap(one)

    core.dtype.__eq__ = lambda self, other: self is other or are_equal(self, other)
    core.dtype.is_int = lambda self: self.name in integers
    core._unwrap_if_constexpr = unwrap_at_once
    interpreter._get_np_dtype = find_once
