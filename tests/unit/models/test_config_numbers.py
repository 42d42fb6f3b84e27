"""Numbers that no model can have are refused by the name of their key, before anything is loaded."""

from __future__ import annotations

import pytest
import torch

from playhead.errors import UnsupportedModelError
from playhead.layers.rope import Rope
from playhead.models.build import config_problems, spec_from_config
from playhead.models.config import RANGES
from playhead.models.families import FAMILIES

NAN, INF = float("nan"), float("inf")
SENSELESS = (NAN, INF, -INF, -1, 10**30, "12", True, [8])
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Where a key is read: a family, and the table of its config that has it.
IN_ROPE = {
    **dict.fromkeys(("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"), YARN),
    **dict.fromkeys(("factor", "rope_theta", "original_max_position_embeddings", "partial_rotary_factor"), YARN),
    **dict.fromkeys(("low_freq_factor", "high_freq_factor"), LLAMA3),
}
FAMILY_OF = {
    "layer_norm_eps": "cohere2",
    "logit_scale": "cohere2",
    "sliding_window": "gemma2",
    "attn_logit_softcapping": "gemma2",
    "final_logit_softcapping": "gemma2",
    "query_pre_attn_scalar": "gemma2",
    "rope_local_base_freq": "gemma3_text",
    "sliding_window_pattern": "gemma3_text",
    "num_local_experts": "gpt_oss",
    "num_experts_per_tok": "gpt_oss",
    "swiglu_alpha": "gpt_oss",
    "swiglu_limit": "gpt_oss",
    "max_window_layers": "qwen2",
    "no_rope_layer_interval": "smollm3",
    "embedding_multiplier": "granite",
    "attention_multiplier": "granite",
    "residual_multiplier": "granite",
    "logits_scaling": "granite",
}


def config_with(key, value):
    """A config that reads the key, with this value for it."""
    config = {"model_type": FAMILY_OF.get(key, "llama"), "use_sliding_window": True}
    return {**config, "rope_scaling": {**IN_ROPE[key], key: value}} if key in IN_ROPE else {**config, key: value}


@pytest.mark.parametrize("value", SENSELESS, ids=str)
@pytest.mark.parametrize("key", RANGES)
def test_a_number_no_model_can_have_is_refused_by_its_key(key, value):
    with pytest.raises(UnsupportedModelError, match=rf"config key '[\w.]*{key}'"):
        spec_from_config(config_with(key, value))


ZERO_MEANS_SOMETHING = {"max_window_layers", "mscale", "mscale_all_dim"}


@pytest.mark.parametrize("key", sorted(RANGES.keys() - ZERO_MEANS_SOMETHING))
def test_zero_is_refused_by_its_key(key):
    with pytest.raises(UnsupportedModelError, match=rf"config key '[\w.]*{key}'"):
        spec_from_config(config_with(key, 0))


def tables_of(spec):
    """All numbers that a decoder of this spec multiplies and divides by, in float32."""
    ropes = {layer.attention.rope for layer in spec.layers} - {None}
    tables = [Rope(rope, 64, device=torch.device("cpu")).table_PR.flatten() for rope in ropes]
    layer = spec.layers[0]
    numbers = [spec.embed_scale, spec.logit_scale, layer.attention.scale, layer.attention.output_scale, layer.norm.eps]
    numbers += [cap for cap in (spec.final_softcap, layer.attention.softcap) if cap is not None]
    return torch.cat((*tables, torch.tensor(numbers), 1 / torch.tensor(numbers)))


FRACTIONS = sorted(key for key, allowed in RANGES.items() if not allowed.is_whole)


# The low factor must be below the high one.
CONTRADICTING = {("low_freq_factor", 1e18), ("high_freq_factor", 1e-18)}
ENDS = [(key, end) for key in FRACTIONS for end in (RANGES[key].least, RANGES[key].most) if RANGES[key].holds(end)]


@pytest.mark.parametrize("key", [key for key in FRACTIONS if key not in ZERO_MEANS_SOMETHING])
def test_a_number_that_float32_takes_for_zero_is_refused_by_its_key(key):
    with pytest.raises(UnsupportedModelError, match=rf"config key '[\w.]*{key}'"):
        spec_from_config(config_with(key, 1e-300))


@pytest.mark.parametrize(("key", "value"), [end for end in ENDS if end not in CONTRADICTING])
def test_the_ends_of_a_range_leave_finite_numbers(key, value):
    assert torch.isfinite(tables_of(spec_from_config(config_with(key, value)))).all()


@pytest.mark.parametrize("key", sorted(ZERO_MEANS_SOMETHING))
def test_zero_is_taken_where_it_says_something(key):
    assert spec_from_config(config_with(key, 0)).layers


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "llama", "num_key_value_heads": 5}, "num_key_value_heads"),
        ({"model_type": "llama", "head_dim": 7}, "head_dim"),
        ({"model_type": "llama", "hidden_size": 8}, "head_dim"),
        ({"model_type": "llama", "rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor"),
        ({"model_type": "gpt_oss", "num_local_experts": 2}, "num_experts_per_tok"),
        ({"model_type": "llama", "is_causal": False}, "is_causal"),
        ({"model_type": "llama", "per_layer_config": {"0": {"head_dim": 8}}}, "per_layer_config"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(config, key):
    with pytest.raises(UnsupportedModelError, match=key):
        spec_from_config(config)


def test_all_problems_of_a_config_are_listed():
    config = {"model_type": "gemma2", "rms_norm_eps": 0, "vocab_size": 0, "final_logit_softcapping": NAN}
    problems = config_problems({**config, "rope_scaling": {"rope_type": "linear", "factor": 0}, "hidden_size": "x"})
    keys = [problem.split("'")[1] for problem in problems]
    assert sorted(keys) == [
        "final_logit_softcapping",
        "hidden_size",
        "rms_norm_eps",
        "rope_scaling.factor",
        "vocab_size",
    ]


def test_the_error_of_a_load_names_every_wrong_key():
    with pytest.raises(UnsupportedModelError, match=r"'hidden_size'.*Also wrong: vocab_size, rms_norm_eps\."):
        spec_from_config({"model_type": "llama", "hidden_size": 0, "vocab_size": -3, "rms_norm_eps": 0.0})


@pytest.mark.parametrize("model_type", [family.model_type for family in FAMILIES if family.text_key is None])
def test_a_sound_config_has_no_problems(model_type):
    assert config_problems({"model_type": model_type}) == []


def test_a_mistyped_model_type_is_answered_with_the_nearest():
    assert "The nearest is 'gemma3_text'." in config_problems({"model_type": "gemma3-text"})[0]
