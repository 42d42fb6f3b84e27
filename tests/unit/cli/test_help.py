"""Help has one look, breaks no word, and waits for nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from playhead import __version__
from playhead.cli.layout import block
from playhead.cli.main import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with the words that call it."""
    yield path, command
    if isinstance(command, TyperGroup):
        for name, one in command.commands.items():
            yield from commands(one, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def help_of(path: tuple[str, ...], columns: int) -> str:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [*path, "--help"])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_breaks_no_word_and_fits_the_terminal(path, columns):
    text = help_of(path, columns)
    words = set(text.split())
    assert max(map(len, text.splitlines())) <= min(columns, 100)
    for param in COMMANDS[path].params:
        assert {*param.opts[:1]} <= words or param.param_type_name == "argument"
        if param.name != "help":
            assert set((param.help or "").split()) <= words


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_one_look(path):
    usage, about, *blocks = help_of(path, 80).split("\n\n")
    assert usage.startswith(" ".join(("root", *path)))
    assert about.strip().endswith(".")
    assert blocks
    for one in blocks:
        title, *entries = one.rstrip().splitlines()
        assert title.endswith(":")
        assert all(entry.startswith("  ") for entry in entries)


def test_a_word_with_hyphens_and_one_that_is_too_long_stay_whole():
    words = ["--a-flag-with-many-hyphens"] * 4 + ["x" * 70]
    text = block("Options", [("--name", " ".join(words)), ("--" + "y" * 40, "below its name")], 60)
    assert text.split()[2:7] == words
    assert text.splitlines()[-2:] == ["  --" + "y" * 40, " " * 30 + "below its name"]


def test_every_option_says_something():
    silent = [(path, param.name) for path, command in COMMANDS.items() for param in command.params if not param.help]
    assert silent == []


def test_the_first_lines_say_what_playhead_is():
    assert "runs language models on a GPU or a CPU" in help_of((), 80)
    assert CliRunner().invoke(app, []).stdout == CliRunner().invoke(app, ["--help"]).stdout


def test_the_version_is_a_flag_and_a_command():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"{__version__}\n"
    assert CliRunner().invoke(app, ["version"]).stdout == f"{__version__}\n"


MODULES = """
import contextlib, io, json, sys
from playhead.cli.layout import block
from playhead.cli.main import app

def call(*args):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            app(list(args))

for path in json.loads(sys.argv[1]):
    call(*path, "--help")
call("--version")
call("generate", "x", "--temperature", "hot")
call("no-such-command")
print(json.dumps(sorted(sys.modules)))
call("generate", "The whale", "--max-tokens", "2")
print(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def modules() -> tuple[set[str], set[str]]:
    """What is imported after every help and some refusals, and what after a whole run."""
    paths = json.dumps([list(path) for path in COMMANDS])
    ran = subprocess.run([sys.executable, "-c", MODULES, paths], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    helped, worked = (set(json.loads(line)) for line in ran.stdout.splitlines())
    return helped, worked


def test_help_version_and_refused_flags_import_nothing_heavy(modules):
    helped, _ = modules
    heavy = {"torch", "numpy", "rich", "tokenizers", "jinja2", "playhead.llm", "playhead.engine.engine"}
    assert helped & heavy == set()


def test_a_run_imports_no_compiler_and_nothing_it_does_not_need(modules):
    """Each of these takes a part of a second, or seconds, of every start."""
    _, worked = modules
    unwanted = {"torch._dynamo", "torch._inductor", "sympy", "triton", "transformers", "gguf", "huggingface_hub"}
    assert "torch" in worked
    assert worked & unwanted == set()
