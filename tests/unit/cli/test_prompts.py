"""`playhead generate` reads prompts from its argument, files and standard input."""

from __future__ import annotations

import io
import json
import sys

import pytest
from typer.testing import CliRunner

from playhead.cli import prompts as prompts_module
from playhead.cli.main import app
from playhead.cli.options import GenerateOptions
from playhead.cli.prompts import read_prompts
from playhead.errors import ConfigError
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams


@pytest.fixture
def stdin(monkeypatch):
    """Puts bytes into standard input."""

    def give(content: bytes, *, is_terminal: bool = False) -> None:
        stream = io.TextIOWrapper(io.BytesIO(content))
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
        monkeypatch.setattr(sys, "stdin", stream)

    return give


def test_the_argument_comes_first_and_files_in_their_order(tmp_path, stdin):
    (tmp_path / "a").write_text("first\nline\n")
    (tmp_path / "b").write_text("second")
    stdin(b"never read")
    files = (str(tmp_path / "b"), str(tmp_path / "a"))
    assert read_prompts(GenerateOptions(prompt="x", file=files)) == ["x", "second", "first\nline"]


@pytest.mark.parametrize("options", [GenerateOptions(), GenerateOptions(prompt="-"), GenerateOptions(file=("-",))])
def test_standard_input_is_a_prompt_without_its_last_newline(options, stdin):
    stdin("Käse\r\nzwei\n\n".encode())
    assert read_prompts(options) == ["Käse\nzwei\n"]


def test_lines_and_json_lines_are_a_prompt_each(tmp_path, stdin):
    stdin(b"one\n\n  two\n")
    assert read_prompts(GenerateOptions(input_format="lines")) == ["one", "  two"]
    stdin(b'"one"\n{"prompt": "two"}\n[3, 4]\n{"prompt_token_ids": [5]}\n')
    assert read_prompts(GenerateOptions(input_format="jsonl")) == ["one", "two", [3, 4], [5]]


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (b"", {}, "standard input: found no text"),
        (b"\n\n", {"input_format": "lines"}, "standard input: found no text"),
        (b"ab\xff", {}, "standard input: byte 2 is not UTF-8"),
        (b"{", {"input_format": "jsonl"}, "standard input, line 1: found no JSON"),
        (b'"a"\n[true]', {"input_format": "jsonl"}, r"standard input, line 2: found \[True\]; wanted a text"),
        (b"[" * 100_000, {"input_format": "jsonl"}, "line 1: found no JSON"),
        (b"", {"file": ("no such file",)}, "--file: 'no such file' cannot be read: No such file"),
        (b"", {"file": ("~no such user/x",)}, "--file: '~no such user/x' cannot be read: No such file"),
        (b"", {"input_format": "xml"}, "--input-format: found 'xml'; wanted one of text, lines, jsonl"),
    ],
)
def test_what_is_no_prompt_is_refused(content, options, says, stdin):
    stdin(content)
    with pytest.raises(ConfigError, match=says):
        read_prompts(GenerateOptions(**options))


def test_a_terminal_is_not_waited_for(stdin):
    stdin(b"typed", is_terminal=True)
    with pytest.raises(ConfigError, match="PROMPT: found none"):
        read_prompts(GenerateOptions())
    assert read_prompts(GenerateOptions(prompt="-")) == ["typed"]


def test_input_without_an_end_is_refused(stdin, monkeypatch):
    monkeypatch.setattr(prompts_module, "MAX_BYTES", 4)
    stdin(b"12345")
    with pytest.raises(ConfigError, match="standard input: found more than"):
        read_prompts(GenerateOptions())


FEW = ("--max-tokens", "4", "--temperature", "0", "--enforce-eager", "--max-model-len", "64")


def test_several_prompts_run_together_and_come_in_their_order():
    texts = ["The whale", "Call me"]
    args = ["generate", "--input-format", "lines", *FEW]
    plain = CliRunner().invoke(app, args, input="\n".join(texts))
    as_json = CliRunner().invoke(app, [*args, "--json"], input="\n".join(texts))
    with LLM("embedded", max_model_len=64) as llm:
        outputs = llm.generate(texts, SamplingParams(max_tokens=4, temperature=0))
    wanted = [output.outputs[0].text for output in outputs]
    assert plain.stdout == f"[1]\n{wanted[0]}\n[2]\n{wanted[1]}\n"
    records = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert [record["prompt"] for record in records] == texts
    assert [record["outputs"][0]["text"] for record in records] == wanted
    assert sum(records[0]["steps"].values()) == 4  # all prompts in the same steps


def test_a_prompt_that_is_too_long_is_named_by_its_number():
    result = CliRunner().invoke(app, ["generate", "--input-format", "lines", *FEW], input="short\n" + "long " * 100)
    assert result.exit_code == 2
    assert result.stderr.startswith("playhead: prompt 2 of 2: ")
    assert result.stdout == ""
