"""A model's tokenizer: text in, ids out, and which ids are special."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as Backend

from playhead.models.config import read_json
from playhead.models.errors import CheckpointError
from playhead.models.text.detokenize import IncrementalDetokenizer
from playhead.models.text.token_bytes import TokenBytes

MAX_TOKENIZER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Tokens with a meaning. `eos_ids` end a generation; `special_ids` are left out of text shown to people."""

    bos: str | None
    eos: str | None
    eos_ids: frozenset[int]
    special_ids: frozenset[int]


class Tokenizer:
    """Ids from text and text from ids. Chat templates write special tokens as text, so those are always recognised."""

    def __init__(self, backend: Backend, special: SpecialTokens, *, chat_template: str | None = None) -> None:
        self._backend, self.special, self.chat_template = backend, special, chat_template
        self._token_bytes = TokenBytes(backend)

    @property
    def vocab_size(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """`add_special_tokens` adds what the tokenizer puts around plain text; a chat template has already done so."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.feed(token_ids) + detokenizer.finish()

    def detokenizer(self, *, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        """A fresh one, for one stream of tokens."""
        skipped = self.special.special_ids if skip_special_tokens else ()
        return IncrementalDetokenizer(self._token_bytes, skipped_ids=skipped)


def tokenizer_from_directory(directory: Path) -> Tokenizer:
    """From tokenizer.json, with special tokens and template from the files beside it."""
    path = directory / "tokenizer.json"
    if not path.is_file() or path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(
            "tokenizer.json",
            "no such file, or one over 256 MiB",
            "the fast tokenizer's file",
            "Slow tokenizers run code of their own and are not read; convert it once with transformers.",
        )
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises Exception itself, for anything it cannot read
        raise CheckpointError("tokenizer.json", str(error), "a tokenizer", "Download it again.") from None
    config = _json_or_empty(directory / "tokenizer_config.json")
    bos, eos = _token_text(config.get("bos_token")), _token_text(config.get("eos_token"))
    endings = eos_ids(directory) | ({backend.token_to_id(eos)} if eos is not None else set())
    special = SpecialTokens(
        bos=bos,
        eos=eos,
        eos_ids=frozenset(token_id for token_id in endings if token_id is not None),
        special_ids=frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special),
    )
    return Tokenizer(backend, special, chat_template=_chat_template(directory, config))


def _json_or_empty(path: Path) -> dict[str, object]:
    return read_json(path) if path.is_file() else {}


def _token_text(value: object) -> str | None:
    """A special token is written as text, or as a table with its text under `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def eos_ids(directory: Path) -> set[int]:
    """What the model's authors end a generation on: the generation config's word, or else the model config's."""
    for name in ("generation_config.json", "config.json"):
        value = _json_or_empty(directory / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if found := {i for i in ids if isinstance(i, int) and not isinstance(i, bool)}:
            return found
    return set()


def _chat_template(directory: Path, tokenizer_config: dict[str, object]) -> str | None:
    """The template in its own file, or the default one of those in the tokenizer's config."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
