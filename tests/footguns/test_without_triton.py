"""A machine without a GPU has no Triton: what runs there must not import it."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = "import sys; sys.modules['triton'] = None; import {module}"


def imported(module: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT.format(module=module)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_model_is_built_without_triton():
    """Its head asks how a GPU would cut it: the rules of tiles need no Triton."""
    done = imported("playhead.models.decoder")
    assert done.returncode == 0, done.stderr[-1000:]


def test_kernels_need_it():
    assert "triton" in imported("playhead.kernels.triton.ring").stderr
