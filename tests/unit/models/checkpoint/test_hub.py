"""Names become places on this machine."""

from __future__ import annotations

import pytest
from huggingface_hub.utils import filter_repo_objects

from playhead.errors import CheckpointError
from playhead.models.checkpoint.hub import resolve_model


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
    with pytest.raises(CheckpointError, match=r"HF_HUB_OFFLINE is set .* give its path; .* HF_HOME .* HF_ENDPOINT"):
        resolve_model("playhead-tests/does-not-exist")


def test_only_files_that_are_read_are_fetched(tmp_path, monkeypatch):
    """Some repositories hold their weights three times: as shards, in the authors' layout, and for other engines."""
    asked = {}
    monkeypatch.setattr("playhead.models.checkpoint.hub.can_reach", lambda url: False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda model, **rest: asked.update(rest) or tmp_path)
    resolve_model("owner/name")
    wanted = ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "chat_template.jinja"]
    wanted += ["model.safetensors.index.json", "generation_config.json", "additional_chat_templates/tool_use.jinja"]
    unwanted = ["original/params.json", "original/model.safetensors", "original/consolidated.00.pth"]
    unwanted += ["consolidated.safetensors", "consolidated-00001-of-00002.safetensors", "metal/model.bin"]
    unwanted += ["pytorch_model.bin", "model.pt", "modeling_custom.py", "onnx/config.json", "a/b/chat_template.jinja"]
    patterns = {name: asked[name] for name in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects(wanted + unwanted, **patterns)) == wanted
