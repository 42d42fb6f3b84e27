"""The tokenizer of a model that came without one, or of an engine that meets no text: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel
from tokenizers.models import WordLevel

from playhead.errors import RequestError
from playhead.models.text.tokenizer import SpecialTokens, Tokenizer


class IdsOnlyTokenizer(Tokenizer):
    """Refuses text and gives none: over an empty vocabulary every token stands for nothing."""

    has_text = False

    def __init__(self, eos_ids: Iterable[int] = ()) -> None:
        backend = Backend(WordLevel({}, unk_token=""))
        backend.decoder = ByteLevel()  # of what is decoded there is nothing; the detokenizer wants to know how
        super().__init__(backend, SpecialTokens(eos_ids=frozenset(eos_ids)))

    def encode(self, text: str, *, add_special_tokens: bool, max_context: int | None = None) -> NoReturn:
        raise RequestError(
            "prompt", "text, for a model without a tokenizer", "token ids", "Encode it first, or load the tokenizer."
        )


class LateTokenizer(IdsOnlyTokenizer):
    """For an engine whose prompts are read in another process. The files are read when a grammar asks for tokens.

    Reading them takes up to seconds, and holds the interpreter's lock: beside weights it would keep those waiting.
    """

    def __init__(self, read: Callable[[], Tokenizer]) -> None:
        super().__init__()
        self._read = read

    def for_grammars(self) -> Tokenizer:
        return self._read()
