"""The code of docs/graph.md runs in order and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "graph.md"
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)
MARK = "--- end of a block"


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """What each piece of code prints, in one process: later blocks use what earlier ones define."""
    program = "".join(f"{code}\nprint({MARK!r})\n" for kind, code in BLOCKS if kind == "python")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split(f"{MARK}\n")


def test_every_block_prints_what_the_page_shows(printed):
    shown, num_code = {}, 0
    for kind, text in BLOCKS:
        num_code += kind == "python"
        if kind == "text":
            shown[num_code - 1] = text
    assert len(shown) == 6
    for at, text in shown.items():
        assert printed[at] == text
    assert all(not output for at, output in enumerate(printed) if at not in shown)


@pytest.mark.parametrize("heading", ["The plan and the placeholder", "A break", "A bound tensor", "An audit"])
def test_the_page_has_an_example_of(heading):
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    assert "```python" in section
