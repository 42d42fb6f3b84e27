"""`docs/extend.md` shows how to add things, as diffs. Each diff applies to the tree, and its own test passes then."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text()
BEING_WRITTEN = shutil.ignore_patterns("*.pyc.*")  # by other processes, which give the file its name when it is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One section of the page: its title, its diff by file, and the arguments of the pytest command that shows it."""

    title: str
    parts: dict[str, str]
    pytest: list[str]

    @property
    def source(self) -> list[str]:
        return [name for name in self.parts if name.startswith("src/")]

    @property
    def tests(self) -> list[str]:
        return [name for name in self.parts if name.startswith("tests/")]


def examples() -> list[Example]:
    found = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        blocks = r"^```diff\n(.*?)^```\n\n```sh\npytest (.*?)\n```"
        for diff, command in re.findall(blocks, section, flags=re.MULTILINE | re.DOTALL):
            parts = re.split(r"^(?=--- )", diff, flags=re.MULTILINE)[1:]
            named = {re.search(r"^\+\+\+ b/(\S+)", part, flags=re.MULTILINE).group(1): part for part in parts}
            found.append(Example(title=title, parts=named, pytest=command.split()))
    return found


EXAMPLES = examples()


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The files of the project that its code and tests need, and what Python has compiled of them."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=BEING_WRITTEN)
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def apply(tree: Path, example: Example, names: list[str]) -> None:
    diff = "".join(example.parts[name] for name in names)
    env = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    applied = subprocess.run(["git", "apply", "-"], input=diff, cwd=tree, env=env, capture_output=True, text=True)
    assert applied.returncode == 0, f"the diff of {example.title!r} does not apply: {applied.stderr}"


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    """A process whose forks run pytest. Plugins of other packages take longer to import than tests to run."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-P", str(Path(__file__).with_name("pytest_in_forks.py"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, cwd="/", stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.stdin.close()


def run_tests(forks: subprocess.Popen[str], tree: Path, arguments: list[str]) -> tuple[int, str]:
    """Pytest's status, and what it printed."""
    printed = tree / "printed.txt"
    forks.stdin.write(json.dumps([str(tree), str(printed), arguments]) + "\n")
    forks.stdin.flush()
    status = forks.stdout.readline()
    return int(status), printed.read_text()


def test_the_page_has_an_example_of_everything_it_promises():
    titles = " ".join(example.title for example in EXAMPLES)
    for kind in ("family", "sampling parameter", "graph input", "op", "engine flag", "command"):
        assert kind in titles


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_the_diff_applies_and_its_test_needs_it(example, tree, forks, tmp_path):
    copy = shutil.copytree(tree, tmp_path / "tree")
    apply(copy, example, example.tests)
    status, printed = run_tests(forks, copy, example.pytest)
    assert status != pytest.ExitCode.OK, "the command passes without the change that it is about"
    apply(copy, example, example.source)
    status, printed = run_tests(forks, copy, example.pytest)
    assert status == pytest.ExitCode.OK, printed[-3000:]


def test_the_table_counts_the_places_of_each_diff():
    """A place is one run of changed lines in the source."""
    rows = re.findall(r"^\| (.+?) \| .+? \| (\d+) in (\d+) \|$", PAGE, flags=re.MULTILINE)
    counted = {
        example.title: (
            str(sum(count_places(example.parts[name]) for name in example.source)),
            str(len(example.source)),
        )
        for example in EXAMPLES
    }
    assert {title: (places, files) for title, places, files in rows} == counted


def count_places(part: str) -> int:
    """Runs of added or removed lines, each ended by a line that stays."""
    kinds = ["+" if line[:1] in "+-" else " " for line in part.splitlines() if not line.startswith(("---", "+++"))]
    return sum(1 for before, kind in zip([" ", *kinds], kinds, strict=False) if kind == "+" and before == " ")
