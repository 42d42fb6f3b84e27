"""Bugs in reading and forcing tool calls, and what notices them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer, grammar_from

from playhead.serve.service import ENCODER
from playhead.serve.tools import calls, constraint, gemma4, messages
from playhead.serve.tools.constraint import TokenNames
from playhead.serve.tools.definitions import tool_request
from playhead.serve.tools.events import Content, ParsedAnswer, gathered
from playhead.serve.tools.formats import FORMATS, format_for
from playhead.serve.tools.harmony import CHANNEL, MESSAGE, HarmonyMessages
from playhead.serve.tools.json_calls import JsonCalls
from playhead.serve.tools.reasoning import ReasoningMarks
from playhead.serve.tools.text import MarkerFinder, TextOut
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome"], "description": "a ::= b"}}, "required": ["city"]}
FORCED = tool_request([{"type": "function", "name": "weather", "parameters": SCHEMA}], "required")

PIECES, KNOWN, BEGUN = "pieces of an answer", "functions that were not given", "reasoning begun in the prompt"
FITS, KEPT, SPACE = "forced arguments fit", "a call without an end", "white space around calls"
SENT, ALL_CALLS = "calls that can be sent", "earlier calls are all seen"


def answer(pieces: Sequence[str], template: str = "<tool_call>", prompt_end: str = "") -> ParsedAnswer:
    """What is read of an answer in these pieces."""
    parser = format_for(template).parser(names=["weather"], prompt_end=prompt_end, new_id=lambda: "id")
    events = [event for piece in pieces for event in parser.feed(piece)]
    return gathered(events + parser.finish())


@mutant("the beginning of a marker passed on", source="streaming parsers", killed_by=(PIECES,))
def beginnings_passed_on() -> Patch:
    return swapped(MarkerFinder, "end_of_plain", lambda self, text, at: len(text))


@mutant("any function called", source="models invent names", killed_by=(KNOWN,))
def any_function_called() -> Patch:
    return swapped(calls.CallLog, "knows", lambda self, name: name is not None)


@mutant("reasoning only after its first marker", source="templates that begin it in the prompt", killed_by=(BEGUN,))
def begun_reasoning_unseen() -> Patch:
    return swapped(ReasoningMarks, "is_open_after", lambda self, prompt_end: False)


@mutant("arguments of any form forced", source="found here", killed_by=(FITS,))
def schema_left_out() -> Patch:
    return swapped(constraint, "schema_text", lambda tool: '{"type": "object"}')


@mutant("a call without an end kept whole", source="hostile answers", killed_by=(KEPT,))
def kept_without_limit() -> Patch:
    return swapped(calls, "MAX_HELD_CHARS", 1 << 40)


@mutant("line ends around calls are content", source="clients show an empty message", killed_by=(SPACE,))
def line_ends_are_content() -> Patch:
    return swapped(TextOut, "drop_space", lambda self: self.flush())


@mutant("a dialect told by a space", source="found here: a piece that ends after `{ `", killed_by=(PIECES,))
def dialect_told_by_a_space() -> Patch:
    return swapped(gemma4, "BEGIN", re.compile(r"\{[ \t\n\r]{0,64}(.)", re.DOTALL))


@mutant("a call followed by a line end is content", source="found here: harmony", killed_by=(SPACE,))
def line_end_of_harmony() -> Patch:
    return swapped(HarmonyMessages, "_after_arguments", lambda self: self._begin(Content) or True)


@mutant("half a surrogate pair sent", source="found here: quoted arguments", killed_by=(SENT,))
def half_a_pair_sent() -> Patch:
    return swapped(calls, "SURROGATE", re.compile("(?!)"))


@mutant("half an end of a call is content", source="found here: answers cut at max_tokens", killed_by=(SPACE,))
def half_an_end_shown() -> Patch:
    def finish(self: JsonCalls) -> None:
        self._out.put(self._text[self._at :])
        self._out.flush()

    return swapped(JsonCalls, "finish", finish)


@mutant("calls beside the first unseen", source="found here: the template of gpt-oss", killed_by=(ALL_CALLS,))
def later_calls_unseen() -> Patch:
    return swapped(messages, "split_calls", lambda message: [message] if message.get("tool_calls") else [])


def pieces_give_the_same() -> list[str]:
    json_call = '<|tool_call>call:weather{ "city": "Rome"}<tool_call|>'
    found = []
    for template, text in (("<tool_call>", f"a {CALL} b"), ("<|tool_call>", json_call)):
        whole, cut = answer([text], template), answer(list(text), template)
        found += [] if whole == cut and len(whole.calls) == 1 else [f"whole {whole}, in pieces {cut}"]
    return found


def calls_can_be_sent() -> list[str]:
    text = CALL.replace('{"city": "Rome"}', '"{\\"city\\": \\"\\ud83d\\"}"')
    try:
        ENCODER.encode([call.arguments for call in answer([text]).calls])
    except UnicodeEncodeError as error:
        return [f"arguments that no answer can hold: {error.reason}"]
    return []


def only_given_functions_are_called() -> list[str]:
    invented = CALL.replace("weather", "rm")
    texts = {
        "hermes": invented,
        "mistral-args": "[TOOL_CALLS]rm[ARGS]{}",
        "harmony": "<|channel|>commentary to=functions.rm<|message|>{}",
    }
    found = []
    for name, text in texts.items():
        parser = FORMATS[name].parser(names=["weather"])
        if gathered(parser.feed(text) + parser.finish()).calls:
            found.append(f"{name}: a function was called that was not given")
    return found


def begun_reasoning_is_seen() -> list[str]:
    read = answer(["Hm.</think>Yes."], template="</think>", prompt_end="<think>\n")
    return [] if (read.reasoning, read.content) == ("Hm.", "Yes.") else [f"{read}"]


def forced_arguments_fit() -> list[str]:
    fields = FORMATS["hermes"].structured_outputs(FORCED, TokenNames(token_id=lambda text: None, special_ids=()))
    assert fields is not None, "a call is forced"
    tokens, found = LLTokenizer("byte"), []
    try:
        grammar = grammar_from("grammar", fields["grammar"])
    except ValueError as error:
        return [f"refused: {error!s:.80}"]
    for city, is_right in (("Rome", True), ("Ulm", False)):
        matcher = LLMatcher(tokens, grammar, log_level=0)
        text = f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
        ids = tokens.tokenize_str(text)
        fits = not matcher.is_error() and matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        found += [f"{city}: {'refused' if is_right else 'allowed'}"] if fits is not is_right else []
    return found


def every_call_is_a_message() -> list[str]:
    """The template of gpt-oss reads the first call of a message and no other."""
    asked = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in "ab"]
    talk = [{"role": "assistant", "content": None, "tool_calls": asked, "reasoning_content": "hm"}]
    read = FORMATS["harmony"].messages(talk, tool_request(None))
    seen = [one["tool_calls"][0]["id"] for one in read]
    return [] if (seen, read[0].get("thinking")) == (["a", "b"], "hm") else [f"{read}"]


def an_endless_call_is_let_go() -> list[str]:
    parser = FORMATS["hermes"].parser(names=["weather"])
    events = parser.feed('<tool_call>{"name": "' + "x" * (1 << 17))
    return [] if events else ["128 KiB were kept"]


def white_space_around_calls_is_dropped() -> list[str]:
    channel = "<|channel|>commentary to=functions.weather<|message|>{}\n<|call|>"
    texts = (
        (f"\n\n{CALL}\n{CALL}\n", "<tool_call>", 2),
        (CALL[:-3], "<tool_call>", 1),
        (channel, CHANNEL + MESSAGE, 1),
    )
    found = []
    for text, template, num_calls in texts:
        read = answer([text], template)
        found += [] if (read.content, len(read.calls)) == (None, num_calls) else [f"{read}"]
    return found


TOOL_MUTANTS: tuple[Mutant, ...] = (
    beginnings_passed_on,
    any_function_called,
    begun_reasoning_unseen,
    schema_left_out,
    kept_without_limit,
    line_ends_are_content,
    dialect_told_by_a_space,
    line_end_of_harmony,
    half_a_pair_sent,
    later_calls_unseen,
    half_an_end_shown,
)

TOOL_CHECKERS: tuple[Checker, ...] = (
    Checker(name=PIECES, run=pieces_give_the_same),
    Checker(name=KNOWN, run=only_given_functions_are_called),
    Checker(name=BEGUN, run=begun_reasoning_is_seen),
    Checker(name=FITS, run=forced_arguments_fit),
    Checker(name=KEPT, run=an_endless_call_is_let_go),
    Checker(name=SPACE, run=white_space_around_calls_is_dropped),
    Checker(name=SENT, run=calls_can_be_sent),
    Checker(name=ALL_CALLS, run=every_call_is_a_message),
)
