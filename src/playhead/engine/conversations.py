"""Conversations as callers write them, and how each becomes a prompt. Names are vLLM's. No torch.

[{"role": "user", "content": "hello"}]                                    one conversation
[{"role": "user", "content": [{"type": "text", "text": "hello"}]}]        the same, in parts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from playhead.errors import RequestError, did_you_mean, shown
from playhead.inputs import REFUSED_KEYWORDS

Message = Mapping[str, object]
Conversation = Sequence[Message]
Conversations = Conversation | Sequence[Conversation]

TEXT_PARTS = ("text", "input_text", "output_text")
UNREAD_PARTS = frozenset(
    {"image", "image_url", "input_image", "image_pil", "image_embeds", "video", "video_url"}
    | {"audio", "audio_url", "input_audio", "file"}
)
RESERVED = frozenset({"self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
"""Variables of a template that the engine sets."""

UNSERVED_KEYWORDS = ("lora_request", "prompt_adapter_request", "tokenization_kwargs")
"""Keywords of vLLM's `chat` that are refused for the reasons of its `generate`."""

END_MARK = "END_OF_THE_LAST_MESSAGE "
TEXT_ONLY = "Leave it out: images, audio and video are not read, for Playhead runs the text part of a model."


class ChatKeywords(TypedDict, total=False):
    """The fields of `ChatOptions` as keywords, and vLLM's names that Playhead has no use for."""

    add_generation_prompt: bool
    continue_final_message: bool
    chat_template: str | None
    tools: Sequence[Mapping[str, object]] | None
    chat_template_kwargs: Mapping[str, object] | None
    chat_template_content_format: str
    lora_request: object
    prompt_adapter_request: object
    mm_processor_kwargs: Mapping[str, object] | None
    tokenization_kwargs: Mapping[str, object] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a conversation is written out. Values are checked here; what they do is up to the template.

    `add_generation_prompt` ends the prompt where an answer begins. `continue_final_message` ends it inside the last
    message, which the model goes on with. `chat_template` is Jinja source that takes the place of the model's own.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    tools: Sequence[Mapping[str, object]] | None = None
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = (
            ("add_generation_prompt", self.add_generation_prompt, bool, "True or False"),
            ("continue_final_message", self.continue_final_message, bool, "True or False"),
            ("chat_template", self.chat_template, str | None, "Jinja source"),
            ("tools", self.tools, list | tuple | None, "a list of tables"),
            ("chat_template_kwargs", self.chat_template_kwargs, Mapping, "a table of the template's variables"),
        )
        for name, value, kind, wanted in kinds:
            if not isinstance(value, kind):
                raise RequestError(f"chat, {name}", f"a {type(value).__name__}", wanted, "Change it or leave it out.")
        for name in self.chat_template_kwargs:
            if not isinstance(name, str) or name in RESERVED:
                wanted = "the template's own variables"
                raise RequestError("chat, chat_template_kwargs", f"the key {shown(name)}", wanted, "Leave it out.")
        if self.add_generation_prompt and self.continue_final_message:
            raise RequestError(
                "chat",
                "add_generation_prompt=True and continue_final_message=True",
                "one of them",
                "Say add_generation_prompt=False: a prompt begins an answer or continues the last message, not both.",
            )


OPTION_NAMES = tuple(one.name for one in fields(ChatOptions))


def chat_options(keywords: Mapping[str, Any]) -> ChatOptions:
    """Options of the keywords of a call, or `RequestError` that names the keyword."""
    given = dict(keywords)
    for name in UNSERVED_KEYWORDS:
        if given.pop(name, None) is not None:
            raise RequestError("chat", f"the keyword {name!r}", "", REFUSED_KEYWORDS[name])
    if given.pop("mm_processor_kwargs", None):
        raise RequestError("chat", "mm_processor_kwargs", "", TEXT_ONLY)
    content_format = given.pop("chat_template_content_format", "auto")
    if content_format not in ("auto", "string"):
        found = f"chat_template_content_format={shown(content_format)}"
        raise RequestError("chat", found, "'auto' or 'string'", "Text parts are joined before the template sees them.")
    for name in given:
        if name not in OPTION_NAMES:
            fix = did_you_mean(name, OPTION_NAMES, "Leave it out.")
            raise RequestError("chat", f"the keyword {name!r}", f"one of {', '.join(OPTION_NAMES)}", fix)
    if given.get("chat_template_kwargs", {}) is None:
        del given["chat_template_kwargs"]
    return ChatOptions(**given)


def as_conversations(messages: Conversations) -> list[Conversation]:
    """A list of conversations, whether one or many were given."""
    if not isinstance(messages, list | tuple) or not messages:
        found = "no messages" if isinstance(messages, list | tuple) else f"a {type(messages).__name__}"
        raise RequestError("chat", found, "a list of messages, or a list of such lists", 'Give [{"role": ...}].')
    tables = [isinstance(item, Mapping) for item in messages]
    if any(tables) and not all(tables):
        raise RequestError(
            "chat", "messages and conversations in one list", "one of the two", "Put messages into lists."
        )
    return [messages] if any(tables) else list(messages)


def plain_messages(messages: Conversation) -> list[dict[str, object]]:
    """Messages whose content is text: parts of text are joined by line ends, and other parts are refused."""
    if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
        raise RequestError("chat", f"a {type(messages).__name__}", "a list of messages", 'Give [{"role": ...}].')
    return [{**message, **_plain_content(message)} for message in messages]


def _plain_content(message: Message) -> dict[str, object]:
    content = message.get("content")
    if isinstance(content, str) or "content" not in message:
        return {}
    if content is None:  # templates ask whether calls have a text beside them; of any other message they write "None"
        return {} if message.get("tool_calls") else {"content": ""}
    if not isinstance(content, list | tuple):
        raise RequestError("chat, key 'content'", f"a {type(content).__name__}", "text, or parts of text", "Change it.")
    return {"content": "\n".join(_part_text(part) for part in content)}


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in UNREAD_PARTS:
        raise RequestError("chat", f"a content part of type {kind!r}", "parts of type 'text'", TEXT_ONLY)
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind not in TEXT_PARTS or not isinstance(text, str):
        raise RequestError("chat", f"the content part {shown(part)}", '{"type": "text", "text": ...}', "Change it.")
    return text


def with_mark(messages: Sequence[Message]) -> list[Message]:
    """The messages with a mark at the end of the last one's text, for `up_to_mark`.

    The text itself is no mark: "<" or "end" stand in `<|im_end|>` too, which the template writes after it.
    """
    final = messages[-1].get("content") if messages else None
    if not isinstance(final, str):
        raise left_out()
    return [*messages[:-1], {**messages[-1], "content": final + END_MARK}]


def up_to_mark(prompt: str) -> str:
    """The prompt up to the end of the last message's text, as transformers cuts it: what follows is the model's."""
    before, mark, after = prompt.rpartition(END_MARK.strip())
    if not mark:
        raise left_out()
    # A template that trims the message has trimmed the mark's space, and the message has none at its end.
    return before if after.startswith(" ") else before.rstrip()


def left_out() -> RequestError:
    found = "a last message whose text the chat template leaves out or changes"
    return RequestError("chat, continue_final_message", found, "its text in the prompt", "Use generate instead.")
