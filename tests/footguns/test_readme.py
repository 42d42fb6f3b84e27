"""The README's code runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from playhead.testing.mutants import PACKAGES

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


def test_the_counts_of_mutants_are_those_of_the_code():
    found = re.search(r"\*\*(\d+) of (\d+) killed\*\* \((.*?)\)", README.read_text(), re.DOTALL)
    assert found is not None
    said = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", found[3])}
    counted = {package.name: len(package.mutants) for package in PACKAGES}
    assert said == counted
    assert int(found[1]) == int(found[2]) == sum(counted.values())
