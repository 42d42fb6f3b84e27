"""Fields that several requests share. A field that is left out or null has the model's default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from playhead.serve.protocol.notes import ignored, refused

STORED = "nothing is stored"
NO_BEAMS = "Ask for n samples with logprobs and compare them."
CACHED = "prefixes are cached by their tokens and by cache_salt"
Text = Annotated[str, Meta(max_length=512)]
Scalar = str | int | float | bool | None


class StreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`include_usage`: one more chunk at the end, without choices, has the usage."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, ignored("chunks are not padded")] = None
    continuous_usage_stats: Annotated[bool | None, refused("The last chunk has the usage.", False)] = None


class JsonSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named JSON schema. The answer always fits it, whether `strict` is said or not."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """Any JSON object."""


class JsonSchemaFormat(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """JSON that fits the schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer may look like, said in exactly one way. Names are vLLM's."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    """JSON has no white space between its parts unless this is false."""
    before: str | None = None
    """A grammar of what stands before the form. Left out: the reasoning of a model that reasons."""


class ServedFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a request is treated, and what clients send with every request."""

    model: str | None = None
    stream: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """Lower goes first."""
    cache_salt: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    structured_outputs: StructuredFields | None = None
    user: Annotated[str | None, ignored("API keys identify callers")] = None
    safety_identifier: Annotated[str | None, ignored("API keys identify callers")] = None
    metadata: Annotated[dict[str, str] | None, ignored(STORED)] = None
    store: Annotated[bool | None, ignored(STORED)] = None
    service_tier: Annotated[str | None, ignored("all requests are treated alike; priority orders them")] = None
    prompt_cache_key: Annotated[str | None, ignored(CACHED)] = None
    prompt_cache_retention: Annotated[str | None, ignored(CACHED)] = None
    prompt_cache_options: Annotated[dict[str, Scalar] | None, ignored(CACHED)] = None
    guided_json: Annotated[Any, refused("Use structured_outputs.json.")] = None
    guided_regex: Annotated[Any, refused("Use structured_outputs.regex.")] = None
    guided_choice: Annotated[Any, refused("Use structured_outputs.choice.")] = None
    guided_grammar: Annotated[Any, refused("Use structured_outputs.grammar.")] = None
    use_beam_search: Annotated[bool | None, refused(NO_BEAMS, False)] = None
    length_penalty: Annotated[float | None, refused(NO_BEAMS, 1.0)] = None
    logits_processors: Annotated[Any, refused("Use logit_bias, allowed_token_ids or bad_words.", [])] = None
    mm_processor_kwargs: Annotated[Any, refused("Leave it out: Playhead runs the text part of a model.", {})] = None
    thinking_token_budget: Annotated[int | None, refused("Bound the whole answer instead.")] = None
    return_token_ids: Annotated[bool | None, refused("Send the text to /tokenize.", False)] = None
    return_tokens_as_token_ids: Annotated[
        bool | None, refused("Leave it out: logprobs name tokens by their texts.", False)
    ] = None
    kv_transfer_params: Annotated[Any, refused("Leave it out: KV stays with its engine.", {})] = None
    vllm_xargs: Annotated[Any, refused("Leave it out: nothing here would read it.", {})] = None
    request_id: Annotated[str | None, refused("Send it as the header X-Request-Id.")] = None


class SamplingFields(ServedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are chosen and where an answer ends. Names and meanings are those of `SamplingParams`."""

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None


class Function(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call. `parameters` is a JSON schema."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.\-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
