"""The process that speaks HTTP has no torch where the engine has a process of its own."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import playhead.serve.choose
from playhead.engine.config import EngineConfig
playhead.serve.choose.backend_for("embedded", EngineConfig(device="cuda"))
print("torch" in sys.modules)
"""


def test_the_remote_backend_brings_no_torch():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
