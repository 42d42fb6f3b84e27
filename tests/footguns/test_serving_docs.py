"""The tables of `docs/serving.md` are what the code says, and the page names no flag or field that there is not."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from playhead.serve.config import SERVE_SETTINGS, merged
from playhead.serve.protocol.chat import ChatRequest
from playhead.serve.tools import FORMAT_NAMES
from tools import serving_tables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()


@pytest.mark.parametrize("name", sorted(serving_tables.TABLES))
def test_a_table_is_what_the_code_says(name):
    on_page = {found[2]: found[3] for found in serving_tables.MADE.finditer(PAGE)}
    assert on_page[name] == serving_tables.TABLES[name](), "run python tools/serving_tables.py"


def test_every_table_that_can_be_made_is_on_the_page():
    assert sorted(found[2] for found in serving_tables.MADE.finditer(PAGE)) == sorted(serving_tables.TABLES)


def test_every_flag_that_the_page_speaks_of_exists():
    known = {declared.flag for declared in SERVE_SETTINGS} | {"--config", "--help"}
    engine = {"--max-model-len", "--dtype", "--kv-memory-bytes"}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known | engine


def test_the_configuration_file_of_the_page_is_read(tmp_path):
    (block,) = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    tomllib.loads(block)
    (tmp_path / "serve.toml").write_text(block)
    config, engine = merged(str(tmp_path / "serve.toml"), {}, {})
    assert (config.port, engine.max_model_len) == (8080, 8192)


def test_every_format_has_a_row_that_says_what_is_supported():
    rows = re.findall(
        r"^\| ((?:`[a-z0-9-]+`(?:, )?)+) \| .* \| .* \|$", PAGE.partition("| format | found by")[2], re.MULTILINE
    )
    assert [name for row in rows for name in re.findall(r"`([^`]+)`", row)][: len(FORMAT_NAMES)] == list(FORMAT_NAMES)


def test_the_fields_that_the_page_names_are_fields_of_a_chat():
    (listed,) = re.findall(r"Fields that OpenAI does not have stand in the body.*?: (.*?)\. Names", PAGE, re.DOTALL)
    assert set(re.findall(r"`([a-z_]+)`", listed)) <= set(ChatRequest.__struct_fields__)
