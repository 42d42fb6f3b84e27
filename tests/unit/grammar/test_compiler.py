"""Forms become grammars: once for equal forms, within limits, refused in words that help."""

from __future__ import annotations

import builtins
import subprocess
import sys
import threading

import pytest

from playhead.engine.front import grammar_vocabulary
from playhead.errors import RequestError
from playhead.grammar import compiler
from playhead.grammar.compiler import MAX_CACHED, GrammarCompiler
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.structured import longest_tokens_first, tiny_grammars, tiny_vocabulary


def form(**fields) -> StructuredOutputs:
    return StructuredOutputs(**fields)


def test_equal_forms_are_compiled_once():
    grammars = GrammarCompiler(tiny_vocabulary)
    first = grammars.compile(form(regex="[ab]+"))
    assert grammars.compile(form(regex="[ab]+")) is first
    assert grammars.compile(form(regex="[abc]+")) is not first
    assert grammars.num_compiled == 2


def test_the_oldest_form_is_forgotten_first():
    grammars = GrammarCompiler(tiny_vocabulary)
    kept = grammars.compile(form(regex="a"))
    for i in range(MAX_CACHED):
        grammars.compile(form(regex="a"))
        grammars.compile(form(regex=f"a{{{i + 2}}}"))
    assert grammars.compile(form(regex="a")) is kept
    assert len(grammars._cache) == MAX_CACHED
    assert form(regex="a{2}") not in grammars._cache


def test_a_refusal_is_remembered_too():
    grammars = GrammarCompiler(tiny_vocabulary)
    for _ in range(2):
        with pytest.raises(RequestError, match="'regex'"):
            grammars.compile(form(regex="(?=a)b"))
    assert grammars.num_compiled == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"json": {"not": {"type": "string"}}}, r"field 'json': the keywords \"not\"; wanted .*Leave them out"),
        ({"json": {"type": "array", "uniqueItems": True}}, 'the keywords "uniqueItems"'),
        ({"json": {"type": "frob"}}, "Invalid type: frob"),
        ({"json": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}}, "oneOf; wanted anyOf"),
        ({"json": {"enum": []}}, "Unsatisfiable schema"),
        ({"json": {"$ref": "http://example.com/x"}}, "is not present"),
        ({"regex": "(?=a)b"}, "field 'regex': look-around, including look-ahead and look-behind, is not supported; w"),
        ({"regex": r"\1(a)"}, "backreferences are not supported"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "start: nothing"}, "field 'grammar': .*unknown name"),
        ({"grammar": "nonsense"}, "field 'grammar': Expected ::="),
        ({"grammar": 'start: a\na: a "x"'}, "field 'grammar': no text that fits; wanted a form that some text has"),
        ({"regex": r"[^\s\S]"}, "field 'regex': no text that fits"),
        ({"grammar": 'start: x{60000}\nx: "ab"'}, "Too many items"),
    ],
)
def test_what_masks_cannot_express_is_refused_with_the_reason(fields, says):
    with pytest.raises(RequestError, match=says) as refusal:
        tiny_grammars().compile(form(**fields))
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"regex": "[0-9]{2}"}, "12"),
        ({"choice": ["yes", "no"]}, "yes"),
        ({"json": {"type": "integer"}}, "34"),
        ({"grammar": "start: thought\nthought: /[0-9]/"}, "5"),
        ({"grammar": 'root ::= "one"'}, "one"),
    ],
)
def test_what_stands_before_a_form_comes_first_and_knows_none_of_its_rules(fields, fits):
    """The form's rules may have the same names."""
    before = 'start: thought ":"\nthought: /[a-z]*/'
    grammar = tiny_grammars().compile(form(**fields, before=before))

    def is_text(text: str) -> bool:
        ids, (matcher, _) = longest_tokens_first(text), grammar.start()
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    assert is_text("abc:" + fits)
    assert is_text(":" + fits)
    for wrong in (fits, "abc:", f"abc{fits}", f"abc:{fits}:", f"{fits}:abc"):
        assert not is_text(wrong), wrong
    assert tiny_grammars().compile(form(**fields)) is not grammar


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"regex": "[0-9]", "before": "start: nothing"}, "field 'before': .*unknown name"),
        ({"regex": "[0-9]", "before": "nonsense"}, "field 'before': Expected ::="),
        ({"regex": "(a", "before": "start: /a/"}, "field 'regex': .*unclosed group"),
        ({"grammar": 'start: x{60000}\nx: "ab"', "before": "start: /[a-z]*/"}, "field 'grammar': .*Too many items"),
        ({"grammar": "{ start: a", "before": "start: /a/"}, "field 'grammar': "),
    ],
)
def test_a_refusal_says_whether_the_form_is_wrong_or_what_stands_before_it(fields, says):
    with pytest.raises(RequestError, match=says):
        tiny_grammars().compile(form(**fields))


def test_a_form_that_takes_too_long_is_refused_and_others_are_compiled(monkeypatch):
    release, compiled = threading.Event(), compiler.compiled

    def slow(wanted, tokenizer):
        if wanted.regex == "slow":
            release.wait()
        return compiled(wanted, tokenizer)

    monkeypatch.setattr(compiler, "compiled", slow)
    monkeypatch.setattr(compiler, "computed_s", lambda work, started_s: 2.0)
    try:
        with pytest.raises(RequestError, match="takes too long to compile"):
            GrammarCompiler(tiny_vocabulary).compile(form(regex="slow"))
    finally:
        release.set()
    monkeypatch.setattr(compiler, "computed_s", lambda work, started_s: 0.0)
    assert GrammarCompiler(tiny_vocabulary).compile(form(regex="fast"))


ENDING = """
import threading
from playhead.errors import RequestError
from playhead.grammar.compiler import GrammarCompiler
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.structured import tiny_vocabulary

def ask():
    try:
        GrammarCompiler(tiny_vocabulary, limit_s=0.0).compile(StructuredOutputs(regex="a{100000}"))
    except RequestError as refusal:
        print(refusal.found)

daemon = threading.Thread(target=ask, daemon=True)
daemon.start()
daemon.join()
"""


def test_a_program_ends_well_while_a_refused_form_is_still_compiled():
    ran = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "a form that takes too long to compile\n", "")


def test_many_threads_get_one_vocabulary():
    built = []
    grammars = GrammarCompiler(lambda: built.append(1) or tiny_vocabulary())
    threads = [threading.Thread(target=grammars.compile, args=(form(regex=f"a{{{i + 1}}}"),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert grammars.num_compiled == 6


def test_without_llguidance_the_error_names_the_extra(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.partition(".")[0] == "llguidance":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(RequestError, match=r"without llguidance; wanted the extra playhead\[structured\]"):
        GrammarCompiler(tiny_vocabulary).compile(form(regex="a"))


@pytest.mark.parametrize(("eos_ids", "what"), [((), "tokenizer"), ((3,), "tokenizer")])
def test_a_model_whose_tokens_have_no_text_is_refused(eos_ids, what):
    grammars = GrammarCompiler(lambda: grammar_vocabulary(IdsOnlyTokenizer(eos_ids), 64))
    with pytest.raises(RequestError, match=f"a model without a {what}"):
        grammars.compile(form(regex="a"))
