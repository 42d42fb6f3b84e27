"""The files of `examples/` are what they say: all of them compile, and those whose client is installed run."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
SAYS = {
    "openai_sync": (
        "model: embedded",
        "answer:",
        "ended by:",
        "streamed:",
        "cached tokens:",
        "completion:",
        "refused:",
    ),
    "openai_tools": ("ended by: tool_calls", "call: weather {'city': ", "answer:", 'streamed: weather {"city": "'),
    "openai_schema": ("person: {'age': ", "choice: ", "date: "),
    "openai_async": ("Who is there?", "What news?", "only the beginning:"),
}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_example_compiles_and_is_listed(path):
    compile(path.read_text(), str(path), "exec")
    assert f"[{path.name}]({path.name})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("name", SAYS)
def test_an_example_of_the_openai_package_runs(name, server, monkeypatch, capsys):
    monkeypatch.setenv("PLAYHEAD_URL", server.url)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert [words for words in SAYS[name] if words not in printed] == []


def test_an_example_runs_with_a_key(server, monkeypatch, capsys):
    from tests.serve.running import KEYS

    monkeypatch.setenv("PLAYHEAD_URL", server.locked_url)
    monkeypatch.setenv("PLAYHEAD_API_KEY", KEYS["alice"])
    runpy.run_path(str(EXAMPLES / "openai_async.py"), run_name="__main__")
    assert "only the beginning:" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reaches_every_route_of_the_example(server):
    ran = subprocess.run(
        ["sh", str(EXAMPLES / "curl.sh")],
        env={"PLAYHEAD_URL": server.url, "PATH": "/usr/bin:/bin"},
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    printed = ran.stdout.decode()
    assert [words for words in ("chat.completion", "data: [DONE]", "text_completion") if words not in printed] == []
