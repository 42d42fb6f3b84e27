"""Compiles one kernel ahead and fails to compile another, then launches both: `python compile_two_ahead.py`.

There is no GPU: launches are noted. Must run without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from playhead.kernels.triton.compile_ahead import compiling_ahead
from tests.hopper_driver import Hopper

LAUNCHED: list[str] = []
COMPILED: list[str] = []


class NotedLaunches(Hopper):
    """Launches are noted by the thread that launches."""

    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 227 * 1024},
        load_binary=lambda *binary: (1, 1, 0, 0, 1024),
    )

    def launcher_cls(self, source, metadata):
        return lambda *call: LAUNCHED.append(threading.current_thread().name)


@triton.jit
def fill(out, VALUE: tl.constexpr):
    tl.store(out, VALUE)


@triton.jit
def broken(out):
    tl.store(out, tl.static_assert(False, "never"))


def problem_of(kernel, out) -> str | None:
    try:
        kernel[(1,)](out)
    except CompilationError as error:
        return str(error)
    return None


def main() -> None:
    driver.set_active(NotedLaunches())
    triton.knobs.compilation.listener = lambda **compiled: COMPILED.append(compiled["src"].name)
    own_run, out = JITFunction.run, torch.zeros(1)
    problem_alone = problem_of(broken, out)
    broken.device_caches.clear()
    found = {}
    with compiling_ahead():
        fill[(1,)](out, 1)
        fill[(1,)](out, 1)
        found["problem_ahead"] = problem_of(broken, out)
        other = threading.Thread(target=lambda: fill[(1,)](out, 2), name="other")
        other.start()
        other.join()
    found["launched_inside"] = list(LAUNCHED)
    found["threads_after"] = threading.active_count()
    found["compiled"] = list(COMPILED)
    fill[(1,)](out, 1)
    found["compiled_by_the_launch"] = COMPILED[len(found["compiled"]) :]
    found["launched"] = list(LAUNCHED)
    found["problem_is_the_same"] = problem_of(broken, out) == problem_alone is not None
    found["runs_are_launches_again"] = JITFunction.run is own_run
    print(json.dumps(found))


if __name__ == "__main__":
    main()
