"""Prompts as callers write them. Names and keys are vLLM's. No torch.

llm.generate("The whale")
llm.generate([12, 57, 103])
llm.generate({"prompt": "The whale", "cache_salt": "tenant 7"})
llm.generate([TokensPrompt(prompt_token_ids=[12, 57, 103]), numpy_ids, torch_ids])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, Protocol, SupportsIndex, TypedDict, cast, runtime_checkable

from playhead.errors import RequestError, did_you_mean, shown


class TextPrompt(TypedDict):
    """A prompt as text. Prompts with different `cache_salt` share no cached prefix.

    >>> prompt = TextPrompt(prompt="The whale", cache_salt="tenant 7")
    >>> llm.generate(prompt, SamplingParams(max_tokens=2))[0].prompt
    'The whale'
    """

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids. `prompt` is the text they came from, which the output repeats.

    >>> prompt = TokensPrompt(prompt_token_ids=[12, 57, 103])
    >>> llm.generate(prompt, SamplingParams(max_tokens=2))[0].prompt_token_ids
    [12, 57, 103]
    """

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


@runtime_checkable
class Ids(Protocol):
    """Token ids in one array: numpy's or torch's, on any device."""

    @property
    def ndim(self) -> int: ...

    def tolist(self) -> Any: ...


# A table's type is as wide as a dict that was put into a variable first: `TextPrompt` and `TokensPrompt` are such.
Prompt = str | Sequence[int] | Ids | Mapping[str, object]
Prompts = Prompt | Sequence[Prompt]
PromptType = Prompt
"""vLLM's name, for lists that mix forms: `prompts: list[PromptType] = [...]`."""


class GenerateKeywords(TypedDict, total=False):
    """Keywords of vLLM's `generate` that ask for something Playhead does not have."""

    prompt_token_ids: object
    lora_request: object
    prompt_adapter_request: object
    guided_options_request: object
    priority: Sequence[int] | None
    tokenization_kwargs: Mapping[str, object] | None
    trace_headers: Mapping[str, str] | None
    data_parallel_rank: int | None


REFUSED_KEYWORDS = {
    "prompt_token_ids": 'Give the ids as prompts: generate([1, 2, 3]) or generate({"prompt_token_ids": [1, 2, 3]}).',
    "lora_request": "Playhead has no adapters: merge the adapter into the weights first.",
    "prompt_adapter_request": "Playhead has no adapters: merge the adapter into the weights first.",
    "guided_options_request": "Give structured_outputs to SamplingParams.",
    "priority": "AsyncEngine.generate takes a priority for each request.",
    "tokenization_kwargs": "Give truncate_prompt_tokens to SamplingParams, or encode the prompt first.",
    "trace_headers": "Spans are the server's: playhead serve --otel.",
    "data_parallel_rank": "An engine is one replica.",
}
CALL_NAMES = ("prompts", "sampling_params", "use_tqdm")

UNREAD_KEYS = {
    "multi_modal_data": "images, audio and video are not read: Playhead runs the text part of a model",
    "multi_modal_uuids": "images, audio and video are not read: Playhead runs the text part of a model",
    "mm_processor_kwargs": "images, audio and video are not read: Playhead runs the text part of a model",
    "prompt_embeds": "a prompt is text or token ids: Playhead takes no embeddings",
    "encoder_prompt": "Playhead runs decoders: there is no encoder to read it",
    "decoder_prompt": "Playhead runs decoders: the prompt stands under 'prompt'",
    "token_type_ids": "Playhead runs decoders, which have no token types",
}
PLAIN_LISTS = (list, tuple)
"""Sequences that are no `Ids`, known without a look at their methods, which takes longer than reading the prompt."""
PLAIN_PROMPTS = frozenset({*PLAIN_LISTS, str, dict})
KEYS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPrompt:
    """One prompt: its text, its ids, or both if the caller knows both; and its cache salt."""

    text: str | None = None
    ids: list[int] | None = None
    salt: str = ""


def refuse_keywords(keywords: Mapping[str, Any], names: Sequence[str] = CALL_NAMES) -> None:
    """Refuse every keyword of a call that asks for something; None asks for nothing. `names` are those it has."""
    for name, value in keywords.items():
        if name not in REFUSED_KEYWORDS:
            fix = did_you_mean(name, (*names, *REFUSED_KEYWORDS), "Leave it out.")
            raise RequestError("generate", f"the keyword {name!r}", f"one of {', '.join(names)}", fix)
        if value is not None:
            raise RequestError("generate", f"the keyword {name!r}", "", REFUSED_KEYWORDS[name])


def plain_prompt(prompt: object) -> PlainPrompt:
    """A prompt in any of its forms, or `RequestError`."""
    if type(prompt) not in PLAIN_LISTS:
        if isinstance(prompt, str):
            return PlainPrompt(text=prompt)
        if isinstance(prompt, Mapping):
            return _from_table(prompt)
    return PlainPrompt(ids=checked_ids(prompt))


def checked_ids(prompt: object) -> list[int]:
    """Token ids as ints, or `RequestError`: a bool, a float or a string among them is refused, not converted."""
    given: Any = prompt.tolist() if type(prompt) not in PLAIN_LISTS and isinstance(prompt, Ids) else prompt
    if type(given) in PLAIN_LISTS or (isinstance(given, Sequence) and not isinstance(given, bytes | bytearray | str)):
        kinds = set(map(type, given))
        if kinds <= {int}:
            return list(given)
        # numpy's and torch's whole numbers. Their truth values are no indices, Python's are.
        if all(issubclass(kind, SupportsIndex) and not issubclass(kind, bool) for kind in kinds):
            try:
                return [int(entry.__index__()) for entry in given]
            except (TypeError, ValueError):
                pass
    found = f"a {type(prompt).__name__} of other things than ints"
    raise RequestError("prompt", found, "text, or token ids", "Encode it first.")


def as_prompts(prompts: Prompts) -> list[Prompt]:
    """A list of prompts, whether one or many were given. Each is checked when it is read."""
    if type(prompts) not in PLAIN_LISTS:
        if isinstance(prompts, str | Mapping):
            return [prompts]
        if isinstance(prompts, Ids):
            return [prompts] if prompts.ndim == 1 else list(prompts.tolist())
        if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
            found = f"a {type(prompts).__name__}"
            raise RequestError("prompts", found, "text or ids, one or a list of them", "Put it into a list.")
    items = cast(Sequence[Any], prompts)
    num_numbers = 0 if PLAIN_PROMPTS.issuperset(map(type, items)) else sum(is_number(item) for item in items)
    if num_numbers and num_numbers < len(items):
        found = "ids and whole prompts in one list"
        raise RequestError("prompts", found, "one prompt of ids, or many prompts", "Put the ids into a list.")
    if num_numbers:
        return [items]  # as it is: the ids of a conversation know what ends its answer
    return [item for item in items if not isinstance(item, int)]


def is_number(item: object) -> bool:
    """Whether this is one id of a prompt, and no prompt. An array without dimensions is a number."""
    return isinstance(item, int) or (isinstance(item, Ids) and item.ndim == 0)


def _from_table(prompt: Mapping[Any, Any]) -> PlainPrompt:
    for key, value in prompt.items():
        if key in UNREAD_KEYS and value:
            raise RequestError("prompt", f"the key {key!r}", "", f"Leave it out: {UNREAD_KEYS[key]}.")
        if key not in UNREAD_KEYS and key not in KEYS:
            fix = did_you_mean(str(key), KEYS, "Leave it out.", spelled=repr)
            raise RequestError("prompt", f"the key {shown(key)}", f"one of {', '.join(KEYS)}", fix)
    text, ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt") or ""
    for key, value in (("prompt", text), ("cache_salt", salt)):
        if value is not None and not isinstance(value, str):
            raise RequestError(f"prompt, key {key!r}", f"a {type(value).__name__}", "a str", "Change it.")
    if text is None and ids is None:
        raise RequestError("prompt", "a dict without text or ids", "'prompt' or 'prompt_token_ids'", "Add one.")
    return PlainPrompt(text=text, ids=None if ids is None else checked_ids(ids), salt=salt)
