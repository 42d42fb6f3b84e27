"""The model's tokenizer as users of transformers and vLLM know it. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

from playhead.engine.conversations import OPTION_NAMES, Conversation, chat_options
from playhead.engine.front import PromptReader
from playhead.errors import RequestError
from playhead.inputs import Ids, checked_ids

SHAPES = frozenset({"padding", "truncation", "max_length", "return_tensors", "return_dict"})
"""What transformers can be told about the shape of the ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """What calling a tokenizer gives for one text. `tokenized["input_ids"]` works too."""

    input_ids: list[int]
    attention_mask: list[int]

    def __getitem__(self, key: Literal["input_ids", "attention_mask"]) -> list[int]:
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask}[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedTexts:
    """The same for several texts: a list for each."""

    input_ids: list[list[int]]
    attention_mask: list[list[int]]

    def __getitem__(self, key: Literal["input_ids", "attention_mask"]) -> list[list[int]]:
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask}[key]


class UserTokenizer:
    """Ids from text and text from ids, under transformers' names.

    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("The whale")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "The whale"
    """

    def __init__(self, reader: PromptReader) -> None:
        self._reader, self._tokenizer = reader, reader.tokenizer

    def __repr__(self) -> str:
        return f"UserTokenizer(vocab_size={self.vocab_size}, bos={self.bos_token!r}, eos={self.eos_token!r})"

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, added ones included."""
        return self._tokenizer.vocab_size

    @property
    def bos_token(self) -> str | None:
        return self._tokenizer.special.bos

    @property
    def eos_token(self) -> str | None:
        return self._tokenizer.special.eos

    @property
    def pad_token(self) -> str | None:
        """The end token: prompts are never padded, and scripts that pad by hand need some token."""
        return self.eos_token

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of(self.eos_token)

    @property
    def pad_token_id(self) -> int | None:
        return self.eos_token_id

    @property
    def all_special_ids(self) -> list[int]:
        return sorted(self._tokenizer.special.special_ids)

    @property
    def chat_template(self) -> str | None:
        """The model's own chat template, as Jinja source."""
        return self._tokenizer.chat_template

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id, as the tokenizer's file writes it."""
        return self._tokenizer.vocabulary()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, by default with what the tokenizer puts around it, as a prompt of text has."""
        if not isinstance(text, str):
            raise RequestError("encode", f"a {type(text).__name__}", "a str", "Call the tokenizer for a list of texts.")
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int] | Ids, skip_special_tokens: bool = False) -> str:
        """The text of one id or of many. Special tokens are in it unless they are to be skipped."""
        ids = [token_ids] if isinstance(token_ids, int) else checked_ids(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int] | Ids], skip_special_tokens: bool = False) -> list[str]:
        """The text of every sequence of ids."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text, as the tokenizer's file writes them."""
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens=False))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens of these ids, as the tokenizer's file writes them; an unknown id is an empty text."""
        names = {token_id: token for token, token_id in self._tokenizer.vocabulary().items()}
        return [names.get(token_id, "") for token_id in ids]

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...

    @overload
    def convert_tokens_to_ids(self, tokens: list[str] | tuple[str, ...]) -> list[int | None]: ...

    def convert_tokens_to_ids(self, tokens: str | list[str] | tuple[str, ...]) -> int | list[int | None] | None:
        """The id of a token as the tokenizer's file writes it, or of each of several; None for an unknown one."""
        if isinstance(tokens, str):
            return self._id_of(tokens)
        return [self._id_of(token) for token in tokens]

    @overload
    def __call__(self, text: str, add_special_tokens: bool = True) -> TokenizedText: ...

    @overload
    def __call__(self, text: list[str] | tuple[str, ...], add_special_tokens: bool = True) -> TokenizedTexts: ...

    def __call__(
        self, text: str | list[str] | tuple[str, ...], add_special_tokens: bool = True
    ) -> TokenizedText | TokenizedTexts:
        """`input_ids` and `attention_mask` of one text or of several, each as long as it is: nothing is padded."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return TokenizedText(input_ids=ids, attention_mask=[1] * len(ids))
        many = [self.encode(one, add_special_tokens) for one in text]
        return TokenizedTexts(input_ids=many, attention_mask=[[1] * len(ids) for ids in many])

    @overload
    def apply_chat_template(self, conversation: Conversation, *, tokenize: Literal[False], **options: Any) -> str: ...

    @overload
    def apply_chat_template(
        self, conversation: Conversation, *, tokenize: Literal[True] = True, **options: Any
    ) -> list[int]: ...

    def apply_chat_template(
        self, conversation: Conversation, *, tokenize: bool = True, **options: Any
    ) -> str | list[int]:
        """A conversation as the chat template writes it, as text or as ids.

        As in transformers the prompt does not begin an answer unless `add_generation_prompt=True` says so, and a
        keyword that is no option is a variable of the template: `enable_thinking=False`.
        """
        for name in SHAPES & options.keys():
            if options.pop(name):
                fix = "Leave it out: there is one text, or one list of ids."
                raise RequestError("apply_chat_template", f"the keyword {name!r}", "", fix)
        given = {name: options.pop(name) for name in OPTION_NAMES if name in options}
        wanted = chat_options({"add_generation_prompt": False, **given})
        wanted = replace(wanted, chat_template_kwargs={**wanted.chat_template_kwargs, **options})
        text = self._reader.chat_text(conversation, wanted)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_id(token)
