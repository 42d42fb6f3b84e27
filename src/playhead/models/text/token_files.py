"""What the files beside tokenizer.json say about tokens: their names and their ids.

The rules are those of transformers 5. tokenizer_config.json names tokens: `bos_token`, `pad_token`, `image_token`.
Older checkpoints have names in special_tokens_map.json, which come first, and ids of further tokens in
added_tokens.json. Neither is read where tokenizer_config.json has `added_tokens_decoder`. What is put around a text is
in tokenizer.json alone: `add_bos_token` is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from playhead.errors import CheckpointError, shown
from playhead.models.config import read_json

CONFIG, NAMES, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
DECODER = "added_tokens_decoder"
LISTS = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
MAX_ID_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFiles:
    """Tokens as the files have them.

    `named` are special and have a name; `listed` are special and have none; `added` have an id.
    """

    named: Mapping[str, AddedToken]
    listed: tuple[AddedToken, ...]
    added: Mapping[int, AddedToken]


def read_token_files(directory: Path, config: Mapping[str, object]) -> TokenFiles:
    """From tokenizer_config.json, which is `config`, and the older files beside it."""
    named, listed = _named(CONFIG, config), tuple(_listed(config))
    if DECODER in config:
        return TokenFiles(named=named, listed=listed, added=_with_ids(config[DECODER]))
    named |= _named(NAMES, json_or_empty(directory / NAMES))
    special = {token.content for token in (*named.values(), *listed)}
    return TokenFiles(named=named, listed=listed, added=_with_texts(json_or_empty(directory / ADDED), special))


def complete(backend: Backend, files: TokenFiles) -> None:
    """Make the vocabulary what all files together say it is.

    A token is added where a file has its id, or where tokenizer.json has it among ordinary tokens: there a text's
    "<|im_end|>" would be cut to pieces. A name for a token that no file has an id for changes nothing.
    """
    known = backend.get_added_tokens_decoder()
    changed = {i: token for i, token in sorted(files.added.items()) if known.get(i) != token and token.content}
    new = {i: token for i, token in changed.items() if backend.token_to_id(token.content) is None}
    backend.add_tokens(list(changed.values()))
    for token_id, token in new.items():
        if (found := backend.token_to_id(token.content)) != token_id:
            wanted = f"the next free id, {found}, or the token in tokenizer.json"
            raise _bad(f"{CONFIG} or {ADDED}", f"the token {shown(token.content)} with id {token_id}", wanted)
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    plain = [token for token in (*files.named.values(), *files.listed) if token.content not in added]
    special = [token for token in plain if backend.token_to_id(token.content) is not None]
    for token in special:
        token.special = True
    backend.add_tokens(special)


def _named(where: str, table: Mapping[str, object]) -> dict[str, AddedToken]:
    """Every token under a name: the usual ones, and those that one model has, such as `image_token`."""
    extra = table.get("extra_special_tokens")
    values = {**table, **(extra if isinstance(extra, Mapping) else {})}
    found = {key: _token(f"{where}, key {key!r}", value) for key, value in values.items() if key.endswith("_token")}
    return {key: token for key, token in found.items() if token is not None}


def _listed(config: Mapping[str, object]) -> Iterable[AddedToken]:
    for key in LISTS:
        values = config.get(key)
        for value in values if isinstance(values, list) else ():
            token = _token(f"{CONFIG}, key {key!r}", value)
            if token is not None:
                yield token


def _with_ids(table: object) -> dict[int, AddedToken]:
    """Tokens under their ids, as `added_tokens_decoder` has them."""
    where = f"{CONFIG}, key {DECODER!r}"
    if not isinstance(table, Mapping):
        raise _bad(where, shown(table), "a table of ids with their tokens")
    found = {}
    for key, value in table.items():
        token = _token(where, value) if isinstance(value, Mapping) else None
        if token is None or not (key.isdecimal() and len(key) <= MAX_ID_DIGITS):
            raise _bad(where, f"{shown(key)}: {shown(value)}", "an id and a table with the token's text as `content`")
        found[int(key)] = token
    return found


def _with_texts(table: Mapping[str, object], special: set[str]) -> dict[int, AddedToken]:
    """Ids under their tokens' texts, as added_tokens.json has them."""
    found = {}
    for text, token_id in table.items():
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 10**MAX_ID_DIGITS:
            raise _bad(f"{ADDED}, key {shown(text)}", shown(token_id), "an id")
        found[token_id] = AddedToken(_text(ADDED, text), special=text in special, normalized=text not in special)
    return found


def _token(where: str, value: object) -> AddedToken | None:
    """A token is written as text, or as a table with its text under `content`. Anything else is no token."""
    if isinstance(value, str):
        return AddedToken(_text(where, value), special=True)
    if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
        return None
    flags = {key: flag for key in FLAGS if (flag := _flag(where, value, key)) is not None}
    return AddedToken(_text(where, value["content"]), **flags)


def _text(where: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can write half a character, and the library cannot take one
        raise _bad(where, shown(value), "characters that UTF-8 can write") from None
    return value


def _flag(where: str, table: Mapping[str, object], key: str) -> bool | None:
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise _bad(f"{where}, key {key!r}", shown(value), "true or false")
    return value


def json_or_empty(path: Path) -> dict[str, object]:
    return read_json(path) if path.is_file() else {}


def _bad(where: str, found: str, wanted: str) -> CheckpointError:
    return CheckpointError(where, found, wanted, "Correct the file.")
