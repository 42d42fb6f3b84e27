"""A form of answers as llguidance writes grammars, and its refusals in our words."""

from __future__ import annotations

import json
import re
from types import ModuleType

from playhead.errors import RequestError
from playhead.structured_outputs import StructuredOutputs, refused

MAX_REASON_CHARS = 200
JSON_OBJECT = '{"type":"object"}'
IN_LARK = ("choice", "grammar")
"""The kinds of forms whose grammars are Lark; those of others are JSON."""

UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*)\]")
LAST_LINE_OF_REGEX = re.compile(r"^error: (.*)$", re.MULTILINE)


def library() -> ModuleType:
    """llguidance, or `RequestError` where it is not installed."""
    try:
        import llguidance
    except ImportError:
        raise RequestError(
            "structured_outputs",
            "an installation without llguidance",
            "the extra playhead[structured]",
            "Install it on the machine that runs the model.",
        ) from None
    return llguidance


def grammar_texts(form: StructuredOutputs) -> dict[str, str]:
    """The grammar of a form alone and, where something stands before it, of both, by the field that each adds.

    The last one is that of a whole answer. `RequestError` for a field that cannot be read.
    """
    text = own_text(form)
    if form.before is None:
        return {form.kind: text}
    own = {"lark_grammar": text} if form.kind in IN_LARK else json.loads(text)["grammars"][0]
    # Each has names of its own: rules of one grammar do not see those of another.
    both = [
        {"lark_grammar": "start: @before @form"},
        {"name": "before", "lark_grammar": lark_text("before", form.before)},
        {**own, "name": "form"},
    ]
    return {form.kind: text, "before": json.dumps({"grammars": both})}


def own_text(form: StructuredOutputs) -> str:
    """The grammar of a form alone."""
    from llguidance import LLMatcher

    if form.kind in ("json", "json_object"):
        schema = form.json if isinstance(form.json, str) else JSON_OBJECT
        return LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_flexible": not form.disable_any_whitespace}
        )
    if form.regex is not None:
        return LLMatcher.grammar_from_regex(form.regex)
    if form.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(one) for one in form.choice))
    assert form.grammar is not None, "a form has one kind"
    return lark_text("grammar", form.grammar)


def lark_text(name: str, grammar: str) -> str:
    """A grammar in Lark's syntax; one in GBNF becomes that."""
    from llguidance import grammar_from

    try:
        return grammar_from("grammar", grammar)
    except ValueError as error:  # GBNF that cannot be read
        raise refusal(name, str(error)) from None


def refusal(name: str, reason: str) -> RequestError:
    """The error for a field that llguidance cannot serve. Its reasons quote all of a pattern; ours have one line."""
    keywords = UNKNOWN_KEYWORDS.search(reason)
    if keywords is not None:
        found = f"the keywords {keywords.group(1)}"
        return refused(name, found, "keywords that token masks can express", "Leave them out of the schema.")
    if reason.startswith("oneOf constraints are not supported"):
        return refused(name, "oneOf", "anyOf, which allows an answer that fits several", "Write anyOf.")
    if reason.startswith("NoExtensionBias"):
        return refused(name, "no text that fits", "a form that some text has", "Correct it.")
    of_regex = LAST_LINE_OF_REGEX.search(reason)
    line = of_regex.group(1) if of_regex is not None else reason.partition("\n")[0]
    line = " ".join(line.replace("Failed to convert the grammar from GBNF to Lark: ", "").split()).rstrip(".")
    return refused(name, f"{line:.{MAX_REASON_CHARS}}", "what token masks can express", "Correct or simplify it.")
