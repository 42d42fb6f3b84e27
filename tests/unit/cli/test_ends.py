"""How a command ends: a reader that left, a bug, a file that cannot be written. Never with a traceback."""

from __future__ import annotations

import logging
import os
import sys

import pytest
from typer.testing import CliRunner

from playhead.cli.main import FAILED, READER_LEFT, app


@pytest.mark.parametrize("args", [("version",), ("--help",), ("plan", "embedded", "--gpu-memory", "1GiB")])
def test_a_reader_that_left_ends_a_command_quietly(args, monkeypatch, capfd):
    """`playhead plan MODEL | head -1`: neither the exit code of a finding, nor a word."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as ended:
            app(list(args))
    assert ended.value.code == READER_LEFT
    assert capfd.readouterr().err == ""


def test_a_bug_is_one_line_and_its_traceback_is_in_the_log(monkeypatch, caplog):
    def broken(*args: object) -> None:
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr("playhead.cli.plan_fleet.run_plan", broken)
    with caplog.at_level(logging.DEBUG, logger="playhead"):
        result = CliRunner().invoke(app, ["plan", "embedded"])
    assert result.exit_code == FAILED
    assert result.stderr.startswith("playhead: unexpected ZeroDivisionError: one two. ")
    assert result.stderr.count("\n") == 1
    assert "PLAYHEAD_LOG=debug" in result.stderr
    assert "in broken" in caplog.text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing/trace.json", "found no directory"),
        (".", "found the directory"),
        ("shut/trace.json", "cannot be written"),
    ],
)
@pytest.mark.parametrize(
    "command", [("generate", "x", "--trace"), ("bench", "throughput", "--json"), ("bench", "latency", "--json")]
)
def test_an_output_file_is_looked_at_before_the_run(command, path, says, tmp_path, monkeypatch):
    monkeypatch.setattr("playhead.llm.LLM.__init__", lambda *args, **kwargs: pytest.fail("a model was loaded"))
    (tmp_path / "shut").mkdir()
    monkeypatch.setattr("os.access", lambda place, mode: "shut" not in str(place))  # root may write everywhere
    result = CliRunner().invoke(app, [*command, str(tmp_path / path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"playhead: {command[-1]}: ")
    assert says in result.stderr


def test_a_trace_is_written_where_it_was_asked_for(tmp_path):
    path = tmp_path / "trace.json"
    result = CliRunner().invoke(
        app, ["generate", "The whale", "--max-tokens", "2", "--enforce-eager", "--trace", str(path)]
    )
    assert result.exit_code == 0, result.output
    assert "traceEvents" in path.read_text()
