"""Answers with a form on a GPU: masks that arrive while the body runs, in every mode, beside plain requests."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("llguidance")

from playhead.llm import LLM, EngineConfig
from playhead.sampling_params import SamplingParams
from playhead.step.audit import audit_worker
from playhead.structured_outputs import StructuredOutputs

RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
DATE = r"[A-Z][a-z]{3,9} [0-9]{4}"
CHOICES = ["Positive", "Negative", "Neutral"]
FORMS = (
    StructuredOutputs(json=RECORD, disable_any_whitespace=True),
    None,
    StructuredOutputs(regex=DATE),
    StructuredOutputs(choice=CHOICES),
)
PROMPTS = ("The answer is", "Her name and her age:", "Write to me.", "My lord,")
NUM_REQUESTS = 24


def params(i: int, *, has_form: bool = True) -> SamplingParams:
    form = FORMS[i % len(FORMS)] if has_form else None
    return SamplingParams(temperature=0.9 * (i % 2), seed=i, max_tokens=48, structured_outputs=form)


def config(**changes: object) -> EngineConfig:
    return EngineConfig(device="cuda", dtype="float32", max_model_len=192, kv_memory_bytes=1 << 26, **changes)


def run(llm: LLM, numbers: range) -> dict[int, tuple[str, list[int], str | None]]:
    prompts = [PROMPTS[i % 3] for i in numbers]
    outputs = llm.generate(prompts, [params(i) for i in numbers], use_tqdm=False)
    found = (output.outputs[0] for output in outputs)
    return {i: (one.text, list(one.token_ids), one.finish_reason) for i, one in zip(numbers, found, strict=True)}


def check_form(i: int, text: str) -> None:
    match i % len(FORMS):
        case 0:
            assert set(json.loads(text)) == {"name", "age"}
        case 2:
            assert re.fullmatch(DATE, text)
        case 3:
            assert text in CHOICES


@pytest.fixture(scope="module")
def eager():
    with LLM("embedded", config(graph_mode="eager", overlap=False)) as llm:
        return run(llm, range(NUM_REQUESTS))


def test_answers_have_their_form(eager):
    ended = {i: text for i, (text, _, reason) in eager.items() if reason == "stop" and FORMS[i % len(FORMS)]}
    assert len(ended) >= NUM_REQUESTS // 2
    for i, text in ended.items():
        check_form(i, text)


@pytest.mark.parametrize("changes", [{"overlap": True}, {"overlap": False}, {"graph_mode": "full"}], ids=str)
def test_graphs_give_the_tokens_of_eager_steps(eager, changes):
    with LLM("embedded", config(**changes)) as llm:
        assert run(llm, range(NUM_REQUESTS)) == eager
        if "overlap" not in changes:  # once: it captures everything again
            reports = audit_worker(llm.engine.worker)
            assert reports
            assert all(report.ok for report in reports), reports
