"""What is cheap to check is checked before weights are read."""

from __future__ import annotations

import shutil

import pytest

from playhead.engine.build import resolve_model_name
from playhead.errors import CheckpointError
from playhead.llm import LLM


def test_a_tokenizer_that_cannot_be_used_is_refused_before_weights_are_read(tmp_path, monkeypatch):
    model = tmp_path / "model"
    shutil.copytree(resolve_model_name("embedded"), model)
    (model / "tokenizer.json").write_text("{}")

    def refuse(*args, **kwargs):
        raise AssertionError("weights were read")

    monkeypatch.setattr("playhead.engine.build.load_weights", refuse)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        LLM(str(model))
