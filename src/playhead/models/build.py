"""From a config to a `ModelSpec`, or to the reason why not."""

from __future__ import annotations

from collections.abc import Mapping

from playhead.layers.spec import Activation, AttentionSpec, MlpSpec, MoeSpec, NormSpec
from playhead.models.config import MAX_LAYERS, ConfigReader
from playhead.models.errors import UnsupportedModelError
from playhead.models.families import FAMILIES
from playhead.models.family import FULL_LAYER, WINDOW_LAYER, Family, RopeOn, Switch
from playhead.models.rope_config import read_ropes
from playhead.models.spec import LayerSpec, ModelSpec

ACTIVATIONS = {
    "silu": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}


def spec_from_config(config: Mapping[str, object]) -> ModelSpec:
    """The decoder a config.json describes. What is not supported is refused by the key that asks for it."""
    family = family_named(config.get("model_type"))
    architectures = ConfigReader(config).texts_or_none("architectures")
    if architectures and not set(architectures) & set(family.architectures):
        raise UnsupportedModelError("architectures", list(architectures), family.architectures)
    return _build(family, _text_config(family, config))


def family_named(model_type: object) -> Family:
    by_type = {family.model_type: family for family in FAMILIES}
    if not isinstance(model_type, str) or model_type not in by_type:
        raise UnsupportedModelError("model_type", model_type, sorted(by_type))
    return by_type[model_type]


def _text_config(family: Family, config: Mapping[str, object]) -> ConfigReader:
    if family.text_key is None:
        return ConfigReader(config, family.defaults)
    text = config.get(family.text_key)
    if not isinstance(text, Mapping):
        raise UnsupportedModelError(family.text_key, text, ["a table that describes the decoder"])
    return ConfigReader(text, family.defaults)


def _build(family: Family, config: ConfigReader) -> ModelSpec:
    for key, allowed in family.required.items():
        config.require(key, allowed)
    quantization = config.table_or_none("quantization_config")
    if quantization is not None:
        quantization.require("quant_method", ("mxfp4",) if family.has_experts else ("none",))
    hidden_size = config.size("hidden_size")
    return ModelSpec(
        family=family.model_type,
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        max_context_tokens=config.size("max_position_embeddings"),
        layers=_layers(family, config),
        final_norm=_norm(family, config),
        embed_scale=hidden_size**0.5 if family.has_scaled_embedding else 1.0,
        is_tied=config.flag("tie_word_embeddings"),
        logit_scale=config.number("logit_scale") if family.has_logit_scale else 1.0,
        final_softcap=config.number_or_none("final_logit_softcapping"),
    )


def _layers(family: Family, config: ConfigReader) -> tuple[LayerSpec, ...]:
    num_heads, hidden_size = config.size("num_attention_heads"), config.size("hidden_size")
    num_kv_heads = config.size_or("num_key_value_heads", num_heads)
    head_dim = config.size_or("head_dim", hidden_size // num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModelError("num_key_value_heads", num_kv_heads, [f"a divisor of {num_heads} heads"])
    windows = _windows(family, config)
    ropes = read_ropes(family, config, head_dim)

    def layer(window: int | None) -> LayerSpec:
        rotates = (
            family.rope_on is RopeOn.ALL
            or window is not None
            or (family.rope_on is RopeOn.WINDOWED_IF_NAMED and not config.has("sliding_window"))
        )
        attention = AttentionSpec(
            window=window,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            k_head_dim=head_dim,
            v_head_dim=head_dim,
            scale=(config.number(family.scale_key) if family.scale_key else head_dim) ** -0.5,
            rope=ropes[FULL_LAYER if window is None else WINDOW_LAYER] if rotates else None,
            softcap=config.number_or_none("attn_logit_softcapping"),
            has_sinks=family.has_sinks,
            qk_norm=family.qk_norm,
            has_qkv_bias=_switch(config, family.qkv_bias),
            has_output_bias=_switch(config, family.output_bias),
        )
        return LayerSpec(
            attention=attention,
            mlp=_experts(config) if family.has_experts else _mlp(family, config),
            norm=_norm(family, config),
            placement=family.placement,
        )

    return tuple(layer(window) for window in windows)


def _windows(family: Family, config: ConfigReader) -> list[int | None]:
    """Each layer's window, counted as everywhere here: keys a query sees, itself included.

    Configs count the same way: a layer with `sliding_window` W lets position q see k > q - W, which is W keys. Engines
    whose kernels count the keys *before* the query subtract one; nothing here does.
    """
    num_layers = config.size("num_hidden_layers", at_most=MAX_LAYERS)
    types = list(config.texts_or_none("layer_types") or family.layer_types(config, num_layers))
    if len(types) != num_layers:
        raise UnsupportedModelError("layer_types", f"{len(types)} entries", [f"{num_layers}, one per layer"])
    if unknown := sorted(set(types) - {WINDOW_LAYER, FULL_LAYER}):
        raise UnsupportedModelError("layer_types", unknown, [WINDOW_LAYER, FULL_LAYER])
    # Qwen configs carry a window that is switched off.
    if config.value("use_sliding_window") is False or WINDOW_LAYER not in types:
        return [None] * num_layers
    window = config.size("sliding_window")
    return [window if layer_type == WINDOW_LAYER else None for layer_type in types]


def _switch(config: ConfigReader, switch: Switch) -> bool:
    return config.flag(switch) if isinstance(switch, str) else switch


def _norm(family: Family, config: ConfigReader) -> NormSpec:
    return NormSpec(kind=family.norm, eps=config.number(family.norm_eps_key))


def _mlp(family: Family, config: ConfigReader) -> MlpSpec:
    name = config.value(family.activation_key)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise UnsupportedModelError(family.activation_key, name, sorted(ACTIVATIONS))
    return MlpSpec(
        size=config.size("intermediate_size"),
        activation=ACTIVATIONS[name],
        has_bias=_switch(config, family.mlp_bias),
    )


def _experts(config: ConfigReader) -> MoeSpec:
    num_experts, top_k = config.size("num_local_experts"), config.size("num_experts_per_tok")
    if top_k > num_experts:
        raise UnsupportedModelError("num_experts_per_tok", top_k, [f"at most {num_experts}, the number of experts"])
    return MoeSpec(
        num_experts=num_experts,
        top_k=top_k,
        size=config.size("intermediate_size"),
        swiglu_alpha=config.number("swiglu_alpha"),
        swiglu_limit=config.number("swiglu_limit"),
    )
