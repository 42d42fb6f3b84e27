"""`EngineConfig.chat_template`: a file or a text in the place of the model's own template."""

from __future__ import annotations

import pytest

from playhead.engine.config import EngineConfig
from playhead.engine.tokenizer_files import resolve_model_name, tokenizer_at
from playhead.env import user_path
from playhead.errors import CheckpointError, ConfigError
from playhead.models.text import tokenizer as files

SOURCE = "{% for message in messages %}{{ message.content }}{% endfor %}"
EMBEDDED = user_path(resolve_model_name("embedded"))


def template(given: str | None, **settings: object) -> tuple[str | None, tuple[str, ...]]:
    made = tokenizer_at(EMBEDDED, EngineConfig(chat_template=given, **settings))
    assert made.tool_template is None
    return made.chat_template, made.chat_stops


def test_a_file_or_a_text_takes_the_place_of_the_models_own(tmp_path):
    """With the stop strings that belong to the model's."""
    path = tmp_path / "chat.jinja"
    path.write_text(SOURCE, encoding="utf-8")
    own, stops = template(None)
    assert own not in (None, SOURCE)
    assert stops
    assert template(str(path)) == template(SOURCE) == (SOURCE, ())


def test_a_model_without_text_has_no_template():
    assert template(SOURCE, skip_tokenizer_init=True) == (None, ())


def test_a_file_that_is_not_there_or_is_no_template_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "chat.jinja"
    with pytest.raises(ConfigError, match=r"chat_template: found no file '.*chat\.jinja'; wanted one, or Jinja source"):
        template(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="no UTF-8"):
        template(str(path))
    monkeypatch.setattr(files, "MAX_TEMPLATE_BYTES", 8)
    path.write_text(SOURCE, encoding="utf-8")
    with pytest.raises(CheckpointError, match="at most 8"):
        template(str(path))
