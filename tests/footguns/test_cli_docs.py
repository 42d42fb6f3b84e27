"""The captures of `docs/cli.md` that depend on neither the clock nor the machine are what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from playhead.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
BLOCKS = "".join(re.findall(r"^```text\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))
CAPTURES = dict(re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", BLOCKS, flags=re.MULTILINE))
REPEATABLE = re.compile(
    r"playhead (.* )?--help|playhead plan [^|]*|playhead doctor embedded|playhead generate .* (24|4096|/\S+)"
)
REPEATED = [command for command in CAPTURES if REPEATABLE.fullmatch(command)]


def test_the_page_has_captures_of_help_plans_and_refusals():
    assert len(REPEATED) >= 9


@pytest.mark.parametrize("command", REPEATED)
def test_a_capture_is_what_the_command_prints(command):
    runner = CliRunner(env={"COLUMNS": "100"})
    result = runner.invoke(app, shlex.split(command)[1:], prog_name="playhead")
    printed = "".join(f"{line.rstrip()}\n" for line in (result.stdout + result.stderr).rstrip("\n").split("\n"))
    assert printed == CAPTURES[command]
