"""`playhead chat`: what was said stays, commands say what they did, and Ctrl-C stops an answer."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from playhead.cli.conversation import HELP, Conversation
from playhead.cli.lines import kept_history, next_line
from playhead.cli.main import app
from playhead.errors import ConfigError
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams
from tests.unit.models.text.embedded_copy import checkpoint

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
OWN = SamplingParams(temperature=0.8, max_tokens=512)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """The embedded model with a chat template."""
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    return checkpoint(tmp_path_factory.mktemp("model"), tokenizer_config=special | {"chat_template": TEMPLATE})


@pytest.fixture
def talk() -> Conversation:
    return Conversation(params=OWN, own_params=OWN)


def test_the_model_reads_the_whole_conversation(model):
    lines = ["Hello.", "What now?"]
    args = ["chat", "-m", model, "--temperature", "0", "--max-tokens", "6", "--max-model-len", "128", "--enforce-eager"]
    result = CliRunner().invoke(
        app, args, input="\n".join([lines[0], "", " /not a command", "/new", *lines, "/bye", "x"])
    )
    assert result.exit_code == 0, result.output
    params, texts, history = SamplingParams(temperature=0, max_tokens=6), [], []
    with LLM(model, max_model_len=128) as llm:

        def answer(*messages: dict[str, str]) -> str:
            text = llm.generate([llm.chat_prompt(messages)], params)[0].outputs[0].text
            texts.append(text.strip())
            return text

        first = answer({"role": "user", "content": lines[0]})
        answer(
            {"role": "user", "content": lines[0]},
            {"role": "assistant", "content": first},
            {"role": "user", "content": "/not a command"},
        )
        for line in lines:
            history.append({"role": "user", "content": line})
            history.append({"role": "assistant", "content": answer(*history)})
    assert result.stdout == "".join(text + "\n" for text in texts)


def test_a_refused_line_is_left_out_and_the_talk_goes_on(model):
    args = ["chat", "-m", model, "--temperature", "0", "--max-tokens", "4", "--max-model-len", "32", "--enforce-eager"]
    result = CliRunner().invoke(app, args, input="long " * 100 + "\n/nex\nHello.\n")
    assert result.exit_code == 0, result.output
    long, typo = result.stderr.splitlines()
    assert long.endswith("/new starts again.")
    assert typo == "playhead: /nex: no such command. Did you mean /new? A space before the / makes it text."
    assert result.stdout.count("\n") >= 1


def test_every_command_is_in_the_list(talk):
    assert [line.split()[0] for line in talk.obey("/help").splitlines()] == [name.split()[0] for name in HELP]
    for name in {name.split()[0] for name in HELP} - {"/bye", "/save", "/load"}:
        talk.obey(name)


def test_the_system_message_comes_first_and_can_be_removed(talk):
    talk.obey("/system Be brief.")
    talk.add("Hi", "Yes.")
    assert [one["role"] for one in talk.messages_with("Go on")] == ["system", "user", "assistant", "user"]
    talk.obey("/system")
    assert [one["role"] for one in talk.messages_with("Go on")] == ["user", "assistant", "user"]
    talk.obey("/new")
    assert talk.messages_with("x") == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("/set temperature 0", {"temperature": 0.0}),
        ("/set top-k 5", {"top_k": 5}),
        ("/set --repetition-penalty 1.3", {"repetition_penalty": 1.3}),
        ("/set stop END OF IT", {"stop": ("END OF IT",)}),
        ("/set ignore_eos true", {"ignore_eos": True}),
        ("/set seed 7", {"seed": 7}),
    ],
)
def test_set_changes_one_parameter_and_takes_it_back(line, changed, talk):
    assert talk.obey(line) == f"{next(iter(changed))} is {next(iter(changed.values()))}"
    assert talk.params == replace(OWN, **changed)
    talk.obey(f"/set {next(iter(changed))}")
    assert talk.params == OWN


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/set temprature 1", "Did you mean temperature?"),
        ("/set n 2", "/set: found 'n'; wanted a sampling parameter"),
        ("/set temperature hot", "/set temperature: found 'hot'; wanted a finite number from 0"),
        ("/set temperature -1", "/set temperature: found -1.0; wanted a finite number from 0"),
        ("/set ignore_eos maybe", "/set ignore_eos: found 'maybe'; wanted true or false"),
        ("/save", "/save: found no file name"),
        ("/load", "/load: found no file name"),
        ("/load no such file", "cannot be read: No such file"),
        ("/save /no/such/directory/x", "/save: found no directory"),
        ("/quit", "/quit: no such command"),
    ],
)
def test_a_command_that_cannot_be_obeyed_says_why_and_changes_nothing(line, says, talk):
    before = replace(talk)
    with pytest.raises(ConfigError) as refused:
        talk.obey(line)
    assert says in str(refused.value)
    assert talk == before


def test_a_saved_conversation_can_be_loaded(talk, tmp_path):
    path = tmp_path / "talk.json"
    talk.obey("/system Be brief.")
    talk.add("Hi", "Größe 2.")
    talk.obey(f"/save {path}")
    talk.obey(f"/save {path}")  # its own file
    other = Conversation(params=OWN, own_params=OWN)
    with pytest.raises(ConfigError, match="exists already"):
        other.obey(f"/save {path}")
    other.obey(f"/load {path}")
    assert (other.system, other.turns) == (talk.system, talk.turns)


@pytest.mark.parametrize(
    "content", ["{", "3", '[{"role": "user"}]', '[{"role": "robot", "content": "x"}]', "[" * 99999]
)
def test_a_file_that_is_no_conversation_is_refused(content, talk, tmp_path):
    path = tmp_path / "talk.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="wanted a JSON list of messages, each with a role and a content"):
        talk.obey(f"/load {path}")


def test_a_history_that_cannot_be_kept_is_said_and_nothing_else_happens(tmp_path, capsys):
    (tmp_path / "file").touch()
    with kept_history(tmp_path / "file" / "history"):
        pass
    assert "the history is not kept" in capsys.readouterr().err


def test_ctrl_c_at_the_prompt_leaves_the_second_time(monkeypatch, capsys):
    typed: list[object] = [KeyboardInterrupt, "Hello", KeyboardInterrupt, KeyboardInterrupt]

    def scripted(prompt: str) -> object:
        found = typed.pop(0)
        if found is KeyboardInterrupt:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr("builtins.input", scripted)
    assert next_line(is_interactive=True) == "Hello"
    assert "Ctrl-C again, Ctrl-D or /bye leaves." in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        next_line(is_interactive=True)
    assert typed == []
    typed += [KeyboardInterrupt, "never read"]
    with pytest.raises(KeyboardInterrupt):
        next_line(is_interactive=False)


def test_a_line_that_is_no_text_is_refused_in_words_and_a_terminal_asks_again(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hall\xf6\n"), encoding="utf-8"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        next_line(is_interactive=False)
    said = iter([UnicodeDecodeError("utf-8", b"\xf6", 0, 1, "invalid start byte"), "Hello"])

    def typed(prompt):
        if isinstance(one := next(said), UnicodeDecodeError):
            raise one
        return one

    monkeypatch.setattr("builtins.input", typed)
    assert next_line(is_interactive=True) == "Hello"
    assert "Write the line again" in capsys.readouterr().err


CHILD = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C in this terminal is for this process
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell's background job starts may ignore it
from playhead.cli.screen import Screen
show = Screen.show
def marked(screen, text):
    show(screen, text)
    if text.strip():
        show(screen, "<begun>")
        while True:  # a call that waits could miss a signal that came just before it
            pass
Screen.show = marked
from playhead.cli.entry import main
main()
"""


def test_a_terminal_has_history_and_ctrl_c_stops_an_answer(model, tmp_path):
    """Each answer stops at its first word, by Ctrl-C; the second line is the first one, by the arrow key."""
    master, slave = os.openpty()
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    args = ["chat", "-m", model, "--max-model-len", "256", "--enforce-eager", "--seed", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *args],
        env=env,
        cwd=tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    screen = ""

    def read_until(text: str) -> None:
        nonlocal screen
        while text not in screen:
            screen += os.read(master, 4096).decode()
        screen = screen.split(text, 1)[1]

    for typed in (b"Hello there\n", b"\x1b[A\n"):
        read_until("> ")
        os.write(master, typed)
        read_until("<begun>")
        os.write(master, b"\x03")
        read_until("[stopped]")
    read_until("> ")
    os.write(master, b"/save talk.json\n")
    read_until("saved to talk.json")
    read_until("> ")
    os.write(master, b"\x04")
    assert process.wait() == 0
    os.close(master)
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [one["role"] for one in saved] == ["user", "assistant", "user", "assistant"]
    assert [one["content"] for one in saved[::2]] == ["Hello there", "Hello there"]
    assert all(one["content"].strip() for one in saved[1::2])
    history = Path(tmp_path / "playhead" / "chat_history")
    assert history.read_text().splitlines()[-1] == "/save talk.json"
    assert history.stat().st_mode & 0o077 == 0
