"""Tokens that the files beside tokenizer.json name, add or make special."""

from __future__ import annotations

import json

import pytest

from playhead.errors import CheckpointError
from playhead.models.text.tokenizer import tokenizer_from_directory
from tests.unit.models.text.vocabularies import byte_level

NEXT_ID = byte_level().get_vocab_size()


def tokenizer_with(directory, **files):
    byte_level().save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return tokenizer_from_directory(directory)


def added(content, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, **flags}


def test_the_names_of_an_older_checkpoint_are_in_their_own_file(tmp_path):
    tokenizer = tokenizer_with(
        tmp_path, tokenizer_config={"eos_token": "x"}, special_tokens_map={"bos_token": "h", "eos_token": added("hi")}
    )
    assert tokenizer.special.named == {"bos_token": "h", "eos_token": "hi"}
    assert tokenizer.special.eos_ids == {tokenizer.token_id("hi")}


def test_the_older_files_are_left_alone_where_the_config_lists_added_tokens(tmp_path):
    tokenizer = tokenizer_with(
        tmp_path,
        tokenizer_config={"eos_token": "<|end|>", "added_tokens_decoder": {}},
        special_tokens_map={"eos_token": "hi"},
        added_tokens={"<new>": NEXT_ID},
    )
    assert tokenizer.special.named == {"eos_token": "<|end|>"}
    assert not tokenizer.knows("<new>")


def test_every_named_token_is_known_by_its_name(tmp_path):
    config = {"pad_token": "<|end|>", "image_token": added("hi"), "add_bos_token": True, "bos_token": None}
    tokenizer = tokenizer_with(tmp_path, tokenizer_config=config | {"extra_special_tokens": {"boi_token": "h"}})
    assert tokenizer.special.named == {"pad_token": "<|end|>", "image_token": "hi", "boi_token": "h"}


@pytest.mark.parametrize(
    "config", [{"eos_token": "hi"}, {"additional_special_tokens": ["hi"]}, {"extra_special_tokens": ["hi"]}]
)
def test_a_special_token_among_ordinary_ones_is_taken_whole_and_left_out_of_text(tmp_path, config):
    """A file that has "<|im_end|>" as an ordinary token would show it to people."""
    hi = byte_level().token_to_id("hi")
    tokenizer = tokenizer_with(tmp_path, tokenizer_config=config)
    ids = tokenizer.encode("ahia", add_special_tokens=False)
    assert ids.count(hi) == 1
    assert tokenizer.decode(ids) == "aa"


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"added_tokens_decoder": {str(NEXT_ID): added("<new>", special=True)}}},
        {"added_tokens": {"<new>": NEXT_ID}, "special_tokens_map": {"pad_token": "<new>"}},
    ],
)
def test_a_token_that_a_file_adds_has_the_files_id_and_flags(tmp_path, files):
    tokenizer = tokenizer_with(tmp_path, **files)
    assert tokenizer.encode("a<new>", add_special_tokens=False)[1:] == [NEXT_ID]
    assert tokenizer.decode([NEXT_ID]) == ""


def test_the_config_says_which_added_tokens_are_special(tmp_path):
    end = byte_level().token_to_id("<|end|>")
    config = {"added_tokens_decoder": {str(end): added("<|end|>", special=False)}}
    assert tokenizer_with(tmp_path, tokenizer_config=config).decode([end]) == "<|end|>"


def test_a_named_token_without_an_id_changes_no_text(tmp_path):
    tokenizer = tokenizer_with(tmp_path, tokenizer_config={"pad_token": "[PAD]"})
    assert tokenizer.vocab_size == NEXT_ID
    assert tokenizer.special.named == {"pad_token": "[PAD]"}


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"tokenizer_config": {"added_tokens_decoder": {str(NEXT_ID + 1): added("<new>")}}}, "'<new>' with id"),
        ({"added_tokens": {"<new>": NEXT_ID + 7}}, "'<new>' with id"),
        ({"tokenizer_config": {"added_tokens_decoder": []}}, "added_tokens_decoder"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": added("<new>")}}}, "added_tokens_decoder"),
        ({"tokenizer_config": {"added_tokens_decoder": {"1": "<new>"}}}, "added_tokens_decoder"),
        ({"tokenizer_config": {"bos_token": added("h", lstrip="no")}}, "lstrip"),
        ({"special_tokens_map": {"bos_token": "\ud800"}}, r"special_tokens_map\.json, key 'bos_token'"),
        ({"added_tokens": {"<new>": -1}}, r"added_tokens\.json, key '<new>'"),
        ({"added_tokens": {"<new>": True}}, r"added_tokens\.json, key '<new>'"),
        ({"added_tokens": {"\ud800": NEXT_ID}}, r"added_tokens\.json"),
    ],
)
def test_a_token_that_cannot_be_is_refused_by_file_and_key(tmp_path, files, match):
    with pytest.raises(CheckpointError, match=match):
        tokenizer_with(tmp_path, **files)
