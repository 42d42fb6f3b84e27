"""`tools/install.sh`, which make runs first, refuses an old Python in one line and says what it is about to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
case "$1 $2" in
    -c*) exec {executable} -S -c "import sys; sys.version_info = {version}; sys.modules['torch'] = None; $2" ;;
    "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *) echo "python $*" ;;
esac
"""
"""A Python that says it has another version and no torch, and prints what pip would be asked."""


def add_python(folder: Path, name: str, version: tuple[int, int]) -> None:
    path = folder / name
    path.write_text(PYTHON.format(executable=sys.executable, version=version))
    path.chmod(0o755)


def install(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in an empty directory, where no other Python is on the path."""
    for tool in ("mkdir", "cp", "touch"):
        os.symlink(shutil.which(tool), tmp_path / tool)
    command = ["/bin/sh", str(ROOT / "tools" / "install.sh"), *arguments]
    return subprocess.run(command, cwd=tmp_path, env={"PATH": str(tmp_path)}, capture_output=True, text=True)


def test_an_old_python_is_refused_in_one_line(tmp_path):
    add_python(tmp_path, "python3", (3, 10))
    ran = install(tmp_path, ".venv/.core")
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert "python3 is Python 3.10; Playhead needs Python 3.11 or newer." in line
    assert not ran.stdout
    assert not (tmp_path / ".venv").exists()


def test_a_newer_python_beside_an_old_one_is_found(tmp_path):
    add_python(tmp_path, "python3", (3, 10))
    add_python(tmp_path, "python3.12", (3, 12))
    ran = install(tmp_path, ".venv/.dev", "dev,bench")
    assert ran.returncode == 0, ran.stderr
    assert "making .venv with python3.12, Python 3.12" in ran.stdout
    assert "-c constraints.txt -e .[dev,bench]" in ran.stdout
    assert (tmp_path / ".venv" / ".dev").exists()
    assert (tmp_path / ".venv" / ".core").exists()  # whoever has the tests' packages has the demo's


def test_the_size_is_said_before_pip_starts(tmp_path):
    add_python(tmp_path, "python3", (3, 11))
    lines = install(tmp_path, ".venv/.core").stdout.splitlines()
    size = next(index for index, line in enumerate(lines) if "about 1 GB" in line and "CUDA build, about 3 GB" in line)
    pip = next(index for index, line in enumerate(lines) if line.startswith("python -m pip install"))
    assert size < pip
    assert lines[pip].endswith("-e .")
    assert "--quiet" not in lines[pip]


def test_a_venv_of_an_old_python_is_refused(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    add_python(tmp_path / ".venv" / "bin", "python", (3, 10))
    ran = install(tmp_path, ".venv/.core")
    assert ran.returncode == 1
    assert ".venv has Python 3.10" in ran.stderr


def test_the_demo_installs_no_extras(tmp_path):
    """Make is asked for its commands in a tree without .venv."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    commands = subprocess.run(["make", "-n", "demo"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "tools/install.sh .venv/.core\n" in commands
    assert "tools/install.sh .venv/.dev dev,bench" not in commands
