"""Tokenizers from files: ids, special tokens, templates."""

from __future__ import annotations

import json

import pytest

from playhead.models.errors import CheckpointError, UnsupportedModelError
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from playhead.models.text.token_bytes import byte_level_table
from playhead.models.text.tokenizer import tokenizer_from_directory
from tests.unit.models.text.vocabularies import byte_level


def write(directory, **files):
    byte_level().save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_a_directory_gives_ids_special_tokens_and_template(tmp_path):
    write(
        tmp_path,
        tokenizer_config={"eos_token": {"content": "<|end|>"}, "bos_token": None, "chat_template": "plain"},
        generation_config={"eos_token_id": [7, 8]},
    )
    tokenizer = tokenizer_from_directory(tmp_path)
    end = byte_level().token_to_id("<|end|>")
    assert tokenizer.special.eos_ids == {7, 8, end}
    assert tokenizer.special.special_ids == {end}
    assert (tokenizer.special.bos, tokenizer.special.eos, tokenizer.chat_template) == (None, "<|end|>", "plain")
    ids = tokenizer.encode("hi é<|end|>", add_special_tokens=False)
    assert ids[-1] == end
    assert tokenizer.decode(ids) == "hi é"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "hi é<|end|>"


def test_the_template_in_its_own_file_wins(tmp_path):
    write(tmp_path, tokenizer_config={"chat_template": [{"name": "default", "template": "config"}]})
    assert tokenizer_from_directory(tmp_path).chat_template == "config"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert tokenizer_from_directory(tmp_path).chat_template == "file"


def test_a_missing_tokenizer_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        tokenizer_from_directory(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        tokenizer_from_directory(tmp_path)


def metadata(**changes):
    bytes_in_order = sorted(byte_level_table().items(), key=lambda item: item[1])
    tokens = [char for char, _ in bytes_in_order] + ["hi", "<|im_end|>", "<tool>"]
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 257 + [3, 4],
        "tokenizer.ggml.merges": ["h i"],
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.chat_template": "plain",
    }
    return {**values, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}


def test_gguf_metadata_is_a_tokenizer():
    tokenizer = tokenizer_from_gguf(metadata())
    assert tokenizer.encode("hi<|im_end|>", add_special_tokens=False) == [256, 257]
    assert tokenizer.special.eos_ids == {257}
    assert tokenizer.decode([256, 257]) == "hi"
    assert tokenizer.encode("<tool>", add_special_tokens=False) == [258]
    assert tokenizer.vocab_size == 259


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "smollm"])
@pytest.mark.parametrize("text", ["It's 12345 — naïve\n\n  日本語!", "", "   ", "a\tb"])
def test_every_known_way_to_cut_text_loses_nothing(pre, text):
    tokenizer = tokenizer_from_gguf(metadata(pre=pre))
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(("change", "key"), [({"model": "llama"}, "ggml.model"), ({"pre": "falcon"}, "ggml.pre")])
def test_an_unknown_kind_of_tokenizer_is_refused(change, key):
    with pytest.raises(UnsupportedModelError, match=key):
        tokenizer_from_gguf(metadata(**change))


@pytest.mark.parametrize(
    "change",
    [{"tokens": None}, {"tokens": [1, 2]}, {"token_type": [1]}, {"merges": ["h nope"]}, {"merges": ["hi"]}],
)
def test_damaged_tokenizer_metadata_is_refused(change):
    with pytest.raises(CheckpointError):
        tokenizer_from_gguf(metadata(**change))
