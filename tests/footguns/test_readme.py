"""The README's code runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_twenty_lines_run():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "tensor([2, 4, 6]" in ran.stdout
    assert "a captured size fits" in ran.stdout
