"""Tokenizers from files: ids, special tokens, templates."""

from __future__ import annotations

import json
import threading

import pytest

from playhead.errors import CheckpointError, RequestError, UnsupportedModelError
from playhead.models.text.detokenize import byte_level_table
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from playhead.models.text.tokenizer import tokenizer_from_directory
from tests.unit.models.text.vocabularies import byte_level, metaspace


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


@pytest.mark.parametrize(("content", "match"), [(b"{{ \xff }}", "no UTF-8"), (b"x" * (1 << 20 | 1), "1048577 bytes")])
def test_a_template_file_that_is_no_text_or_too_large_is_refused(tmp_path, content, match):
    write(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"chat_template\.jinja.*{match}"):
        tokenizer_from_directory(tmp_path)


def test_a_template_file_is_measured_before_it_is_read(tmp_path):
    write(tmp_path)
    with (tmp_path / "chat_template.jinja").open("wb") as file:
        file.truncate(1 << 40)  # sparse: takes no room on a disk, and more memory than there is
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        tokenizer_from_directory(tmp_path)


@pytest.mark.parametrize("name", [[], {}, None, 3, "\ud800"])
def test_a_template_whose_name_is_no_text_is_not_the_default_one(tmp_path, name):
    templates = [{"name": name, "template": "a"}, {"name": "default", "template": "b"}, {"template": "c"}, "d"]
    write(tmp_path, tokenizer_config={"chat_template": templates})
    assert tokenizer_from_directory(tmp_path).chat_template == "b"


def test_a_model_may_have_a_template_for_tools(tmp_path):
    """Command R and Hermes: the default template would leave tools out."""
    templates = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, {"name": "rag"}]
    write(tmp_path, tokenizer_config={"chat_template": templates})
    tokenizer = tokenizer_from_directory(tmp_path)
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("a", "b")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert tokenizer_from_directory(tmp_path).tool_template is None  # files of their own replace the config's
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("file for tools")
    assert tokenizer_from_directory(tmp_path).tool_template == "file for tools"


@pytest.mark.parametrize("key", ["bos_token", "eos_token"])
@pytest.mark.parametrize("value", ["\ud800", {"content": "a\udfff"}])
def test_a_special_token_with_half_a_character_is_refused(tmp_path, key, value):
    write(tmp_path, tokenizer_config={key: value})
    with pytest.raises(CheckpointError, match=rf"tokenizer_config\.json, key '{key}'"):
        tokenizer_from_directory(tmp_path)


def test_a_missing_tokenizer_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        tokenizer_from_directory(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        tokenizer_from_directory(tmp_path)


def edited(directory, edit, base=byte_level):
    """A tokenizer.json after `edit` has changed its table."""
    table = json.loads(base().to_str())
    edit(table)
    (directory / "tokenizer.json").write_text(json.dumps(table))
    return directory


TRUNCATION = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 40},
    "direction": "Left",
    "pad_to_multiple_of": 8,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "!",
}
PANICKING = {"type": "FixedLength", "length": 0}


@pytest.mark.parametrize("saved", [{"truncation": TRUNCATION}, {"padding": PADDING}])
def test_a_prompt_is_neither_cut_nor_padded_whatever_the_file_has_saved(tmp_path, saved):
    tokenizer = tokenizer_from_directory(edited(tmp_path, lambda table: table.update(saved)))
    text = "hi, whale!"
    assert tokenizer.encode(text, add_special_tokens=True) == byte_level().encode(text).ids


def test_merges_are_not_dropped_at_random(tmp_path):
    tokenizer = tokenizer_from_directory(edited(tmp_path, lambda table: table["model"].update(dropout=0.9)))
    text = "hi" * 20
    assert tokenizer.encode(text, add_special_tokens=True) == byte_level().encode(text).ids


def test_a_unigram_model_does_not_sample(tmp_path):
    def sample(table):
        table["model"].update(alpha=0.1, nbest_size=8)

    tokenizer = tokenizer_from_directory(edited(tmp_path, sample, metaspace))
    text = "hello world " * 10
    assert tokenizer.encode(text, add_special_tokens=False) == metaspace().encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": PANICKING},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////////////"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "l"}, "content": "x" * 1000}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 100}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<zz>", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
    ],
    ids=["panic in a part", "panic in the file", "growth", "many parts", "panic around the text"],
)
def test_a_tokenizer_the_library_panics_on_or_that_grows_text_is_refused_at_load(tmp_path, change):
    edited(tmp_path, lambda table: table.update(change))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        tokenizer_from_directory(tmp_path)


def test_a_text_the_library_panics_on_is_refused_alone(tmp_path):
    """A pattern that takes for ever on some texts: the library gives up, by a panic."""
    pattern = {"type": "Split", "pattern": {"Regex": "(q+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = tokenizer_from_directory(edited(tmp_path, lambda table: table.update(pre_tokenizer=pattern)))
    with pytest.raises(RequestError, match="fails on"):
        tokenizer.encode("q" * 60 + "!", add_special_tokens=False)
    assert tokenizer.encode("hi", add_special_tokens=False) == byte_level().encode("hi").ids


def test_a_tokenizer_of_too_many_values_is_refused_before_it_is_parsed(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b'{"model":[' + b"[]," * 4_000_000 + b"[]]}")
    with pytest.raises(CheckpointError, match="values"):
        tokenizer_from_directory(tmp_path)


class CountingBackend:
    """Encodes like a byte-level tokenizer and counts the characters it was given."""

    def __init__(self):
        self.inner, self.num_chars = byte_level(), 0

    def encode(self, text, add_special_tokens):
        self.num_chars += len(text)
        return self.inner.encode(text, add_special_tokens=add_special_tokens)


@pytest.fixture
def counted(tmp_path):
    tokenizer = tokenizer_from_directory(write(tmp_path))
    longest = tokenizer.longest_token_chars
    assert longest == len("<|end|>")
    tokenizer._backend = CountingBackend()
    return tokenizer


def test_a_prompt_that_no_tokens_could_hold_is_refused_without_encoding_any_of_it(counted):
    with pytest.raises(RequestError, match=r"10000000 characters; wanted at most 9 tokens of at most 7 .* 63"):
        counted.encode("x" * 10_000_000, add_special_tokens=True, max_context=10)
    assert counted._backend.num_chars == 0


def test_a_prompt_that_is_too_long_is_encoded_no_further_than_the_context(counted, monkeypatch):
    monkeypatch.setattr("playhead.models.text.tokenizer.USUAL_CHARS_PER_TOKEN", 2)
    monkeypatch.setattr("playhead.models.text.tokenizer.PART_CHARS", 100)
    with pytest.raises(
        RequestError, match="in the first 1200 of 6000 characters; wanted at most 999, which leaves one"
    ):
        counted.encode("x" * 6000, add_special_tokens=True, max_context=1000)
    assert counted._backend.num_chars == 1200


def test_a_long_prompt_that_fits_is_encoded_whole(counted, monkeypatch):
    monkeypatch.setattr("playhead.models.text.tokenizer.USUAL_CHARS_PER_TOKEN", 1)
    monkeypatch.setattr("playhead.models.text.tokenizer.PART_CHARS", 100)
    text = "hi" * 900
    assert counted.encode(text, add_special_tokens=True, max_context=1000) == byte_level().encode(text).ids


def test_of_a_text_that_is_cut_little_more_is_encoded_than_what_is_kept(counted, monkeypatch):
    monkeypatch.setattr("playhead.models.text.tokenizer.PART_CHARS", 100)
    text = "".join(f"hi {i} " for i in range(5000))
    end = counted.ending(text, 40)
    assert text.endswith(end)
    assert counted._backend.num_chars == len(end) == 200
    assert counted.encode(end, add_special_tokens=True)[-40:] == byte_level().encode(text).ids[-40:]
    assert counted.ending("hi", 40) == "hi"


def test_other_threads_run_while_a_long_text_is_encoded(tmp_path):
    """An event loop is one of them, and so are the steps of an engine in the same process."""
    tokenizer, text = tokenizer_from_directory(write(tmp_path)), "hi é " * 200_000
    begun, ended, num_turns = threading.Event(), threading.Event(), 0

    def turns():
        nonlocal num_turns
        while not ended.wait(0.001):
            num_turns += 1
            begun.set()

    other = threading.Thread(target=turns)
    other.start()
    begun.wait()
    num_before = num_turns
    ids = tokenizer.encode(text, add_special_tokens=True)
    num_meanwhile = num_turns - num_before
    ended.set()
    other.join()
    assert num_meanwhile > 5
    assert ids == byte_level().encode(text).ids


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


def test_gguf_metadata_may_have_a_template_for_tools():
    tokenizer = tokenizer_from_gguf(metadata() | {"tokenizer.chat_template.tool_use": "tools"})
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("plain", "tools")


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "smollm"])
@pytest.mark.parametrize("text", ["It's 12345 — naïve\n\n  日本語!", "", "   ", "a\tb"])
def test_every_known_way_to_cut_text_loses_nothing(pre, text):
    tokenizer = tokenizer_from_gguf(metadata(pre=pre))
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(("change", "key"), [({"model": "bert"}, "ggml.model"), ({"pre": "falcon"}, "ggml.pre")])
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


def ids_of(text, **changes):
    return tokenizer_from_gguf(metadata(bos_token_id=258, **changes)).encode(text, add_special_tokens=True)


def test_a_llama3_prompt_begins_with_bos_unless_the_file_says_otherwise():
    assert ids_of("hi", pre="llama-bpe") == [258, 256]
    assert ids_of("hi", pre="llama-bpe", add_bos_token=False) == [256]
    assert ids_of("hi", pre="smollm") == [256]
    assert ids_of("hi", pre="smollm", add_bos_token=True) == [258, 256]


def test_eos_follows_a_prompt_where_the_file_asks_for_it():
    assert ids_of("hi", add_eos_token=True) == [256, 257]
    assert ids_of("hi", add_eos_token=True, add_bos_token=True) == [258, 256, 257]


def test_what_a_chat_template_has_written_gets_no_second_bos():
    tokenizer = tokenizer_from_gguf(metadata(bos_token_id=258, add_bos_token=True))
    assert tokenizer.encode("hi", add_special_tokens=False) == [256]


def test_a_llama3_word_that_is_a_token_is_not_merged():
    """The word is in the vocabulary, and no merge leads to it."""
    bytes_in_order = [char for char, _ in sorted(byte_level_table().items(), key=lambda item: item[1])]
    word = {"tokens": [*bytes_in_order, "abc", "<|im_end|>", "<tool>"], "merges": []}
    word["merges"] = ["a b"]
    word["tokens"][-1] = "ab"
    word["token_type"] = [1] * 257 + [3, 1]
    assert ids_of("abc", pre="llama-bpe", add_bos_token=False, **word) == [256]
    assert ids_of("abc", pre="smollm", **word) == [258, ord("c")]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"add_bos_token": 1}, "add_bos_token"),
        ({"add_eos_token": "yes"}, "add_eos_token"),
        ({"eos_token_id": 259}, "eos_token_id"),
        ({"eot_token_id": -1}, "eot_token_id"),
        ({"bos_token_id": True}, "bos_token_id"),
        ({"add_bos_token": True}, "bos_token_id"),
        ({"add_sep_token": True}, "add_sep_token"),
        ({"precompiled_charsmap": [1]}, "precompiled_charsmap"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_vocabulary_key_that_cannot_be_obeyed_is_refused(change, key):
    with pytest.raises(UnsupportedModelError, match=rf"tokenizer\.ggml\.{key}"):
        tokenizer_from_gguf(metadata(**change))


def test_vocabulary_keys_of_other_kinds_change_nothing():
    assert ids_of("hi", add_space_prefix=True, remove_extra_whitespaces=True, unknown_token_id=3) == ids_of("hi")
