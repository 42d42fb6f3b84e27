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
        ({"model_type": "cohere", "use_qk_norm": True}, "use_qk_norm"),
        ({"model_type": "cohere2", "use_qk_norm": True}, "use_qk_norm"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "rope_type"),
        ({"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.001}, "partial_rotary_factor"),
        ({"model_type": "glm4", "partial_rotary_factor": 0.26}, "partial_rotary_factor"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"model_type": "smollm3", "no_rope_layers": [2] * 36}, "no_rope_layers"),
        ({"model_type": "smollm3", "no_rope_layers": "1010"}, "no_rope_layers"),
        ({"model_type": "granite", "quantization_config": {"quant_method": "fp8"}}, "quant_method"),
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


def rotating(config):
    return [layer.attention.rope is not None for layer in spec_from_config(config).layers]


def test_a_list_says_which_layers_have_rope():
    config = {"model_type": "smollm3", "num_hidden_layers": 5}
    assert rotating(config) == [True, True, True, False, True]
    assert rotating({**config, "no_rope_layer_interval": 2}) == [True, False, True, False, True]
    assert rotating({**config, "no_rope_layers": [0, 1, 1, 0, 1, 1]}) == [False, True, True, False, True]


def test_the_layers_without_rope_are_those_with_a_window():
    config = {"model_type": "smollm3", "num_hidden_layers": 4, "sliding_window": 8, "no_rope_layers": [0, 1, 1, 0]}
    assert windows(config) == [None] * 4
    assert windows({**config, "use_sliding_window": True}) == [8, None, None, 8]


def test_a_part_of_each_head_rotates_where_the_family_reads_the_factor():
    dims = {}
    for model_type in ("glm4", "phi3", "llama"):
        config = {"model_type": model_type, "head_dim": 64, "partial_rotary_factor": 0.75}
        dims[model_type] = spec_from_config(config).layers[0].attention.rope.rotary_dim
    assert dims == {"glm4": 48, "phi3": 48, "llama": 64}


def test_granites_factors_stand_where_they_multiply():
    factors = {"embedding_multiplier": 12, "attention_multiplier": 0.5, "residual_multiplier": 0.22}
    spec = spec_from_config({"model_type": "granite", "logits_scaling": 8, **factors})
    layer = spec.layers[0]
    assert (spec.embed_scale, spec.logit_scale, layer.attention.scale) == (12, 0.125, 0.5)
    assert layer.attention.output_scale == layer.mlp.output_scale == 0.22


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
