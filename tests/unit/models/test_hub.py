"""Names become places on this machine."""

from __future__ import annotations

import pytest

from playhead.models.errors import CheckpointError
from playhead.models.hub import resolve_model


def test_a_directory_is_itself(tmp_path):
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_gguf_file_is_itself(tmp_path):
    path = tmp_path / "m.gguf"
    path.touch()
    assert resolve_model(str(path)) == path


@pytest.mark.parametrize("name", ["nowhere", "../up", "a/b/c", "owner/na me", "-x/y"])
def test_a_name_that_is_neither_path_nor_hub_id_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="owner/name"):
        resolve_model(name)


def test_another_kind_of_file_is_refused(tmp_path):
    path = tmp_path / "weights.bin"
    path.touch()
    with pytest.raises(CheckpointError, match="directory"):
        resolve_model(str(path))


def test_offline_without_a_cached_copy_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="give their directory"):
        resolve_model("playhead-tests/does-not-exist")
