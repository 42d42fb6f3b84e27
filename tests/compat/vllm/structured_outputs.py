"""Answers of a given form: one of a few words, a regular expression, a JSON schema."""

import json
import re

from playhead import LLM, SamplingParams
from playhead.sampling_params import StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    forms = [
        StructuredOutputsParams(choice=["Positive", "Negative"]),
        StructuredOutputsParams(regex=r"\w{1,8}@\w{1,8}\.com"),
        StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
    ]
    params = [SamplingParams(temperature=0.0, max_tokens=64, structured_outputs=form) for form in forms]
    outputs = llm.generate(["The review is", "Write to", "Her name and age:"], params)
    choice, address, person = (output.outputs[0].text for output in outputs)
    assert choice in ("Positive", "Negative")
    assert re.fullmatch(r"\w{1,8}@\w{1,8}\.com", address)
    assert set(json.loads(person)) == {"name", "age"}


if __name__ == "__main__":
    main("embedded")
