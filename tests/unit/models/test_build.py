"""Configs become specs, or the key that stands in the way."""

from __future__ import annotations

import pytest

from playhead.errors import UnsupportedModelError
from playhead.layers.spec import LinearScaling, YarnScaling
from playhead.models.build import spec_from_config
from playhead.models.families import FAMILIES

S, F = "sliding_attention", "full_attention"


def windows(config):
    return [layer.attention.window for layer in spec_from_config(config).layers]


def test_an_unknown_model_type_is_refused_with_the_supported_ones():
    with pytest.raises(UnsupportedModelError, match=r"'model_type': found 'mamba'.*cohere2.*gemma3_text.*qwen3"):
        spec_from_config({"model_type": "mamba"})


def test_an_architecture_that_is_no_causal_decoder_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"'architectures'.*LlamaForCausalLM"):
        spec_from_config({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]})


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "llama", "hidden_act": "relu2"}, "hidden_act"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type"),
        (
            {"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 2.0, "surprise": 1}},
            "rope_scaling.surprise",
        ),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"model_type": "llama", "hidden_size": True}, "hidden_size"),
        ({"model_type": "llama", "hidden_size": -1}, "hidden_size"),
        ({"model_type": "llama", "rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "num_key_value_heads"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, "quant_method"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"model_type": "gemma3", "text_config": None}, "text_config"),
        ({"model_type": "gemma2", "layer_types": [S, F]}, "layer_types"),
        ({"model_type": "gemma2", "layer_types": ["linear_attention"] * 26}, "layer_types"),
        ({"model_type": "ministral", "sliding_window": None, "layer_types": [S] * 32}, "sliding_window"),
        ({"model_type": "cohere2", "use_qk_norm": True}, "use_qk_norm"),
        ({"model_type": "exaone4", "sliding_window_pattern": "LXG"}, "sliding_window_pattern"),
        ({"model_type": "gpt_oss", "num_experts_per_tok": 200}, "num_experts_per_tok"),
    ],
)
def test_an_unsupported_option_is_refused_by_its_key(config, key):
    with pytest.raises(UnsupportedModelError, match=key):
        spec_from_config(config)


@pytest.mark.parametrize("family", [f.model_type for f in FAMILIES if f.text_key is None])
def test_a_config_with_nothing_but_its_type_means_the_familys_defaults(family):
    assert spec_from_config({"model_type": family}).layers


def test_gemma3_has_five_window_layers_to_one_full():
    assert windows({"model_type": "gemma3_text", "sliding_window": 512, "num_hidden_layers": 7}) == [
        *[512] * 5,
        None,
        512,
    ]


def test_layer_types_win_over_the_familys_pattern():
    config = {"model_type": "gemma3_text", "sliding_window": 512, "num_hidden_layers": 3, "layer_types": [F, S, F]}
    assert windows(config) == [None, 512, None]


def test_a_window_that_is_switched_off_is_no_window():
    config = {"model_type": "qwen2", "sliding_window": 4096, "num_hidden_layers": 2, "max_window_layers": 0}
    assert windows({**config, "use_sliding_window": False}) == [None, None]
    assert windows({**config, "use_sliding_window": False, "layer_types": [S, S]}) == [None, None]
    assert windows({**config, "use_sliding_window": True}) == [4096, 4096]
    assert windows({**config, "use_sliding_window": True, "max_window_layers": 1}) == [None, 4096]


def test_mistral_without_a_window_sees_everything():
    assert set(windows({"model_type": "mistral", "sliding_window": None})) == {None}


def test_exaone_patterns_in_letters_end_with_a_full_layer():
    config = {"model_type": "exaone4", "sliding_window": 8, "num_hidden_layers": 6, "sliding_window_pattern": "LLLG"}
    assert windows(config) == [8, 8, 8, None, 8, None]


def test_nope_layers_have_no_rope():
    ropes = [layer.attention.rope for layer in spec_from_config({"model_type": "cohere2"}).layers[:4]]
    assert [rope is None for rope in ropes] == [False, False, False, True]


def test_gemma3_ropes_differ_by_layer_type_and_only_full_layers_are_scaled():
    config = {
        "model_type": "gemma3_text",
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    layers = spec_from_config(config).layers
    local, full = layers[0].attention.rope, layers[5].attention.rope
    assert (local.theta, local.scaling) == (10_000.0, None)
    assert (full.theta, full.scaling) == (1_000_000.0, LinearScaling(factor=8.0))


def test_old_and_new_spellings_of_rope_mean_the_same():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    old = spec_from_config({"model_type": "llama", "rope_theta": 5e5, "rope_scaling": yarn})
    new = spec_from_config({"model_type": "llama", "rope_parameters": {**yarn, "rope_theta": 5e5}})
    assert old == new
    assert isinstance(old.layers[0].attention.rope.scaling, YarnScaling)


def test_the_text_part_of_a_multimodal_gemma_is_the_decoder():
    text = {"hidden_size": 64, "num_hidden_layers": 2, "sliding_window": 16}
    spec = spec_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 9}})
    assert (spec.hidden_size, len(spec.layers)) == (64, 2)
