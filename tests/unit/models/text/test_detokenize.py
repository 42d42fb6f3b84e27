"""Text comes out in whole characters, and all of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from playhead.models.errors import UnsupportedModelError
from playhead.models.text.detokenize import IncrementalDetokenizer
from playhead.models.text.token_bytes import TokenBytes
from tests.unit.models.text.vocabularies import byte_fallback, byte_level

BACKENDS = {
    "byte-level": byte_level(),
    "byte-fallback": byte_fallback(strips_first_space=False),
    "byte-fallback-strip": byte_fallback(strips_first_space=True),
}


@pytest.fixture(params=BACKENDS, scope="module")
def backend(request):
    return BACKENDS[request.param]


def pieces_of(backend, ids):
    detokenizer = IncrementalDetokenizer(TokenBytes(backend))
    return [detokenizer.feed([token_id]) for token_id in ids] + [detokenizer.finish()]


def test_a_character_waits_for_its_last_byte():
    ids = BACKENDS["byte-fallback"].encode("日").ids
    assert pieces_of(BACKENDS["byte-fallback"], ids) == ["", "", "日", ""]


def test_the_whole_part_of_a_token_that_ends_inside_a_character_is_not_held_back():
    backend = BACKENDS["byte-level"]
    ids = backend.encode(" é").ids
    assert len(ids) == 2, "the first token is a space and half a character"
    assert pieces_of(backend, ids) == [" ", "é", ""]


def test_an_unfinished_character_becomes_one_replacement_at_the_end():
    ids = BACKENDS["byte-fallback"].encode("日").ids[:2]
    assert pieces_of(BACKENDS["byte-fallback"], ids) == ["", "", "\ufffd"]


def test_bytes_that_are_no_character_do_not_hold_up_what_follows():
    backend = BACKENDS["byte-fallback"]
    ids = [backend.token_to_id("<0xFF>"), backend.token_to_id("<0xE6>"), backend.token_to_id("hi")]
    assert pieces_of(backend, ids) == ["\ufffd", "", "\ufffdhi", ""]


def test_skipped_tokens_leave_no_trace_inside_a_character():
    backend = BACKENDS["byte-level"]
    end = backend.token_to_id("<|end|>")
    first, second = backend.encode(" é").ids
    detokenizer = IncrementalDetokenizer(TokenBytes(backend), skipped_ids=[end])
    assert detokenizer.feed([first, end, second]) == " é"


def test_an_id_outside_the_vocabulary_is_no_text(backend):
    assert pieces_of(backend, [10**6]) == ["", ""]


@settings(max_examples=200)
@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=40))
def test_text_survives_the_way_through_tokens(backend, text):
    """All but the mark SentencePiece writes for a space, which no tokenizer of its kind gives back."""
    ids = backend.encode(text, add_special_tokens=False).ids
    assert "".join(pieces_of(backend, ids)) == text


@settings(max_examples=200)
@given(data=st.data())
def test_any_tokens_give_what_the_library_gives_at_once(data):
    """Byte-level decoding of the library is one UTF-8 decode of all bytes; ours must not depend on where it was cut."""
    backend = BACKENDS["byte-level"]
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=30))
    assert "".join(pieces_of(backend, ids)) == backend.decode(ids, skip_special_tokens=False)


@settings(max_examples=200)
@given(data=st.data())
def test_no_piece_is_taken_back_or_ends_inside_a_character(data, backend):
    """What was given out is a prefix of the decoded bytes, cut where a character ends."""
    token_bytes = TokenBytes(backend)
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=30))
    given_out = ""
    detokenizer, spelled = IncrementalDetokenizer(token_bytes), b""
    for token_id in ids:
        spelled += token_bytes.of(token_id)
        raw = spelled.removeprefix(b" ") if token_bytes.drops_first_space else spelled
        given_out += detokenizer.feed([token_id])
        assert raw.decode(errors="replace").rstrip("\ufffd") == given_out.rstrip("\ufffd")
        assert 0 <= len(raw.decode(errors="replace")) - len(given_out) <= 3, "held longer than a character"


def test_a_decoder_that_does_something_else_is_refused():
    backend = byte_level()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match=r"WordPiece.*ByteLevel"):
        TokenBytes(backend)
