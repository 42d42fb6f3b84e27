"""Runs pytest for other trees, each time in a fork: `python pytest_in_forks.py`. To import torch takes longer than to
run a few tests, and is done once.

A line of standard input is a tree, a file for what pytest prints, and pytest's arguments, as JSON. The answer is a line
with pytest's status. Nothing of ours is imported here: each fork imports what its tree has.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

import hypothesis  # noqa: F401
import pytest
import torch

with suppress(ImportError):
    import triton.language  # noqa: F401


def run(tree: str, printed: str, arguments: list[str]) -> int:
    """In the fork. The tree's own code and tests are found first."""
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(tree)
    sys.path[:0] = [f"{tree}/src", tree]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    return pytest.main(["-p", "no:cacheprovider", *arguments])


def main() -> None:
    torch.set_num_threads(1)  # a fork has only the thread that made it
    for line in sys.stdin:
        tree, printed, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = run(tree, printed, arguments)
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
