"""The README's code runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def output_of(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_first_example_writes_text():
    assert len(output_of(EXAMPLES[0]).split()) > 10


def test_the_twenty_lines_run():
    assert len(EXAMPLES) == 2
    printed = output_of(EXAMPLES[1])
    assert "tensor([2, 4, 6]" in printed
    assert "a captured size fits" in printed
