"""`playhead doctor MODEL` lists what is wrong with a checkpoint, all of it, and loads nothing."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from playhead.cli.main import app
from playhead.models.checkpoint.safetensors_file import SafetensorsFile
from playhead.models.checkup import Checkup
from playhead.testing import hostile_base as base


def problems_of(directory, files, model="."):
    base.write_files(directory, files)
    return Checkup(directory / model).run()


def gguf(**metadata):
    return {"m.gguf": base.gguf_bytes({**base.gguf_metadata(), **metadata}, base.gguf_tensors())}


def test_a_sound_checkpoint_has_no_problems_whatever_its_form(tmp_path):
    for i, (files, model) in enumerate([(base.base_files(), "."), (base.sharded_files(), "."), (gguf(), "m.gguf")]):
        directory = tmp_path / str(i)
        directory.mkdir()
        assert problems_of(directory, files, model) == []


def test_everything_wrong_is_listed_at_once(tmp_path):
    tensors = base.random_weights(base.CONFIG)
    del tensors["model.norm.weight"]
    files = base.base_files() | {
        base.SINGLE: base.safetensors(tensors),
        "generation_config.json": base.dumped({"top_p": 7}),
        "tokenizer_config.json": base.dumped({"bos_token": "<nope>", "chat_template": "{{ 1 / 0 }}"}),
        base.INDEX: base.dumped({"weight_map": {"other": "a.safetensors"}}),
    }
    found = "\n".join(problems_of(tmp_path, files))
    for part in ("missing: model.norm.weight", "top_p", "'<nope>'", "ZeroDivisionError", base.INDEX):
        assert part in found, part


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config.json": base.dumped({**base.CONFIG, "rms_norm_eps": 0, "sliding_window": -1})}, "rms_norm_eps"),
        ({"config.json": base.dumped({**base.CONFIG, "rms_norm_eps": 0, "sliding_window": -1})}, "sliding_window"),
        ({"config.json": b"{"}, "config.json"),
        ({"tokenizer.json": b"{}"}, "tokenizer.json"),
        ({"generation_config.json": base.dumped({"eos_token_id": 9999})}, "the end id 9999"),
        ({base.SINGLE: b"xx"}, base.SINGLE),
        ({"config.json": base.dumped({**base.CONFIG, "vocab_size": 200})}, "[0, 200)"),
    ],
)
def test_a_problem_of_one_file_is_found(tmp_path, change, says):
    assert says in "\n".join(problems_of(tmp_path, base.base_files() | change))


def test_every_shard_that_is_missing_or_damaged_is_named(tmp_path):
    files = base.sharded_files()
    first, second = sorted(name for name in files if name.endswith(".safetensors"))
    del files[first]
    files[second] = b"xx"
    found = "\n".join(problems_of(tmp_path, files))
    assert f"{first}: no such file" in found
    assert second in found


def test_a_gguf_file_is_looked_at_too(tmp_path):
    found = problems_of(tmp_path, gguf(**{"tokenizer.ggml.eos_token_id": (base.U32, 9999)}), "m.gguf")
    assert any("9999" in problem for problem in found)
    assert problems_of(tmp_path, {"x.gguf": b"GGUF"}, "x.gguf")


def test_no_weight_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(SafetensorsFile, "read", lambda *args: pytest.fail("weights"))
    assert problems_of(tmp_path, base.base_files()) == []


def test_the_exit_status_says_whether_something_is_wrong(tmp_path):
    base.write_files(tmp_path, base.base_files())
    good = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert (good.exit_code, "nothing wrong found" in good.stdout) == (0, True)
    (tmp_path / "config.json").write_text(json.dumps({**base.CONFIG, "hidden_size": 0}))
    bad = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert bad.exit_code == 1
    assert "hidden_size" in bad.stdout
    assert CliRunner().invoke(app, ["doctor", "no such model"]).exit_code == 2
