"""Compiles the kernels of launches, many at a time, instead of launching them.

A kernel takes the compiler about a second, of which Python's lock is held for a tenth: threads are enough. A launch
finds what they made, because Triton caches it under the key that the launch looks for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """In here a launch by this thread gives its kernel to a pool of compilers and does nothing else.

    At the end all kernels are compiled and the pool's threads are gone. A kernel that cannot be compiled raises where
    it is launched, as it would without this.
    """
    launch, this_thread = JITFunction.run, get_ident()

    def run(self: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        return launch(self, *args, warmup=warmup or get_ident() == this_thread, **kwargs)

    JITFunction.run = run
    try:
        num_threads = len(os.sched_getaffinity(0))
        with Compilers(num_threads) as compilers, triton.AsyncCompileMode(compilers, ignore_errors=True):
            yield
    finally:
        JITFunction.run = launch


class Compilers(ThreadPoolExecutor):
    """Threads that compile a kernel, and the host's code that launches it where Triton has some for each kernel."""

    def submit(self, compile_kernel: Callable[[], Any], /) -> Future[Any]:  # type: ignore[override]
        def compile_both() -> Any:
            kernel = compile_kernel()
            driver.active.launcher_cls(kernel.src, kernel.metadata)
            return kernel

        return super().submit(compile_both)
