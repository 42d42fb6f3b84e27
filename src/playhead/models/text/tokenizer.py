"""A model's tokenizer: text in, ids out, and which ids are special."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram

from playhead.errors import CheckpointError, RequestError, shown
from playhead.models.text.chat import MAX_SOURCE_CHARS
from playhead.models.text.decoder_rules import part_state
from playhead.models.text.detokenize import IncrementalDetokenizer, TokenBytes
from playhead.models.text.generation_config import end_ids
from playhead.models.text.library import library_failures
from playhead.models.text.token_files import complete, json_or_empty, read_token_files

MAX_TOKENIZER_BYTES = 64 << 20
"""Twice the largest there is; the library needs up to ten times that to read it."""

MAX_TOKENIZER_VALUES = 4_000_000
"""A vocabulary of 262,144 tokens and its 514,906 merges have 1.8 million."""

MAX_PARTS = 64
MAX_GROWTH = 64
SAMPLE_TEXT = "Hello, world! 3.14 naïve 日本\n"

MAX_TEMPLATE_BYTES = 4 * MAX_SOURCE_CHARS
"""UTF-8 has at most four bytes for a character."""

DEFAULT, WITH_TOOLS = "default", "tool_use"
"""Names of chat templates, where a model has several. Others are for formats that no request asks for."""

CHAT_STOPS = "chat_stop_strings"
MAX_CHAT_STOPS = 4
MAX_STOP_CHARS = 256

USUAL_CHARS_PER_TOKEN = 8
PART_CHARS = 1 << 16
"""A text that may be too long is counted in parts of this size: encoding takes 200 bytes for each character."""
LONG_CHARS = 1 << 14
"""Encoding more takes milliseconds, which other threads should not have to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Tokens with a meaning. `eos_ids` end a generation; `special_ids` are left out of text shown to people.

    `named` are the texts of tokens that the model's files have a name for. Chat templates know them by it: `bos_token`.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    eos_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()

    @property
    def bos(self) -> str | None:
        return self.named.get("bos_token")

    @property
    def eos(self) -> str | None:
        return self.named.get("eos_token")


class Tokenizer:
    """Ids from text and text from ids. Chat templates write special tokens as text, so those are always recognised.

    The same text always gives the same ids, all of them: what a file says about cutting, padding or random merges is
    for training and is reset.

    `tool_template` is the chat template for conversations with tools, of a model that has another one for those.
    `chat_stops` are texts that end a turn of the chat template's format, for a format that has no token for that.
    """

    has_text = True
    """Whether tokens stand for text."""

    def __init__(
        self,
        backend: Backend,
        special: SpecialTokens,
        *,
        chat_template: str | None = None,
        tool_template: str | None = None,
        chat_stops: tuple[str, ...] = (),
    ) -> None:
        self._backend, self.special = backend, special
        self.chat_template, self.tool_template, self.chat_stops = chat_template, tool_template, chat_stops
        with library_failures(_unusable):
            make_steady(backend)
            check_pipeline(backend)
            self._token_bytes = TokenBytes(backend)

    @property
    def vocab_size(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def max_token_id(self) -> int:
        """The largest id a text can get."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def knows(self, token: str) -> bool:
        return self.token_id(token) is not None

    def token_id(self, token: str) -> int | None:
        """The id of a token as the file writes it; None if there is no such token."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def vocabulary(self) -> dict[str, int]:
        """Every token as the file writes it, with its id."""
        return dict(self._backend.get_vocab(with_added_tokens=True))

    @cached_property
    def longest_token_chars(self) -> int:
        """How many characters of a prompt one token can stand for."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=0) or 1

    def encode(self, text: str, *, add_special_tokens: bool, max_context: int | None = None) -> list[int]:
        """`add_special_tokens` adds what the tokenizer puts around plain text; a chat template has already done so.

        With `max_context`, a text that cannot fit into so many tokens is refused before all of it is encoded.
        """
        if max_context is not None:
            self._check_length(text, max_context)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = f"text that is not Unicode at character {error.start}"
            raise RequestError("prompt", found, "characters that UTF-8 can write", "Remove lone surrogates.") from None
        return self._ids(text, add_special_tokens=add_special_tokens)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        with library_failures(_not_encodable):
            if len(text) > LONG_CHARS:  # `encode` would keep the interpreter's lock: no other thread could run
                (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            else:
                encoded = self._backend.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoded.ids
        return ids

    def ending(self, text: str, num_tokens: int) -> str:
        """The end of a text, with more than its last `num_tokens` tokens: all that is encoded of one that is cut.

        The first tokens of the end may be others than in the text, for a word may be cut: hence the margin.
        """
        num_found = 0
        for start in range(len(text) - PART_CHARS, 0, -PART_CHARS):
            num_found += self._num_tokens_from(text, start)
            if num_found > with_margin(num_tokens):
                return text[start:]
        return text

    def _check_length(self, text: str, max_context: int) -> None:
        """Refuse a text that is too long, at a cost that grows with the context and not with the text."""
        if len(text) <= USUAL_CHARS_PER_TOKEN * max_context:
            return
        longest, most_tokens = self.longest_token_chars, max_context - 1
        if len(text) > longest * most_tokens:
            most = f"at most {most_tokens} tokens of at most {longest} characters, which are {longest * most_tokens}"
            raise RequestError("prompt", f"{len(text)} characters", most, "Shorten the prompt.")
        num_tokens = 0
        for start in range(0, len(text), PART_CHARS):
            num_tokens += self._num_tokens_from(text, start)
            # A cut inside a word can cost tokens that the whole text does not have: hence the margin.
            if num_tokens > with_margin(max_context):
                wanted = f"at most {most_tokens}, which leaves one of the context of {max_context}"
                end = min(start + PART_CHARS, len(text))
                found = f"over {num_tokens} tokens in the first {end} of {len(text)} characters"
                raise RequestError("prompt", found, wanted, "Shorten the prompt.")

    def _num_tokens_from(self, text: str, start: int) -> int:
        """Tokens of the part of a text that begins here. Half a character, as strings may have, counts as another."""
        part = text[start : start + PART_CHARS].encode(errors="replace").decode()
        return len(self._ids(part, add_special_tokens=False))

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = True, prompt_ids: Sequence[int] = ()
    ) -> str:
        """The text of these tokens, where they stand after `prompt_ids`."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens, prompt_ids=prompt_ids)
        return detokenizer.feed(token_ids) + detokenizer.finish()

    def token_text(self, token_id: int) -> str | None:
        """The text of one token inside a text, special or not; None for an unknown id.

        A byte that is a part of a character is U+FFFD.
        """
        data = self.token_bytes(token_id)
        return None if data is None else data.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of one token inside a text, special or not; None for an unknown id."""
        return self._token_bytes.of(token_id)

    def detokenizer(
        self, *, skip_special_tokens: bool = True, prompt_ids: Sequence[int] = ()
    ) -> IncrementalDetokenizer:
        """A fresh one, for one stream of tokens after a prompt."""
        skipped = self.special.special_ids if skip_special_tokens else ()
        return IncrementalDetokenizer(self._token_bytes, skipped_ids=skipped, prompt_ids=prompt_ids)

    def for_grammars(self) -> Tokenizer:
        """The tokenizer whose tokens grammars are about: this one, where it has been read."""
        return self

    def try_out(self) -> None:
        """Encode a few words: a tokenizer that makes the library panic is refused when it is loaded."""
        for add_special_tokens in (False, True):
            with library_failures(_unusable, panics_only=True):
                self._backend.encode(SAMPLE_TEXT, add_special_tokens=add_special_tokens)


def with_margin(num_tokens: int) -> int:
    """So many tokens and an eighth more, for those that a cut inside a word adds or changes: 8,192 are 9,280."""
    return num_tokens + num_tokens // 8 + 64


def make_steady(backend: Backend) -> None:
    """Reset what makes a text's ids incomplete, padded or random."""
    backend.no_truncation()
    backend.no_padding()
    if isinstance(backend.model, BPE):
        backend.model.dropout = None
    elif isinstance(backend.model, Unigram):
        backend.model.alpha = backend.model.nbest_size = None


def check_pipeline(backend: Backend) -> None:
    """Refuse a tokenizer that makes much more of a text than was given: a few replacements can make a gigabyte."""
    growth, num_parts = 1, 0
    for part in walk(part_state(backend.normalizer)), walk(part_state(backend.pre_tokenizer)):
        for table in part:
            num_parts += "type" in table
            texts = [value for key, value in table.items() if key in ("content", "prepend") and isinstance(value, str)]
            growth *= max(map(len, texts), default=0) or 1
    if growth > MAX_GROWTH or num_parts > MAX_PARTS:
        raise CheckpointError(
            "tokenizer.json",
            f"{num_parts} normalizers and pre-tokenizers, which make up to {shown(growth)} characters of one",
            f"at most {MAX_PARTS} and {MAX_GROWTH}",
            "Do not use it.",
        )


def walk(value: object) -> Iterator[Mapping[str, object]]:
    """All tables inside a JSON value."""
    if isinstance(value, Mapping):
        yield value
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for child in children:
        yield from walk(child)


def _unusable(message: str) -> CheckpointError:
    return CheckpointError("tokenizer.json", message, "a tokenizer", "Download it again.")


def _not_encodable(message: str) -> RequestError:
    return RequestError("prompt", f"text the tokenizer fails on ({message})", "text it knows", "Change the text.")


def tokenizer_from_directory(directory: Path) -> Tokenizer:
    """From tokenizer.json, with special tokens and template from the files beside it."""
    path = directory / "tokenizer.json"
    if not path.is_file() or path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(
            "tokenizer.json",
            f"no such file, or one over {MAX_TOKENIZER_BYTES >> 20} MiB",
            "the fast tokenizer's file",
            "Slow tokenizers run code of their own and are not read; convert it once with transformers.",
        )
    raw = path.read_bytes()
    # Counted before it is parsed: "[],[],[]" takes twenty times its length in memory, and the library cannot say no.
    if (num_values := raw.count(b",") + raw.count(b"[") + raw.count(b"{")) > MAX_TOKENIZER_VALUES:
        raise _unusable(f"{num_values} values, and at most {MAX_TOKENIZER_VALUES} are read")
    config = json_or_empty(directory / "tokenizer_config.json")
    files = read_token_files(directory, config)
    with library_failures(_unusable):
        backend = Backend.from_buffer(raw)
        complete(backend, files)
        added = backend.get_added_tokens_decoder()
    named = {name: token.content for name, token in files.named.items()}
    eos = named.get("eos_token")
    endings = end_ids(directory)[0] | ({backend.token_to_id(eos)} if eos is not None else set())
    special = SpecialTokens(
        named=named,
        eos_ids=frozenset(token_id for token_id in endings if token_id is not None),
        special_ids=frozenset(i for i, token in added.items() if token.special),
    )
    templates = _chat_templates(directory, config)
    tokenizer = Tokenizer(
        backend,
        special,
        chat_template=templates.get(DEFAULT),
        tool_template=templates.get(WITH_TOOLS),
        chat_stops=_chat_stops(config),
    )
    tokenizer.try_out()
    return tokenizer


def _chat_stops(tokenizer_config: dict[str, object]) -> tuple[str, ...]:
    stops = tokenizer_config.get(CHAT_STOPS, [])
    if isinstance(stops, list) and len(stops) <= MAX_CHAT_STOPS:
        texts = tuple(stop for stop in stops if isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARS)
        if len(texts) == len(stops):
            return texts
    wanted = f"up to {MAX_CHAT_STOPS} texts of 1 to {MAX_STOP_CHARS} characters"
    raise CheckpointError(f"tokenizer_config.json, key {CHAT_STOPS!r}", shown(stops), wanted, "Correct the file.")


def _chat_templates(directory: Path, tokenizer_config: dict[str, object]) -> dict[str, str]:
    """Templates by name: those in files of their own, or else those in the tokenizer's config."""
    paths = {DEFAULT: "chat_template.jinja", WITH_TOOLS: f"additional_chat_templates/{WITH_TOOLS}.jinja"}
    files = {name: template_file(directory / path) for name, path in paths.items() if (directory / path).is_file()}
    if files:
        return files
    found = tokenizer_config.get("chat_template")
    tables = found if isinstance(found, list) else [{"name": DEFAULT, "template": found}]
    pairs = [(table.get("name"), table.get("template")) for table in tables if isinstance(table, dict)]
    return {name: text for known in paths for name, text in pairs if name == known and isinstance(text, str)}


def template_file(path: Path) -> str:
    """The chat template in a file."""
    if (num_bytes := path.stat().st_size) > MAX_TEMPLATE_BYTES:
        raise CheckpointError(path.name, f"{num_bytes} bytes", f"at most {MAX_TEMPLATE_BYTES}", "Use another one.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(path.name, f"no UTF-8 ({error})", "a text", "Download it again.") from None
