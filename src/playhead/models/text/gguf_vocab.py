"""The tokenizer inside a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from playhead.errors import CheckpointError, UnsupportedModelError
from playhead.models.checkpoint.gguf_keys import require
from playhead.models.text.tokenizer import SpecialTokens, Tokenizer

CONTROL, USER_DEFINED = 3, 4

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

PRE_TOKENIZERS = ("gpt-2", "llama-bpe", "qwen2", "smollm")
# Of these, llama.cpp puts BOS first unless the file says otherwise, and takes whole words before it merges.
LLAMA3 = "llama-bpe"

PREFIX = "tokenizer.ggml."
READ = frozenset(
    {"model", "pre", "tokens", "token_type", "merges", "add_bos_token", "add_eos_token"}
    | {f"{name}_token_id" for name in ("bos", "eos", "eot", "eom")}
)
# What llama.cpp reads for other kinds of vocabularies alone, and ids that only name tokens.
HARMLESS = frozenset(
    {"scores", "token_type_count", "add_space_prefix", "remove_extra_whitespaces"}
    | {f"{name}_token_id" for name in ("unknown", "seperator", "padding", "mask", "prefix", "suffix", "middle", "cls")}
    | {f"fim_{name}_token_id" for name in ("pre", "suf", "mid", "pad", "rep", "sep")}
)
ONLY: Mapping[str, tuple[object, ...]] = {"add_sep_token": (False,)}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE with the file's own vocabulary, merges, special tokens and chat template."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedModelError("tokenizer.ggml.model", kind, ["gpt2 (byte-level BPE)"])
    _check_keys(metadata)
    tokens, merges = _texts(metadata, "tokenizer.ggml.tokens"), _texts(metadata, "tokenizer.ggml.merges")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise _damaged("token_type", "no type per token", f"{len(tokens)} numbers")
    vocab = {token: i for i, token in enumerate(tokens)}
    pre = metadata.get("tokenizer.ggml.pre")
    backend = Backend(BPE(vocab=vocab, merges=_pairs(merges, vocab), ignore_merges=pre == LLAMA3))
    backend.pre_tokenizer = _pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    special = [i for i, token_type in enumerate(types) if token_type == CONTROL]
    backend.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in special])
    defined = [tokens[i] for i, token_type in enumerate(types) if token_type == USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False) for token in defined])
    ids = {name: _token_id(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    backend.post_processor = processors.TemplateProcessing(**_around(metadata, ids, is_llama3=pre == LLAMA3))
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        SpecialTokens(
            bos=_token(tokens, ids["bos"]),
            eos=_token(tokens, ids["eos"]),
            # A chat model ends its turn with eot, or with eom before a tool answers, where the file names them.
            eos_ids=frozenset(i for i in (ids["eos"], ids["eot"], ids["eom"]) if i is not None),
            special_ids=frozenset(special),
        ),
        chat_template=template if isinstance(template, str) else None,
    )


def _check_keys(metadata: Mapping[str, Any]) -> None:
    """Refuse a key of the vocabulary that may change what ids a text has."""
    for key, value in metadata.items():
        name = key.removeprefix(PREFIX)
        if name in ONLY:
            require(key, value, ONLY[name])
        elif key.startswith(PREFIX) and name not in READ and name not in HARMLESS:
            raise UnsupportedModelError(key, value, ["a file without this key: what it changes is not known here"])


def _flag(metadata: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = metadata.get(PREFIX + name, default)
    if not isinstance(value, bool):
        raise UnsupportedModelError(PREFIX + name, value, [True, False])
    return value


def _token_id(metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < num_tokens:
        raise UnsupportedModelError(key, value, [f"an id from 0 to {num_tokens - 1}"])
    return value


def _around(metadata: Mapping[str, Any], ids: Mapping[str, int | None], *, is_llama3: bool) -> dict[str, list[Any]]:
    """What is put around a text that no chat template has written, as the library's template wants it."""
    pieces, special = ["$A"], []
    for name, default in (("bos", is_llama3 and ids["bos"] is not None), ("eos", False)):
        if not _flag(metadata, f"add_{name}_token", default=default):
            continue
        if ids[name] is None:
            raise UnsupportedModelError(f"{PREFIX}{name}_token_id", None, [f"an id, because add_{name}_token is true"])
        pieces = [name, *pieces] if name == "bos" else [*pieces, name]
        special.append((name, ids[name]))
    return {"single": pieces, "special_tokens": special}


def _pre_tokenizer(name: object) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merging. The file only names it, so each name is a promise to know."""
    by_pattern = {"llama-bpe": LLAMA3_SPLIT, "qwen2": QWEN2_SPLIT}
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if isinstance(name, str) and name in by_pattern:
        split = pre_tokenizers.Split(Regex(by_pattern[name]), behavior="isolated")
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, whole])
    raise UnsupportedModelError("tokenizer.ggml.pre", name, PRE_TOKENIZERS)


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise _damaged(key, "no texts", "the tokenizer's texts")
    return values


def _pairs(merges: list[str], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Merges as pairs of tokens whose sum is a token: the library gives up on anything else."""
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocab.keys():
            raise _damaged("tokenizer.ggml.merges", f"the merge {merge!r:.80}", "two tokens whose sum is one")
        pairs.append((left, right))
    return pairs


def _token(tokens: list[str], token_id: int | None) -> str | None:
    return None if token_id is None else tokens[token_id]


def _damaged(key: str, found: str, wanted: str) -> CheckpointError:
    return CheckpointError(f"metadata {key}", found, wanted, "Get the file again, or use the safetensors checkpoint.")
