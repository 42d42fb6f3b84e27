"""From a config to a `ModelSpec`, or to the reason why not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from playhead.errors import UnsupportedModelError
from playhead.layers.spec import Activation, AttentionSpec, MlpSpec, MoeSpec, NormSpec, StoredAs
from playhead.models.config import ConfigReader
from playhead.models.families import FAMILIES
from playhead.models.family import FULL_LAYER, WINDOW_LAYER, Family, Switch
from playhead.models.rope_config import read_ropes
from playhead.models.spec import LayerSpec, ModelSpec

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
}

# Options of every config that this decoder has one answer to.
REQUIRED: Mapping[str, tuple[object, ...]] = {"is_causal": (True,), "per_layer_config": ({},)}


def spec_from_config(config: Mapping[str, object]) -> ModelSpec:
    """The decoder a config.json describes. What is not supported is refused by the key that asks for it."""
    spec, problems = _read(config)
    if problems:
        first, others = problems[0], [error.key for error in problems[1:]]
        raise first if not others else first.with_more(others)
    assert spec is not None, "a config without problems has a spec"
    return spec


def config_problems(config: Mapping[str, object]) -> list[str]:
    """Everything that stands between this config and a decoder, in the order it is read. Nothing is loaded."""
    return [str(error) for error in _read(config)[1]]


def _read(config: Mapping[str, object]) -> tuple[ModelSpec | None, list[UnsupportedModelError]]:
    """The spec and the config's problems. The spec may be used only if there are none."""
    try:
        family = family_named(config.get("model_type"))
    except UnsupportedModelError as error:
        return None, [error]
    problems: list[UnsupportedModelError] = []
    outer = ConfigReader(config, problems)
    architectures = outer.texts_or_none("architectures")
    if architectures and not set(architectures) & set(family.architectures):
        outer.refuse("architectures", list(architectures), family.architectures)
    text = config
    if family.text_key is not None:
        inner = config.get(family.text_key)
        if not isinstance(inner, Mapping):
            outer.refuse(family.text_key, inner, ["a table that describes the decoder"])
            return None, problems
        text = inner
    defaults = {**family.sizes.by_key, **family.defaults}
    renamed = {family.aliases[alias]: text[alias] for alias in family.aliases if alias in text}
    return _build(family, outer, ConfigReader({**text, **renamed}, problems, defaults=defaults)), problems


def family_named(model_type: object) -> Family:
    by_type = {family.model_type: family for family in FAMILIES}
    if not isinstance(model_type, str) or model_type not in by_type:
        close = difflib.get_close_matches(model_type, by_type, n=1) if isinstance(model_type, str) else []
        fix = f"The nearest is {close[0]!r}." if close else ""
        raise UnsupportedModelError("model_type", model_type, sorted(by_type), fix)
    return by_type[model_type]


def _build(family: Family, outer: ConfigReader, config: ConfigReader) -> ModelSpec:
    """The spec of a config's text part; `outer` is the whole config, which is the same for most families."""
    for key, allowed in {**REQUIRED, **family.required}.items():
        config.require(key, allowed)
    hidden_size = config.size("hidden_size")
    return ModelSpec(
        family=family.model_type,
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        max_context_tokens=config.size("max_position_embeddings"),
        layers=_layers(family, config),
        final_norm=_norm(family, config),
        embed_scale=hidden_size**0.5 if family.has_scaled_embedding else _scale(config, family.embed_scale_key),
        has_rounded_embed_scale=family.has_scaled_embedding,
        is_tied=_is_tied(family, outer, config),
        logit_scale=_scale(config, family.logit_scale_key) / _scale(config, family.logit_divisor_key),
        final_softcap=_number_or_none(config, family.final_softcap_key),
        stored_as=_stored_as(family, outer, config),
    )


def _stored_as(family: Family, outer: ConfigReader, config: ConfigReader) -> StoredAs:
    """The weight format that the checkpoint's `quantization_config` asks for, at either level; plain without one."""
    stored_as = StoredAs.PLAIN
    for level in dict.fromkeys((outer, config)):
        quantization = level.table_or_none("quantization_config")
        if quantization is not None:
            quantization.require("quant_method", tuple(family.quant_methods) or ("none",))
            stored_as = family.quant_methods.get(quantization.text_or("quant_method", ""), stored_as)
    return stored_as


def _is_tied(family: Family, outer: ConfigReader, config: ConfigReader) -> bool:
    """Whether the head is the embedding. Of a config with a text part, the outer level says, and says so by default."""
    if family.text_key is None:
        return config.flag("tie_word_embeddings")
    return outer.flag("tie_word_embeddings") if outer.has("tie_word_embeddings") else True


def _scale(config: ConfigReader, key: str | None) -> float:
    return 1.0 if key is None else config.number(key)


def _number_or_none(config: ConfigReader, key: str | None) -> float | None:
    return None if key is None else config.number_or_none(key)


def _layers(family: Family, config: ConfigReader) -> tuple[LayerSpec, ...]:
    num_heads, hidden_size = config.size("num_attention_heads"), config.size("hidden_size")
    num_kv_heads = config.size_or("num_key_value_heads", num_heads)
    head_dim = config.size_or("head_dim", max(1, hidden_size // num_heads))
    if config.is_sound and num_heads % num_kv_heads:
        config.refuse("num_key_value_heads", num_kv_heads, [f"a divisor of {num_heads} heads"])
    windows = _windows(family, config)
    ropes = read_ropes(family, config, head_dim)

    def layer(window: int | None, rotates: bool) -> LayerSpec:
        attention = AttentionSpec(
            window=window,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            k_head_dim=head_dim,
            v_head_dim=head_dim,
            scale=(config.number(family.scale_key) if family.scale_key else head_dim) ** family.scale_power,
            rope=ropes[FULL_LAYER if window is None else WINDOW_LAYER] if rotates else None,
            softcap=_number_or_none(config, family.attention_softcap_key),
            has_sinks=family.has_sinks,
            qk_norm=family.qk_norm,
            has_qkv_bias=_switch(config, family.qkv_bias),
            has_output_bias=_switch(config, family.output_bias),
            output_scale=_scale(config, family.residual_scale_key),
        )
        return LayerSpec(
            attention=attention,
            mlp=_experts(config) if family.has_experts else _mlp(family, config),
            norm=_norm(family, config),
            placement=family.placement,
        )

    return tuple(layer(*each) for each in zip(windows, family.rope_on(config, windows), strict=True))


def _windows(family: Family, config: ConfigReader) -> list[int | None]:
    """Each layer's window, counted as everywhere here: keys a query sees, itself included.

    Configs count the same way: a layer with `sliding_window` W lets position q see k > q - W, which is W keys. Engines
    whose kernels count the keys *before* the query subtract one; nothing here does.
    """
    num_layers = config.size("num_hidden_layers")
    if family.layer_types is None:
        return [None] * num_layers
    named = config.texts_or_none("layer_types") if family.reads_layer_types else None
    types = list(named or family.layer_types(config, num_layers))
    if config.is_sound and len(types) != num_layers:
        config.refuse("layer_types", f"{len(types)} entries", [f"{num_layers}, one per layer"])
    if unknown := sorted(set(types) - {WINDOW_LAYER, FULL_LAYER}):
        config.refuse("layer_types", unknown, [WINDOW_LAYER, FULL_LAYER])
    # Qwen configs carry a window that is switched off.
    is_off = family.has_window_switch and not config.flag("use_sliding_window")
    if is_off or WINDOW_LAYER not in types:
        return [None] * num_layers
    window = config.size("sliding_window")
    return [window if layer_type == WINDOW_LAYER else None for layer_type in types]


def _switch(config: ConfigReader, switch: Switch) -> bool:
    return config.flag(switch) if isinstance(switch, str) else switch


def _norm(family: Family, config: ConfigReader) -> NormSpec:
    return NormSpec(kind=family.norm, eps=config.number(family.norm_eps_key))


def _mlp(family: Family, config: ConfigReader) -> MlpSpec:
    name = config.value(family.activation_key)
    if isinstance(name, str):
        name = family.activation_aliases.get(name, name)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        config.refuse(family.activation_key, name, sorted(ACTIVATIONS))
        name = "silu"
    return MlpSpec(
        size=config.size("intermediate_size"),
        activation=ACTIVATIONS[name],
        has_bias=_switch(config, family.mlp_bias),
        output_scale=_scale(config, family.residual_scale_key),
    )


def _experts(config: ConfigReader) -> MoeSpec:
    num_experts, top_k = config.size("num_local_experts"), config.size("num_experts_per_tok")
    if config.is_sound and top_k > num_experts:
        config.refuse("num_experts_per_tok", top_k, [f"at most {num_experts}, the number of experts"])
    return MoeSpec(
        num_experts=num_experts,
        top_k=top_k,
        size=config.size("intermediate_size"),
        swiglu_alpha=config.number("swiglu_alpha"),
        swiglu_limit=config.number("swiglu_limit"),
    )
