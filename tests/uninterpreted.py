"""Scripts in processes of their own: Triton compiles there, and this process may have interpreted its kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def output_of(script: Path, *arguments: str, **variables: str) -> str:
    """What a script prints that ends well, with these variables in its environment."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
