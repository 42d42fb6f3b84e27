"""Triton's interpreter without work that it does again and again: a third of what interpreted tests take.

A launch exchanges the functions of `triton.language` for its own, and puts the old ones back when it ends. So does each
device function that a kernel calls, over the same functions and without putting anything back. Here the first one of a
launch does it for each module.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.runtime import interpreter

COMPILED_RANGE = tl.range


def exchange_once() -> None:
    """From now on a launch exchanges each module's functions once. A version without such a step is left as it is."""
    exchange = getattr(interpreter, "_patch_lang", None)
    if exchange is None or not hasattr(interpreter, "_LangPatchScope"):
        return
    nothing_to_put_back = interpreter._LangPatchScope()
    exchanged: set[str] = set()

    def exchange_new(fn: Any) -> Any:
        is_launch = tl.range is COMPILED_RANGE  # what the launch before exchanged was put back
        if is_launch:
            exchanged.clear()
        modules = {value.__name__ for value in fn.__globals__.values() if value is tl or value is tl.core}
        if modules <= exchanged:
            return nothing_to_put_back
        exchanged.update(modules)
        return exchange(fn)

    interpreter._patch_lang = exchange_new
