"""generation_config.json: what requests start from, and what ends them."""

from __future__ import annotations

import json

import pytest

from playhead.errors import CheckpointError
from playhead.llm import LLM
from playhead.models.text.generation_config import default_sampling, read_generation_config
from playhead.sampling_params import SamplingParams
from tests.unit.models.text.embedded_copy import SMALL, checkpoint

GEMMA = {"bos_token_id": 2, "do_sample": True, "eos_token_id": [1, 106], "pad_token_id": 0, "top_k": 64, "top_p": 0.95}


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        (GEMMA, SamplingParams(top_k=64, top_p=0.95)),
        ({"temperature": 0.6, "min_p": 0.1, "repetition_penalty": 1.1}, None),
        ({"temperature": None, "top_k": None, "max_length": 20, "num_beams": 4}, SamplingParams()),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, SamplingParams(temperature=0)),
        ({"do_sample": False, "repetition_penalty": 1.1}, SamplingParams(temperature=0, repetition_penalty=1.1)),
        ({"max_new_tokens": 2048}, SamplingParams(max_tokens=2048)),
        ({}, SamplingParams()),
    ],
)
def test_the_fields_vllm_takes_are_taken_and_no_others(table, wanted):
    assert default_sampling(table) == (SamplingParams(**table) if wanted is None else wanted)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1),
        ("temperature", "0.7"),
        ("temperature", float("nan")),
        ("top_k", 1.5),
        ("top_p", 0),
        ("min_p", 2),
        ("repetition_penalty", True),
        ("max_new_tokens", 0),
        ("max_new_tokens", "all"),
        ("do_sample", "no"),
        ("eos_token_id", "2"),
        ("eos_token_id", [2, None]),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(tmp_path, key, value):
    (tmp_path / "generation_config.json").write_text(json.dumps({key: value}))
    name = "max_tokens" if key == "max_new_tokens" else key
    with pytest.raises(CheckpointError, match=rf"generation_config\.json.*{name}"):
        read_generation_config(tmp_path)


def test_a_call_without_parameters_samples_as_the_models_authors_do(tmp_path):
    """Top-k 1 leaves one token to choose: greedy, at a temperature where chance would show."""
    table = {"do_sample": True, "temperature": 50.0, "top_k": 1, "max_new_tokens": 12}
    with LLM(checkpoint(tmp_path, generation_config=table), **SMALL) as llm:
        wanted = SamplingParams(temperature=50.0, top_k=1, max_tokens=12)
        assert llm.get_default_sampling_params() == wanted
        greedy = llm.generate("The whale", SamplingParams(temperature=0, max_tokens=12))[0].outputs[0].token_ids
        assert llm.generate("The whale")[0].outputs[0].token_ids == greedy
        assert list(llm.stream("The whale"))[-1].outputs[0].token_ids == greedy
        said = llm.generate("The whale", SamplingParams(temperature=50.0, max_tokens=12, seed=1))
        assert said[0].outputs[0].token_ids != greedy, "explicit parameters are taken as they are"


def test_the_models_own_length_gives_way_to_the_context(tmp_path):
    with LLM(checkpoint(tmp_path, generation_config={"max_new_tokens": 4096, "top_k": 1}), **SMALL) as llm:
        (output,) = llm.generate([5] * 20)
        assert 20 + len(output.outputs[0].token_ids) <= 64


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"generation_config": {"eos_token_id": [2, 4096]}}, r"generation_config\.json: the end id 4096.*\[0, 4096\)"),
        ({"generation_config": {"eos_token_id": -1}}, r"generation_config\.json: the end id -1"),
    ],
)
def test_an_end_the_model_cannot_give_is_refused_at_load_with_file_and_id(tmp_path, files, says):
    with pytest.raises(CheckpointError, match=says):
        LLM(checkpoint(tmp_path, **files), **SMALL)


def test_every_end_id_of_the_file_ends_an_answer(tmp_path):
    with LLM(checkpoint(tmp_path, generation_config={"eos_token_id": [7, 2, 9]}), **SMALL) as llm:
        assert llm.tokenizer.special.eos_ids == {2, 7, 9}
        bias = SamplingParams(temperature=0, logit_bias={9: 100.0}, max_tokens=5)
        assert llm.generate("The whale", bias)[0].outputs[0].token_ids == [9]


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"text_config": {"eos_token_id": [1, 106]}}, {1, 106}),
        ({"eos_token_id": None, "text_config": {"eos_token_id": 1}}, {1}),
        ({"eos_token_id": 2, "text_config": {"eos_token_id": 1}}, {2}),
        ({"text_config": None}, set()),
    ],
)
def test_end_ids_may_be_in_a_configs_text_part(tmp_path, config, wanted):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_generation_config(tmp_path).eos_ids == wanted
