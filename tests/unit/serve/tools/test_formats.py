"""Which format a chat template has, and what a request of that format needs."""

from __future__ import annotations

import pytest

from playhead.errors import ConfigError
from playhead.serve.tools import FORMAT_NAMES
from playhead.serve.tools.constraint import TokenNames
from playhead.serve.tools.formats import FORMATS, format_for

TEMPLATES = {
    "harmony": "<|start|>assistant<|channel|>final<|message|>{{ content }}<|end|>",
    "mistral": "[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS][{{ calls }}]",
    "mistral-args": "[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}",
    "hermes": "<|im_start|>assistant\n<tool_call>\n{{ call | tojson }}\n</tool_call><|im_end|>",
    "llama3": "<|start_header_id|>system{{ tools }}<|python_tag|>",
    "gemma4": "<|turn>model\n<|tool_call>call:{{ name }}{{ arguments }}<tool_call|>",
    "gemma": "<start_of_turn>model\n{{ content }}<end_of_turn>",
    "none": "{{ content }}",
}
SPECIAL = {"<|channel|>": 5, "<|message|>": 6, "<|call|>": 7, "<|return|>": 8, "[TOOL_CALLS]": 9, "<|eom_id|>": 11}
PLAIN = {"<tool_call>": 10, "<|im_end|>": 12}
TOKENS = TokenNames(token_id={**SPECIAL, **PLAIN}.get, special_ids=set(SPECIAL.values()))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_format_is_found_by_the_markers_of_its_template(name):
    assert format_for(TEMPLATES[name], "llama").name == name


def test_every_format_has_a_template_here_and_can_be_named_on_the_command_line():
    assert set(TEMPLATES) == set(FORMATS)
    assert tuple(FORMATS) == FORMAT_NAMES


def test_llama_without_a_python_tag_is_found_by_its_words():
    template = '<|start_header_id|>user Respond in the format {"name": function name, "parameters": ...}'
    assert format_for(template).name == "llama3"


def test_gpt_oss_has_its_format_whatever_the_template():
    assert format_for("{{ content }}", "gpt_oss").name == "harmony"


def test_a_format_can_be_named_and_a_wrong_name_is_refused():
    assert format_for(TEMPLATES["gemma"], name="hermes").name == "hermes"
    with pytest.raises(ConfigError, match=r"tool format 'hermez': no such format. Did you mean hermes\?"):
        format_for(None, name="hermez")


def test_reasoning_is_found_with_any_format():
    assert format_for("{{ content }}</think>").reasoning.open == "<think>"
    assert format_for("[TOOL_CALLS][/THINK]").reasoning.open == "[THINK]"
    assert format_for("{{ content }}").reasoning is None


def test_special_tokens_are_shown_where_markers_are_special_tokens():
    settings = {name: FORMATS[name].output_settings(TOKENS) for name in FORMATS}
    shown = {name for name, one in settings.items() if not one.skip_special_tokens}
    assert shown == {"harmony", "mistral", "mistral-args"}
    assert settings["harmony"].stop_token_ids == (8, 7)
    assert settings["llama3"].stop_token_ids == (11,)
