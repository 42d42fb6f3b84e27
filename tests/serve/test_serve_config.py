"""Settings of a server: from flags, from a file, and what is said about wrong ones."""

from __future__ import annotations

import pytest

from playhead.errors import ConfigError
from playhead.serve.config import Processes, ServeConfig, merged


@pytest.fixture
def config_file(tmp_path):
    def written(text: str) -> str:
        (tmp_path / "serve.toml").write_text(text)
        return str(tmp_path / "serve.toml")

    return written


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(config_file):
    path = config_file('port = 1\nprocesses = "two"\nmax_body_bytes = "1MiB"\n[engine]\nmax_model_len = 64\nseed = 3\n')
    config, engine = merged(path, {"port": 2}, {"seed": 4})
    assert (config.port, config.processes, config.max_body_bytes, config.host) == (
        2,
        Processes.TWO,
        1 << 20,
        "127.0.0.1",
    )
    assert (engine.max_model_len, engine.seed) == (64, 4)


def test_a_file_may_set_what_one_request_may_ask_for(config_file):
    config, _ = merged(config_file("[limits]\nn = 4\nbias = 5\ntools = 0\n"), {}, {})
    assert (config.limits.n, config.limits.bias, config.limits.tools, config.limits.prompts) == (4, 5.0, 0, 64)


def test_a_file_may_call_engine_settings_as_other_engines_do(config_file):
    _, engine = merged(config_file("[engine]\ncontext_length = 64\n"), {}, {})
    assert engine.max_model_len == 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "Did you mean port?"),
        ("max_model_len = 64", r"put it into \[engine\]"),
        ("[engine]\nmax_modle_len = 64", "Did you mean max_model_len?"),
        ("engine = 1", "wanted a table"),
        ("limits = 1", r"wanted a table, \[limits\]"),
        ("[limits]\nnn = 1", r"config, \[limits\]: found 'nn'"),
        ("[limits]\nn = -1", "limits, n: found -1; wanted an integer from 0"),
        ("[limits]\nn = 1.5", "limits, n: found 1.5"),
        ("port = 70000", "port: found 70000; wanted an integer from 0 to 65535"),
        ("port = true", "port: found True"),
        ('port = "80"', "port: found '80'"),
        ("host = 1", "host: found 1"),
        ("drain_timeout = -1", "drain_timeout: found -1"),
        ("body_timeout = nan", "body_timeout: found nan"),
        ("log_format = 'xml'", "log_format: found 'xml'"),
        ("tool_format = 'xml'", "tool_format: found 'xml'"),
        ("allow_anyone = 1", "allow_anyone: found 1; wanted True or False"),
        ("port = ", "is not TOML"),
        ("[server]\nport = 1", "found 'server'"),
    ],
)
def test_a_file_with_a_wrong_setting_is_refused_by_name(config_file, text, words):
    with pytest.raises(ConfigError, match=words):
        merged(config_file(text), {}, {})


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        merged(str(tmp_path / "none.toml"), {}, {})


def test_the_defaults_are_those_of_the_table_of_limits():
    config = ServeConfig()
    assert (config.max_body_bytes, config.max_header_bytes, config.max_headers) == (8 << 20, 64 << 10, 100)
    assert (config.header_timeout, config.body_timeout) == (10, 30)
    assert (config.queue_timeout, config.request_timeout) == (60, 600)
