"""A matcher follows an answer and says what may follow: by brute force over the tiny vocabulary."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from playhead.errors import PlayheadError
from playhead.grammar import compiler
from playhead.grammar import matcher as matcher_module
from playhead.grammar.compiler import GrammarCompiler
from playhead.grammar.matcher import Matcher, OtherRules, bit, mask_of, num_words, num_words_left
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.structured import END, TEXTS, VOCAB_SIZE, tiny_grammars, tiny_vocabulary
from playhead.testing.structured_mutants import check_interrupted_matcher

CHOICES = ("abc", "abd", "yes", "1200")


def matcher_of(rules: OtherRules | None = None, **fields) -> Matcher:
    return Matcher(tiny_grammars().compile(StructuredOutputs(**fields)), rules)


def allowed(matcher: Matcher, output: list[int]) -> tuple[bool, set[int]]:
    mask = np.full(num_words(VOCAB_SIZE), -1, dtype=np.int32)
    matcher.follow(output)
    matcher.write_mask(mask.ctypes.data, mask.nbytes)
    num_left = matcher.restrict(output, mask)
    assert num_left == min(2, np.count_nonzero(mask))
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return num_left > 0, set(np.flatnonzero(bits).tolist())


def ids(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


@pytest.mark.parametrize("output", [[], ids("a"), ids("ab"), ids("a", "b"), ids("abc"), ids("yes"), ids("12", "0")])
def test_a_mask_has_the_tokens_that_some_choice_goes_on_with(output):
    text = "".join(TEXTS[token] for token in output)
    wanted = {
        token for token, more in enumerate(TEXTS) if more and any(choice.startswith(text + more) for choice in CHOICES)
    }
    wanted |= {END} if text in CHOICES else set()
    assert allowed(matcher_of(choice=list(CHOICES)), output) == (True, wanted)


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [([], 0), ([0], 1), ([0, 31], 1), ([32, 40, 63], 1), ([31, 32], 2), ([24, 40], 2), ([0, 32], 2), ([5, 95], 2)],
)
def test_words_with_a_bit_are_counted_up_to_two(ids, wanted):
    assert num_words_left(mask_of(ids, 96)) == wanted


def test_following_twice_changes_nothing():
    matcher = matcher_of(choice=["abc", "abd"])
    matcher.follow(ids("a", "b"))
    matcher.follow(ids("a", "b"))
    assert matcher.num_taken == 2
    assert allowed(matcher, ids("a", "b")) == (True, set(ids("c", "d")))


def test_tokens_that_were_taken_before_an_interrupt_are_not_taken_again():
    assert check_interrupted_matcher() == []


def test_answers_of_one_grammar_do_not_see_each_other():
    first, second = matcher_of(choice=["abc", "abd"]), matcher_of(choice=["abc", "abd"])
    first.follow(ids("ab"))
    assert allowed(first, ids("ab"))[1] == set(ids("c", "d"))
    assert allowed(second, [])[1] == set(ids("a", "ab", "abc"))


def answer_in_little_room(num_answers: int, num_at_once: int) -> None:
    """Random answers, each mask compared. Copies of a matcher share 40 states, and one answer finds almost as many."""
    grammar = GrammarCompiler(tiny_vocabulary).compile(StructuredOutputs(regex="[ab]*a[ab]{12}"))
    rng = random.Random(0)
    for _ in range(num_answers // num_at_once):
        matchers = [Matcher(grammar) for _ in range(num_at_once)]
        outputs: list[list[int]] = [[] for _ in matchers]
        for _ in range(12):
            for matcher, output in zip(matchers, outputs, strict=True):
                assert allowed(matcher, output) == (True, set(ids("a", "b", "ab"))), output
                output.append(rng.choice(ids("a", "b")))


@pytest.mark.parametrize("num_at_once", [1, 4])
def test_answers_go_on_when_others_have_used_up_the_room_for_states(monkeypatch, num_at_once):
    monkeypatch.setattr(compiler, "MAX_LEXER_STATES", 40)
    monkeypatch.setattr(matcher_module, "TOKENS_APART", 1)
    answer_in_little_room(24, num_at_once)


def test_an_answer_that_lacks_room_again_and_again_is_given_up(monkeypatch):
    """Every step would wait while the form is compiled once more."""
    monkeypatch.setattr(compiler, "MAX_LEXER_STATES", 40)
    with pytest.raises(PlayheadError, match="too many states"):
        answer_in_little_room(4, 4)


def test_an_answer_that_uses_up_the_room_alone_is_its_own_fault(monkeypatch):
    monkeypatch.setattr(compiler, "MAX_LEXER_STATES", 60)
    matcher = Matcher(GrammarCompiler(tiny_vocabulary).compile(StructuredOutputs(regex="[ab]*a[ab]{99}")))
    with pytest.raises(PlayheadError, match="too many states"):
        allowed(matcher, ids("a") * 60)


def test_a_token_that_the_grammar_does_not_allow_is_an_error_for_ever():
    matcher = matcher_of(choice=["abc"])
    with pytest.raises(PlayheadError, match="does not allow 1 more tokens"):
        matcher.follow(ids("z"))
    with pytest.raises(PlayheadError):
        allowed(matcher, ids("z"))


def test_other_rules_take_tokens_away():
    rules = OtherRules(allowed_ids=tuple(ids("a", "b", "c", "ab")), bad_words=((*ids("a", "b"),), (*ids("ab"),)))
    matcher = matcher_of(rules, regex="[abc]*")
    assert allowed(matcher, []) == (True, set(ids("a", "b", "c")))
    assert allowed(matcher, ids("a")) == (True, set(ids("a", "c")))
    assert allowed(matcher, ids("a", "c")) == (True, set(ids("a", "b", "c")))


def test_an_end_waits_for_min_tokens():
    matcher = matcher_of(OtherRules(ending_ids=frozenset({END}), min_tokens=2), regex="a*")
    assert END not in allowed(matcher, ids("a"))[1]
    assert END in allowed(matcher, ids("a", "a"))[1]


def test_nothing_left_is_said():
    matcher = matcher_of(OtherRules(ending_ids=frozenset({END}), min_tokens=9), choice=["yes"])
    assert allowed(matcher, []) == (True, set(ids("yes")))  # a text without a choice is cut in one way
    assert allowed(matcher, ids("yes")) == (False, set())


def forced_by(*, can_force: bool = True, **fields) -> list[int]:
    matcher = Matcher(tiny_grammars().compile(StructuredOutputs(**fields)), can_force=can_force)
    mask = np.full(num_words(VOCAB_SIZE), -1, dtype=np.int32)
    matcher.write_mask(mask.ctypes.data, mask.nbytes)
    return matcher.forced(mask)


def test_forced_tokens_are_how_the_tokenizer_cuts_the_only_text():
    assert forced_by(choice=["abc"]) == ids("abc")
    assert forced_by(regex="12-[0-9]") == ids("12", "-")
    assert forced_by(choice=["yes", "no"]) == []
    assert forced_by(choice=["abc"], can_force=False) == []


def test_bits_of_ids():
    assert [int(bit(token)) for token in (0, 1, 31, 32)] == [1, 2, -(2**31), 1]
    assert mask_of([0, 31, 33], 64).tolist() == [-(2**31) + 1, 2]
    assert [num_words(size) for size in (1, 32, 33, 4096)] == [1, 1, 2, 128]


@pytest.mark.parametrize(
    "choice", ['a"b', "a\\b", "a\nb", "日本", "a/b", "%json {}", "start: x", "\t", "(?i)x", "<eos>"]
)
def test_a_choice_may_have_any_characters(choice):
    """What a grammar's syntax reads as its own is text here."""
    from llguidance import LLMatcher

    grammar = tiny_grammars().compile(StructuredOutputs(choice=[choice, "zz"]))
    state: LLMatcher = grammar.start()[0]
    forced = state.compute_ff_bytes()
    assert forced == b""
    first = choice.encode()[:1]
    tokens = [i for i, text in enumerate(TEXTS) if text.encode() == first]
    if tokens and re.fullmatch("[a-z]", first.decode()):
        assert state.consume_token(tokens[0])
        assert state.compute_ff_bytes() == choice.encode()[1:]
