"""Text comes out in whole characters, and all of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders

from playhead.errors import UnsupportedModelError
from playhead.models.text.detokenize import IncrementalDetokenizer, TokenBytes
from playhead.models.text.ids_only import IdsOnlyTokenizer
from tests.counting import executed_lines
from tests.unit.models.text.vocabularies import byte_fallback, byte_level, metaspace

BACKENDS = {
    "byte-level": byte_level(),
    "byte-fallback": byte_fallback(strips_first_space=False),
    "byte-fallback-strip": byte_fallback(strips_first_space=True),
    "metaspace": metaspace(),
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


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "metaspace"])
@settings(max_examples=200)
@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=40))
def test_text_survives_the_way_through_tokens(name, text):
    """All but the mark SentencePiece writes for a space, which no tokenizer of its kind gives back."""
    backend = BACKENDS[name]
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
    for i, token_id in enumerate(ids):
        spelled += token_bytes.of(token_id, is_first=i == 0)
        raw = spelled.removeprefix(b" ") if token_bytes.rules.num_stripped else spelled
        given_out += detokenizer.feed([token_id])
        assert raw.decode(errors="replace").rstrip("\ufffd") == given_out.rstrip("\ufffd")
        assert 0 <= len(raw.decode(errors="replace")) - len(given_out) <= 3, "held longer than a character"


def ids_of(backend, *tokens):
    return [backend.token_to_id(token) for token in tokens]


def streamed_after(backend, prompt_ids, ids):
    detokenizer = IncrementalDetokenizer(TokenBytes(backend), prompt_ids=prompt_ids)
    return "".join(detokenizer.feed([token_id]) for token_id in ids) + detokenizer.finish()


@pytest.mark.parametrize(
    ("name", "prompt", "answer"),
    [("metaspace", ["▁hello"], ["▁world"]), ("byte-fallback-strip", ["▁hi"], ["▁hi"])],
)
def test_the_first_word_of_an_answer_keeps_the_space_between_it_and_the_prompt(name, prompt, answer):
    backend = BACKENDS[name]
    prompt_ids, ids = ids_of(backend, *prompt), ids_of(backend, *answer)
    assert streamed_after(backend, prompt_ids, ids) == answer[0].replace("▁", " ")
    assert streamed_after(backend, [], ids) == answer[0].removeprefix("▁")


def test_special_tokens_alone_are_no_text_before_the_answer():
    backend = BACKENDS["metaspace"]
    start, hello = ids_of(backend, "<s>", "▁hello")
    skipping = IncrementalDetokenizer(TokenBytes(backend), skipped_ids=[start], prompt_ids=[start])
    showing = IncrementalDetokenizer(TokenBytes(backend), prompt_ids=[start])
    assert (skipping.feed([hello]), showing.feed([hello])) == ("hello", " hello")


def test_a_character_that_begins_in_the_prompt_ends_in_the_answer():
    backend = BACKENDS["byte-fallback"]
    first, second, third = backend.encode("日").ids
    assert streamed_after(backend, [first, second], [third]) == "日"


@settings(max_examples=400)
@given(data=st.data())
def test_prompt_and_streamed_answer_together_are_the_text_of_all_tokens(data, backend):
    """Wherever the tokens are divided, though a character may be divided too."""
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=30))
    at = data.draw(st.integers(0, len(ids)))
    token_bytes = TokenBytes(backend)
    before = IncrementalDetokenizer(token_bytes)
    prompt_text = before.feed(ids[:at])  # without finish: an open character is the answer's
    assert prompt_text + streamed_after(backend, ids[:at], ids[at:]) == "".join(pieces_of(backend, ids))


@settings(max_examples=200)
@given(data=st.data())
def test_all_tokens_give_what_the_library_gives(data, backend):
    """Left out are bytes that are no text, of which the library makes one U+FFFD each."""
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    whole = [[i] for i, token in enumerate(tokens) if token.isascii() and not token.startswith(("<0x8", "<0x9"))]
    whole = [ids for ids in whole if not re.match("<0x[A-F]", tokens[ids[0]])]
    whole += [backend.encode(char, add_special_tokens=False).ids for char in "é日🙂 ▁"]
    ids = [token_id for ids in data.draw(st.lists(st.sampled_from(whole), max_size=20)) for token_id in ids]
    assert "".join(pieces_of(backend, ids)) == backend.decode(ids, skip_special_tokens=False)


FUSED = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


@pytest.mark.parametrize(
    ("decoder", "found"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.CTC(), "CTC"),
        (decoders.Strip(" ", 1, 0), "Strip"),
        (decoders.Sequence([*FUSED, decoders.Strip(" ", 1, 1)]), r"Strip.*stop=1"),
        (decoders.Sequence([*FUSED, decoders.Strip(" ", 1, 0), decoders.Strip(" ", 1, 0)]), "after Strip"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]), "after Fuse"),
        (decoders.Sequence([*FUSED, decoders.Metaspace()]), "after Fuse"),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("h")]), "after ByteFallback"),
        (decoders.Sequence([*FUSED, decoders.ByteFallback()]), "ByteFallback"),
        (decoders.Sequence([decoders.Replace(Regex("a+"), "b"), decoders.Fuse()]), "Regex"),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Replace("a", "b")]), "beside ByteLevel"),
    ],
)
def test_a_decoder_that_does_something_else_is_refused(decoder, found):
    """By its parameters too: a Strip at the end of the text would take back what was given out."""
    backend = byte_level()
    backend.decoder = decoder
    with pytest.raises(UnsupportedModelError, match=rf"{found}.*ByteLevel"):
        TokenBytes(backend)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([*FUSED, decoders.Strip(" ", 3, 0)]),
        decoders.Sequence([decoders.Sequence(FUSED), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Replace("h", "▁"), decoders.Replace("▁", " "), decoders.Fuse()]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("▁", "first")]),
        decoders.Metaspace("▁", "never"),
        decoders.Metaspace("i", "always"),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " ")]),
    ],
)
@settings(max_examples=100)
@given(data=st.data())
def test_the_parameters_of_a_decoder_are_obeyed(decoder, data):
    """Without bytes above 0x7f: those the library gives back as characters of their own."""
    backend = byte_fallback(strips_first_space=False)
    backend.decoder = decoder
    usable = [i for i in range(backend.get_vocab_size()) if not 0x80 <= i - 1 <= 0xFF]
    ids = data.draw(st.lists(st.sampled_from(usable), max_size=12))
    wanted = backend.decode(ids, skip_special_tokens=False)
    assert "".join(pieces_of(backend, ids)) == wanted


def test_a_detokenizer_takes_as_many_steps_after_a_long_prompt_as_after_a_short_one():
    """A prompt of ids that have no text must not be searched to its beginning."""
    tokenizer = IdsOnlyTokenizer()
    few, many = (
        executed_lines(lambda n=n: tokenizer.detokenizer(prompt_ids=range(n)).feed([5])) for n in (100, 10_000)
    )
    assert many == few
