"""Runs what pages of docs/ show and compares: `python -m tools.record_pages`. With `--update` the pages are rewritten.

The `python` blocks of a page run in order in one namespace; a `text` block after one is what it printed. In a `console`
block a line that begins with `$ ` is a command and the lines below it are its output. Commands run in this process,
with 100 columns and no terminal. `git`, `cd` and `source` are not run. `make demo` runs what make would run.

Everything is compared, generated text too: it is greedy or seeded, in float32, and chosen by margins far above what
CPUs differ in. The hub is unreachable unless a command sets HF_ENDPOINT; then it is a mirror on this machine that has
the embedded model as example/tiny. Its address and the cache's path are shown as a user would see them.
"""

from __future__ import annotations

import argparse
import difflib
import io
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import huggingface_hub.constants as hub
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it exports what it imports
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from typer.testing import CliRunner

from playhead.cli.main import app
from playhead.engine.tokenizer_files import resolve_model_name
from tests.unit.models.checkpoint.mirror import Mirror, running

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("tutorial", "from-transformers", "first-ten-minutes", "structured")
BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
NOT_RUN = ("git ", "cd ", "source ")

NOBODY = "http://127.0.0.1:9"
SHOWN_HUB, SHOWN_MIRROR, SHOWN_CACHE = "https://huggingface.co", "http://mirror:8080", "~/.cache/huggingface/hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a page can reach: a mirror, an empty cache, and the names its code has defined."""

    mirror: Mirror
    cache: Path
    names: dict[str, object] = field(default_factory=dict)

    def shown(self, text: str) -> str:
        """The text with this machine's addresses as a user's, and no space at the ends of lines."""
        for real, name in ((self.mirror.url, SHOWN_MIRROR), (NOBODY, SHOWN_HUB), (str(self.cache), SHOWN_CACHE)):
            text = text.replace(real, name)
        return "".join(f"{line.rstrip()}\n" for line in text.rstrip("\n").split("\n")) if text.strip() else ""


@contextmanager
def world() -> Iterator[World]:
    """The hub's library pointed at nobody and at an empty cache, and put back at the end."""
    files = {path.name: path.read_bytes() for path in Path(resolve_model_name("embedded")).iterdir()}
    had_bars = not are_progress_bars_disabled()
    before = (hub.ENDPOINT, hub.HUGGINGFACE_CO_URL_TEMPLATE, hub.HF_HUB_CACHE, hub.HF_HUB_OFFLINE)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Mirror(repositories={"example/tiny": files})) as mirror,
    ):
        hub.HF_HUB_CACHE, hub.HF_HUB_OFFLINE = folder, False
        disable_progress_bars()  # theirs show without a terminal too, and hold times
        try:
            yield World(mirror=mirror, cache=Path(folder))
        finally:
            hub.ENDPOINT, hub.HUGGINGFACE_CO_URL_TEMPLATE, hub.HF_HUB_CACHE, hub.HF_HUB_OFFLINE = before
            if had_bars:
                enable_progress_bars()


def recorded(page: str, here: World) -> str:
    """The page with what its code and commands print now."""
    printed = ""

    def again(match: re.Match[str]) -> str:
        nonlocal printed
        kind, body = match.groups()
        if kind == "text":
            return f"```text\n{printed}```"
        if kind == "python":
            printed = here.shown(run_code(body, here))
            return match.group(0)
        return "```console\n" + COMMAND.sub(command_again, body) + "```"

    def command_again(match: re.Match[str]) -> str:
        return f"$ {match.group(1)}\n{run_command(match.group(1), here)}"

    return BLOCK.sub(again, page)


def run_code(code: str, here: World) -> str:
    """What one block prints; what it defines stays in `names`."""
    path, out = here.cache.parent / f"{here.cache.name}.py", io.StringIO()
    path.write_text(code)
    try:
        with redirect_stdout(out):
            here.names.update(runpy.run_path(str(path), init_globals=here.names))
    finally:
        path.unlink()
    return out.getvalue()


def run_command(line: str, here: World) -> str:
    """What one line of a terminal prints."""
    command = line.partition("  #")[0].rstrip()
    if command.startswith(NOT_RUN):
        return ""
    if command.startswith("make "):
        commands = planned_by_make(command.removeprefix("make "))
        return "".join(f"{one}\n{run_command(one, here)}" for one in commands)
    said = re.match(r"echo '([^']*)' \| ", command)
    words = shlex.split(command[said.end() :] if said else command)
    endpoint = here.mirror.url if words[0] == f"HF_ENDPOINT={SHOWN_MIRROR}" else NOBODY
    hub.ENDPOINT, hub.HUGGINGFACE_CO_URL_TEMPLATE = endpoint, endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    words = words[1:] if "=" in words[0] else words
    if Path(words[0]).name != "playhead":
        raise SystemExit(f"record_pages: found the command {words[0]!r}; wanted playhead or make.")
    stdin = f"{said.group(1)}\n" if said else None
    ran = CliRunner(env={"COLUMNS": "100"}).invoke(app, words[1:], input=stdin, prog_name="playhead")
    return here.shown(ran.output)


def planned_by_make(target: str) -> list[str]:
    """The commands of a target, as if everything were installed."""
    command = ["make", "--dry-run", "--no-print-directory", "--assume-old=.venv/.core", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write what was printed into the pages")
    parser.add_argument("pages", nargs="*", default=PAGES)
    options = parser.parse_args()
    num_stale = 0
    for name in options.pages:
        path = ROOT / "docs" / f"{name}.md"
        with world() as here:
            found, wanted = path.read_text(), recorded(path.read_text(), here)
        if options.update:
            path.write_text(wanted)
        elif found != wanted:
            num_stale += 1
            sys.stdout.writelines(
                difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), str(path), "now")
            )
    return int(num_stale > 0)


if __name__ == "__main__":
    sys.exit(main())
