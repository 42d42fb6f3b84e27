"""SentencePiece vocabularies of GGUF files give the ids that SentencePiece and the tokenizers library give."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playhead.errors import CheckpointError, UnsupportedModelError
from playhead.models.text import gguf_sentencepiece
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from tests.unit.models.text.vocabularies import byte_fallback

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["ab", "bc", "abc", "▁a", "▁ab", "ca", "bca", "▁▁", "▁▁▁", "▁abc", "cc", "é", "▁é"]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "c", *WORDS, "<tool>", "  x"]
TYPES = [2, 3, 3, *[6] * 256, *[1] * (4 + len(WORDS)), 4, 4]
# The order in which pieces are merged is not the order of their ids.
SCORES = [0.0] * 263 + [-float((7 * i) % len(WORDS)) for i in range(len(WORDS))] + [0.0, 0.0]


def metadata(**changes):
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.scores": SCORES,
        "tokenizer.ggml.add_space_prefix": False,
    }
    return {**values, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}


def sentencepiece_ids(text):
    """SentencePiece in its own words: while two neighbours make a piece, merge those that make the best one."""
    ids = {token: i for i, token in enumerate(TOKENS) if TYPES[i] == 1}
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [(-SCORES[ids[a + b]], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in ids]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    found = []
    for part in parts:
        found += [ids[part]] if part in ids else [TOKENS.index(f"<0x{byte:02X}>") for byte in part.encode()]
    return found


@given(text=st.text(alphabet="abc é日", max_size=24))
def test_pieces_are_merged_as_sentencepiece_merges_them(text):
    tokenizer = tokenizer_from_gguf(metadata())
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == sentencepiece_ids(text)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("adds_space", [True, False])
@pytest.mark.parametrize("text", ["hi hi", " hi", "日本 hi\n", "", "ohio  hill"])
def test_the_ids_are_those_of_the_same_tokenizer_in_the_library(adds_space, text):
    """Llama 2's tokenizer.json puts a space in front, Gemma's does not."""
    theirs = byte_fallback(strips_first_space=adds_space)
    tokens = sorted(theirs.get_vocab(), key=theirs.get_vocab().get)
    ours = tokenizer_from_gguf(
        metadata(
            tokens=tokens,
            token_type=[2, *[6] * 256, *[1] * (len(tokens) - 257)],
            scores=[-float(i) for i in range(len(tokens))],
            add_space_prefix=adds_space,
        )
    )
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, add_special_tokens=False) == ids
    assert ours.decode(ids) == theirs.decode(ids) == text


def test_a_prompt_begins_with_bos_unless_the_file_says_otherwise():
    a = TOKENS.index("a")
    assert tokenizer_from_gguf(metadata()).encode("a", add_special_tokens=True) == [1, a]
    assert tokenizer_from_gguf(metadata(add_bos_token=False)).encode("a", add_special_tokens=True) == [a]
    assert tokenizer_from_gguf(metadata()).special.eos_ids == {2}


def test_tokens_that_the_file_defines_are_found_before_anything_is_merged():
    tokenizer = tokenizer_from_gguf(metadata())
    tool, spaced = TOKENS.index("<tool>"), TOKENS.index("  x")
    assert tokenizer.encode("a<tool>  x", add_special_tokens=False) == [TOKENS.index("a"), tool, spaced]
    assert tokenizer.decode([spaced]) == "  x"


def test_a_turn_ends_with_a_token_that_chat_formats_end_with():
    """Phi 3's files name <|endoftext|> alone, and its turns end with <|end|>."""
    tokens = [*TOKENS[:-2], "<|end|>", "<|endoftext|>"]
    tokenizer = tokenizer_from_gguf(metadata(tokens=tokens, token_type=[*TYPES[:-2], 4, 3]))
    assert tokenizer.special.eos_ids == {2, len(tokens) - 2, len(tokens) - 1}
    assert tokenizer.decode([TOKENS.index("a"), len(tokens) - 2]) == "a"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scores": None}, "scores"),
        ({"scores": [0.0]}, "scores"),
        ({"scores": ["x"] * len(TOKENS)}, "scores"),
        ({"scores": [float("nan")] * len(TOKENS)}, "scores"),
        ({"tokens": [*TOKENS[:-1], "x" * 200], "token_type": [*TYPES[:-1], 1]}, "200 characters"),
    ],
)
def test_a_damaged_vocabulary_is_refused(change, says):
    with pytest.raises(CheckpointError, match=says):
        tokenizer_from_gguf(metadata(**change))


@pytest.mark.parametrize(("limit", "value"), [("MAX_CHARS", 10), ("MAX_MERGES", 1)])
def test_a_vocabulary_that_would_take_too_long_is_refused(monkeypatch, limit, value):
    monkeypatch.setattr(gguf_sentencepiece, limit, value)
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.tokens"):
        tokenizer_from_gguf(metadata())


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(UnsupportedModelError, match="unknown_token_id"):
        tokenizer_from_gguf(metadata(unknown_token_id=len(TOKENS)))
