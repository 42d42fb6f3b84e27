"""Builds the sdist and the wheel and tries the wheel in a clean environment: `make test-wheel`.

The environment is made in a temporary directory, outside the tree, so that nothing of the tree can be imported by
accident. pip installs torch into it as it would for a user: about 1 GB, which are removed at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SNIPPET = """
import pathlib, playhead
from playhead import LLM, SamplingParams

with LLM("embedded") as llm:
    text = llm.generate("The whale", SamplingParams(max_tokens=8, temperature=0))[0].outputs[0].text
assert text.strip(), "no text came back"
print(pathlib.Path(playhead.__file__).parent, repr(text))
"""

WANTED = ("playhead/py.typed", "playhead/assets/embedded/model.safetensors", "playhead/assets/embedded/config.json")
UNWANTED = ("tests/", "bench/", "tools/", "docs/")


def build(folder: Path) -> Path:
    """The wheel, made from the sdist, as an index would have it."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def problems_of(names: list[str], source_names: list[str]) -> list[str]:
    """What the wheel lacks, and what it should not have; the same for files that the sdist lacks."""
    found = [f"the wheel lacks {name}" for name in WANTED if name not in names]
    found += [f"the wheel holds {name}" for name in names if name.startswith(UNWANTED)]
    found += [f"the sdist lacks {name}" for name in ("README.md", "LICENSE") if name not in source_names]
    return found


def try_in_clean_environment(wheel: Path, folder: Path) -> None:
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    run = [str(programs / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    subprocess.run([*run, "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    commands = (
        [str(programs / "playhead"), "--version"],
        [str(programs / "playhead"), "generate", "The whale", "--max-tokens", "8", "--seed", "1"],
        [str(programs / "python"), "-c", SNIPPET],
    )
    for command in commands:
        print("$", Path(command[0]).name, command[1], flush=True)
        subprocess.run(command, cwd=folder, env=env, check=True)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder / "dist")
        (source,) = (folder / "dist").glob("*.tar.gz")
        with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as tar:
            names = archive.namelist()
            problems = problems_of(names, [entry.partition("/")[2] for entry in tar.getnames()])
        if problems:
            print("\n".join(problems))
            return 1
        print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 2**20:.1f} MiB")
        try_in_clean_environment(wheel, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
