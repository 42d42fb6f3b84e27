"""A forced choice: the grammar's texts are exactly the calls that the format's own parser reads."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from

from playhead.errors import RequestError
from playhead.grammar.forms import grammar_texts
from playhead.serve.tools.constraint import TokenNames
from playhead.serve.tools.definitions import tool_request
from playhead.serve.tools.formats import FORMATS, format_for
from playhead.structured_outputs import StructuredOutputs
from tests.unit.serve.tools.answers import calls_of, read

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "description": "a ::= b // # c", "enum": ["Rome", "Ulm"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "clock", "parameters": {**CITY, "properties": {}, "required": []}}},
]
NO_TOKENS = TokenNames(token_id=lambda text: None, special_ids=())
ROME = '{"city": "Rome"}'
CALLS = {
    "hermes": ('<tool_call>\n{"name": "NAME", "arguments": ARGS}\n</tool_call>', "\n"),
    "llama3": ('{"name": "NAME", "parameters": ARGS}', "; "),
    "mistral": ('{"name": "NAME", "arguments": ARGS}', ", "),
    "mistral-args": ("[TOOL_CALLS]NAME[ARGS]ARGS", ""),
    "harmony": ("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGS", ""),
    "gemma4": ("<|tool_call>call:NAMEARGS<tool_call|>", ""),
    "gemma": ('{"name": "NAME", "parameters": ARGS}', "; "),
    "none": ('{"name": "NAME", "parameters": ARGS}', "; "),
}


@pytest.fixture(scope="module")
def byte_tokens() -> LLTokenizer:
    return LLTokenizer("byte")


def call(name: str, function: str, arguments: str) -> str:
    before, after = CALLS[name][0].split("NAME")
    begin, end = after.split("ARGS")[-2:] if name != "mistral-args" else ("[ARGS]", "")
    return before + function + begin + arguments + end


def written(name: str, *calls: str) -> str:
    text = CALLS[name][1].join(calls)
    return f"[TOOL_CALLS][{text}]" if name == "mistral" else text


def fits(byte_tokens: LLTokenizer, grammar: str, text: str) -> bool:
    return is_text_of(byte_tokens, grammar_from("grammar", grammar), text)


def is_text_of(byte_tokens: LLTokenizer, grammar: str, text: str) -> bool:
    matcher = LLMatcher(byte_tokens, grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = byte_tokens.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def grammar(
    name: str, choice: object = "required", *, template: str = "", prompt_end: str = "", **options: bool
) -> str:
    tool_format = format_for(template, name=name)
    fields = tool_format.structured_outputs(tool_request(TOOLS, choice, **options), NO_TOKENS, prompt_end=prompt_end)
    assert fields is not None
    return fields["grammar"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_forced_answer_is_a_call_that_fits_its_schema(name, byte_tokens):
    forced, whole = grammar(name), written(name, call(name, "weather", ROME))
    assert fits(byte_tokens, forced, whole)
    assert calls_of(read(FORMATS[name], whole)) == [("weather", ROME)]
    for wrong in ('{"city": "Paris"}', "{}", '{"town": "Rome"}', '{"city":  "Rome"}'):
        assert not fits(byte_tokens, forced, written(name, call(name, "weather", wrong)))
    assert not fits(byte_tokens, forced, written(name, call(name, "rm", "{}")))
    assert not fits(byte_tokens, forced, "Sunny.")


@pytest.mark.parametrize("name", [name for name, (_, between) in CALLS.items() if between])
def test_several_calls_are_allowed_unless_one_is_named_or_they_are_not_wanted(name, byte_tokens):
    two = written(name, call(name, "weather", ROME), call(name, "clock", "{}"))
    assert len(read(FORMATS[name], two).calls) == 2
    assert fits(byte_tokens, grammar(name), two)
    assert not fits(byte_tokens, grammar(name, is_parallel=False), two)
    named = grammar(name, {"type": "function", "function": {"name": "clock"}})
    assert fits(byte_tokens, named, written(name, call(name, "clock", "{}")))
    assert not fits(byte_tokens, named, two)


def test_reasoning_may_come_first_and_must_end_where_the_prompt_began_it(byte_tokens):
    whole = call("hermes", "clock", "{}")
    free = grammar("hermes", template="</think>")
    begun = grammar("hermes", template="</think>", prompt_end="<think>\n")
    assert [fits(byte_tokens, free, text + whole) for text in ("", "<think>Hm.</think>\n\n", "Hm.</think>")] == [
        True,
        True,
        False,
    ]
    assert [fits(byte_tokens, begun, text + whole) for text in ("", "Hm.\n</think>\n\n")] == [False, True]


def test_harmony_s_reasoning_comes_first(byte_tokens):
    whole = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + call("harmony", "clock", "{}")
    assert fits(byte_tokens, grammar("harmony"), whole)
    answer = read(FORMATS["harmony"], whole)
    assert (answer.reasoning, calls_of(answer)) == ("Hm.", [("clock", "{}")])


def form_fits(byte_tokens: LLTokenizer, name: str, text: str, *, template: str = "", prompt_end: str = "") -> bool:
    """Whether an answer with a form can be this text."""
    before = format_for(template, name=name).before_form(NO_TOKENS, prompt_end=prompt_end)
    form = StructuredOutputs(json=CITY, disable_any_whitespace=True, before=before)
    *_, grammar = grammar_texts(form).values()
    return is_text_of(byte_tokens, grammar, text)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("harmony", "gemma4")])
def test_an_answer_with_a_form_may_reason_first_and_must_end_what_the_prompt_began(name, byte_tokens):
    answer = '{"city":"Rome"}'
    texts = (answer, f"<think>Hm {answer}</think>\n\n{answer}", f"Hm.\n</think>{answer}")
    without = [form_fits(byte_tokens, name, text) for text in texts]
    free = [form_fits(byte_tokens, name, text, template="</think>") for text in texts]
    begun = [form_fits(byte_tokens, name, text, template="</think>", prompt_end="<think>\n") for text in texts]
    ended = [form_fits(byte_tokens, name, text, template="</think>", prompt_end="</think>\n\n") for text in texts]
    assert without == ended == [True, False, False]
    assert free == [True, True, False]
    assert begun == [False, True, True]  # in the second text the reasoning speaks of its marker
    for text, prompt_end in ((texts[1], ""), (texts[2], "<think>")):
        parsed = read(format_for("</think>", name=name), text, prompt_end=prompt_end)
        assert (parsed.content, list(parsed.calls)) == (answer, [])


def test_gemma_4_has_a_form_behind_its_thought_channel(byte_tokens):
    thought, answer = "<|channel>thought\nHm.<channel|>", '{"city":"Ulm"}'
    assert form_fits(byte_tokens, "gemma4", answer)
    assert form_fits(byte_tokens, "gemma4", thought + answer)
    assert not form_fits(byte_tokens, "gemma4", thought)
    assert not form_fits(byte_tokens, "gemma4", answer, prompt_end="<|channel>thought\n")


def test_harmony_has_a_form_in_its_final_channel(byte_tokens):
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    answer = '<|channel|>final<|message|>{"city":"Ulm"}'
    assert form_fits(byte_tokens, "harmony", thought + answer)
    assert form_fits(byte_tokens, "harmony", answer)
    assert not form_fits(byte_tokens, "harmony", '{"city":"Ulm"}')
    parsed = read(FORMATS["harmony"], thought + answer)
    assert (parsed.reasoning, parsed.content) == ("Hm.", '{"city":"Ulm"}')


def test_special_tokens_are_named_by_their_ids():
    """Their text would be matched by other tokens, which the model does not write."""
    ids = {"<|channel|>": 5, "<|message|>": 6, "<|constrain|>": 7, "<|end|>": 8, "<|start|>": 9}
    tokens = TokenNames(token_id=ids.get, special_ids=set(ids.values()))
    fields = FORMATS["harmony"].structured_outputs(tool_request(TOOLS, "required"), tokens)
    assert '<[5]> "commentary to=functions.clock " <[7]> "json" <[6]> arguments_1' in fields["grammar"]
    assert "<|" not in fields["grammar"]


def test_nothing_is_forced_where_the_model_may_choose():
    assert FORMATS["hermes"].structured_outputs(tool_request(TOOLS), NO_TOKENS) is None


def test_tools_that_are_too_long_to_be_forced_are_refused_by_their_name():
    long = {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 40_000}}}
    tools = [{"type": "function", "name": name, "parameters": long} for name in ("a", "b")]
    with pytest.raises(RequestError, match=r"tools: .* bytes; wanted at most 65536 where a call is forced"):
        FORMATS["hermes"].structured_outputs(tool_request(tools, "required"), NO_TOKENS)
    named = tool_request(tools, {"type": "function", "name": "b"})
    assert FORMATS["hermes"].structured_outputs(named, NO_TOKENS) is not None
