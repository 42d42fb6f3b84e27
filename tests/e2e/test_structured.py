"""Answers of the embedded model have the form that was asked for, whatever the form, and however they are run.

`PLAYHEAD_SERVE=full` tries 300 schemas, 100 regular expressions and 100 lists of choices; the suite tries a few.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.engine.async_engine import AsyncEngine
from playhead.llm import LLM, EngineConfig
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.structured_outputs import StructuredOutputs

IS_FULL = os.environ.get("PLAYHEAD_SERVE") == "full"
BATCH = 10
MAX_TOKENS = 120
PROMPTS = ("The answer is", "Her name and her age:", "Write to me.", "My lord,")
CONFIG = EngineConfig(max_model_len=192, max_num_seqs=BATCH, max_num_batched_tokens=64, kv_memory_bytes=1 << 24)


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", CONFIG) as made:
        yield made


# --- what can be asked for --------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["name", "age", "a", "it's", "ü", 'say "so"', "x y", "0"])
SHORT_TEXTS = st.text(st.sampled_from('abcXYZ 019_-é"\\/\n'), max_size=6)


@st.composite
def texts(draw):
    low = draw(st.integers(0, 3))
    schema = {"type": "string", "maxLength": low + draw(st.integers(0, 6))}
    return schema | ({"minLength": low} if low else {})


@st.composite
def integers(draw):
    low = draw(st.integers(-1000, 1000))
    return {"type": "integer", "minimum": low, "maximum": low + draw(st.integers(0, 2000))}


PATTERNS = st.sampled_from(["^[a-c]{2,5}$", "^(yes|no)$", "^[0-9]{3}-[0-9]{2}$", "^a+b{1,3}$"])
LEAVES = st.one_of(
    texts(),
    integers(),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.lists(SHORT_TEXTS | st.integers(-9, 99) | st.none(), min_size=1, max_size=3).map(lambda some: {"enum": some}),
    SHORT_TEXTS.map(lambda text: {"const": text}),
    PATTERNS.map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from(["date", "time", "uuid"]).map(lambda name: {"type": "string", "format": name}),
)


def wider(inner):
    return st.one_of(objects(inner), arrays(inner), st.lists(inner, min_size=1, max_size=3).map(lambda a: {"anyOf": a}))


@st.composite
def objects(draw, inner):
    properties = draw(st.dictionaries(NAMES, inner, min_size=1, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@st.composite
def arrays(draw, inner):
    low = draw(st.integers(0, 2))
    return {"type": "array", "items": draw(inner), "minItems": low, "maxItems": low + draw(st.integers(0, 2))}


SCHEMAS = st.recursive(LEAVES, wider, max_leaves=4)

PIECES = st.one_of(
    st.sampled_from(["[a-z]", "[0-9]", r"\d", r"\w", "[A-F0-9]", "x", "yes", r"\.", "-", " ", "é", "[^,]"]),
    st.lists(st.sampled_from(["ab", "cd", "12", "Z", "the"]), min_size=2, max_size=3).map(lambda a: f"({'|'.join(a)})"),
)
COUNTS = st.sampled_from(["", "", "?", "{2}", "{1,3}", "{3,5}"])
REGEXES = st.lists(st.tuples(PIECES, COUNTS).map("".join), min_size=1, max_size=6).map("".join)
CHOICES = st.lists(st.text(min_size=1, max_size=12).filter(lambda text: "\0" not in text), min_size=1, max_size=6)


def asked(forms: list[StructuredOutputs]) -> list[SamplingParams]:
    """Greedy and drawn in turn."""
    return [
        SamplingParams(temperature=1.0 * (i % 2), seed=i, max_tokens=MAX_TOKENS, structured_outputs=form)
        for i, form in enumerate(forms)
    ]


def answers(llm: LLM, forms: list[StructuredOutputs]) -> list[tuple[str, bool]]:
    """Each answer, and whether it came to its end."""
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(len(forms))]
    outputs = llm.generate(prompts, asked(forms), use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(forms)
    return [(output.outputs[0].text, output.outputs[0].finish_reason == "stop") for output in outputs]


@settings(max_examples=30 if IS_FULL else 2)
@given(schemas=st.lists(SCHEMAS, min_size=BATCH, max_size=BATCH))
def test_every_answer_validates_against_its_schema(llm, schemas):
    forms = [StructuredOutputs(json=schema, disable_any_whitespace=i % 3 > 0) for i, schema in enumerate(schemas)]
    num_whole = 0
    for schema, (text, is_whole) in zip(schemas, answers(llm, forms), strict=True):
        if is_whole:
            num_whole += 1
            jsonschema.validate(json.loads(text), schema)
    assert num_whole >= BATCH // 2, "the schemas are too long for the tokens they have"


@settings(max_examples=10 if IS_FULL else 1)
@given(regexes=st.lists(REGEXES, min_size=BATCH, max_size=BATCH))
def test_every_answer_matches_its_regular_expression(llm, regexes):
    found = answers(llm, [StructuredOutputs(regex=regex) for regex in regexes])
    for regex, (text, is_whole) in zip(regexes, found, strict=True):
        assert is_whole, (regex, text)
        assert re.fullmatch(regex, text), (regex, text)


@settings(max_examples=10 if IS_FULL else 1)
@given(lists=st.lists(CHOICES, min_size=BATCH, max_size=BATCH))
def test_every_answer_is_one_of_its_choices(llm, lists):
    found = answers(llm, [StructuredOutputs(choice=choices) for choices in lists])
    for choices, (text, is_whole) in zip(lists, found, strict=True):
        assert is_whole, (choices, text)
        assert text in choices


def test_a_grammar_and_any_json_object(llm):
    calculator = StructuredOutputs(grammar='start: NUMBER (("+" | "*") NUMBER)~1..3\nNUMBER: /[1-9][0-9]{0,2}/')
    nested = StructuredOutputs(grammar='root ::= "(" root ")" | "x"')
    anything = StructuredOutputs(json_object=True)
    (sum_, whole), (brackets, closed), (text, is_object) = answers(llm, [calculator, nested, anything])
    assert whole
    assert re.fullmatch(r"[1-9][0-9]{0,2}([+*][1-9][0-9]{0,2}){1,3}", sum_)
    assert not closed or re.fullmatch(r"(\(*)x(\)*)", brackets)
    assert brackets.count("(") == brackets.count(")") or not closed
    assert not is_object or isinstance(json.loads(text), dict)


def test_what_stands_before_a_form_is_there_first(llm):
    """As a model's reasoning does. Its own grammar holds until its last text, and the form from there on."""
    before = 'start: /[a-z ,]{3,24}/ "</think>"'
    forms = [StructuredOutputs(json=RECORD, before=before), StructuredOutputs(choice=["ay", "no"], before=before)]
    for text, is_whole in answers(llm, forms):
        thought, found, answer = text.partition("</think>")
        assert re.fullmatch("[a-z ,]{3,24}", thought)
        assert found
        assert not is_whole or answer in ("ay", "no") or set(json.loads(answer)) >= {"name", "tags"}


# --- however they are run ---------------------------------------------------------------------------------------------

RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "tags": {"type": "array", "items": {"enum": ["a", 1]}}},
    "required": ["name", "tags"],
}
CASES = (
    StructuredOutputs(json=RECORD),
    StructuredOutputs(regex=r"[A-Z][a-z]{3,9} [0-9]{4}"),
    None,
    StructuredOutputs(choice=["Positive", "Negative", "Neutral"]),
    StructuredOutputs(json=RECORD, disable_any_whitespace=True),
    StructuredOutputs(regex="[0-9]{3}", before='start: /[a-z ,]{3,24}/ "</think>"'),
)
LONG = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want "


def case_params(i: int, **more) -> SamplingParams:
    form = CASES[i % len(CASES)]
    params = SamplingParams(temperature=0.9 * (i % 2), seed=i, max_tokens=40, structured_outputs=form, **more)
    return replace(params, logprobs=3) if i % 4 == 3 else params


def case_prompt(i: int) -> str:
    return LONG[: 20 + 30 * (i % 4)] + PROMPTS[i % len(PROMPTS)]


NUM_CASES = 8
ALL = list(range(NUM_CASES))


@pytest.fixture(scope="module")
def alone(llm):
    """Each request by itself."""
    return [llm.generate(case_prompt(i), case_params(i), use_tqdm=False)[0].outputs[0] for i in ALL]


def tokens(outputs) -> list[list[int]]:
    return [list(output.token_ids) for output in outputs]


def run(llm: LLM) -> list[list[int]]:
    outputs = llm.generate([case_prompt(i) for i in ALL], [case_params(i) for i in ALL], use_tqdm=False)
    return tokens(output.outputs[0] for output in outputs)


def test_in_a_batch_and_over_cached_prefixes(llm, alone):
    assert run(llm) == tokens(alone)
    assert run(llm) == tokens(alone)


@pytest.mark.parametrize(
    "changes",
    [
        {"overlap": True},
        {"overlap": False, "max_num_batched_tokens": 16},
        {"overlap": True, "kv_memory_bytes": 870_000, "enable_prefix_caching": False},
        {"graph_mode": "eager"},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_however_steps_are_run(alone, changes):
    with LLM("embedded", replace(CONFIG, **changes)) as other:
        assert run(other) == tokens(alone)
        if "kv_memory_bytes" in changes:
            assert other.stats.num_preemptions > 0


def test_streamed(llm, alone):
    for i in (0, 1):
        outputs = list(llm.stream(case_prompt(i), case_params(i)))
        assert outputs[-1].outputs[0].token_ids == alone[i].token_ids
        assert outputs[-1].outputs[0].text == alone[i].text


def test_samples_of_one_request(llm):
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=30, structured_outputs=CASES[1])
    outputs = llm.generate("Born on", params, use_tqdm=False)[0].outputs
    assert len({output.text for output in outputs}) > 1
    for output in outputs:
        assert re.fullmatch(r"[A-Z][a-z]{3,9} [0-9]{4}", output.text)


def test_logprobs_are_of_the_model_and_not_of_what_the_mask_left(llm):
    """Under a form with one answer every token is certain, and the model thinks otherwise."""
    form = StructuredOutputs(choice=["xylophone"])
    params = SamplingParams(temperature=0, max_tokens=20, logprobs=1, structured_outputs=form)
    output = llm.generate("The whale", params, use_tqdm=False)[0].outputs[0]
    assert output.text == "xylophone"
    assert all(entry[token].logprob < 0 for token, entry in zip(output.token_ids, output.logprobs, strict=True))
    assert output.cumulative_logprob < -10


def test_on_an_event_loop(llm, alone):
    async def main() -> list[list[int]]:
        engine = AsyncEngine.of(llm.engine)

        async def ask(i: int) -> list[int]:
            params = replace(case_params(i), output_kind=RequestOutputKind.FINAL_ONLY)
            async for output in engine.generate(case_prompt(i), params):
                found = output
            return list(found.outputs[0].token_ids)

        async with engine:
            return await asyncio.gather(*(ask(i) for i in ALL))

    assert asyncio.run(main()) == tokens(alone)


def test_a_form_that_cannot_be_compiled_is_refused_before_anything_runs(llm):
    bad = SamplingParams(structured_outputs=StructuredOutputs(regex="(?=a)b"))
    num_steps = llm.stats.num_steps
    with pytest.raises(ValueError, match="look-around"):
        llm.generate(["x", "y"], [SamplingParams(), bad], use_tqdm=False)
    assert llm.stats.num_steps == num_steps
