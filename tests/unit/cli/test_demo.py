"""The demo runs, and shows a bug when there is one."""

from __future__ import annotations

from typer.testing import CliRunner

from playhead import __version__
from playhead.cli.main import app


def test_demo_ends_well():
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    assert "untouched" in result.output
    assert "the graphs read what was declared" in result.output


def test_demo_with_the_bug_put_back_shows_it():
    result = CliRunner().invoke(app, ["demo", "--broken"])
    assert result.exit_code == 1
    assert "overwritten" in result.output
    assert "out_cache_loc" in result.output


def test_version():
    assert CliRunner().invoke(app, ["version"]).output.strip() == __version__
