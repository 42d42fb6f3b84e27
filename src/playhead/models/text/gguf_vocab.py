"""The tokenizer inside a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from playhead.errors import CheckpointError, UnsupportedModelError
from playhead.models.checkpoint.gguf_keys import require
from playhead.models.text.gguf_sentencepiece import sentencepiece_backend
from playhead.models.text.tokenizer import WITH_TOOLS, SpecialTokens, Tokenizer

CONTROL, USER_DEFINED = 3, 4
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

# Of these, llama.cpp puts BOS first unless the file says otherwise, and takes whole words before it merges.
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
SPLITS = {
    **dict.fromkeys((*LLAMA3, "dbrx"), LLAMA3_SPLIT),  # Phi 4 has the last
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), QWEN2_SPLIT),
}
PRE_TOKENIZERS = ("gpt-2", "smollm", *SPLITS)

PREFIX = "tokenizer.ggml."
READ = frozenset(
    {"model", "pre", "tokens", "token_type", "merges", "scores", "add_bos_token", "add_eos_token", "add_space_prefix"}
    | {f"{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown")}
)
# What llama.cpp reads for other kinds of vocabularies alone, and ids that only name tokens.
HARMLESS = frozenset(
    {"token_type_count", "remove_extra_whitespaces"}
    | {f"{name}_token_id" for name in ("seperator", "padding", "mask", "prefix", "suffix", "middle", "cls")}
    | {f"fim_{name}_token_id" for name in ("pre", "suf", "mid", "pad", "rep", "sep")}
)
ONLY: Mapping[str, tuple[object, ...]] = {"add_sep_token": (False,)}

# A SentencePiece file that leaves these ids out means Llama 2's.
SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}
# Tokens that end a turn in some chat format. Files often name one end of two, so llama.cpp knows them by their text.
TURN_ENDS = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<eos>"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A file's tokens with their types, and the ids it names: bos, eos, eot, eom, unknown."""

    tokens: list[str]
    types: list[int]
    ids: Mapping[str, int | None]

    def of_type(self, token_type: int) -> list[int]:
        return [i for i, found in enumerate(self.types) if found == token_type]

    def text(self, name: str) -> str | None:
        token_id = self.ids[name]
        return None if token_id is None else self.tokens[token_id]

    @property
    def end_ids(self) -> frozenset[int]:
        """What ends a turn: the ids the file names, and special tokens known by their text."""
        special = (*self.of_type(CONTROL), *self.of_type(USER_DEFINED))
        named = (self.ids[name] for name in ("eos", "eot", "eom"))
        return frozenset(i for i in named if i is not None) | {i for i in special if self.tokens[i] in TURN_ENDS}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The file's own vocabulary, special tokens and chat template: byte-level BPE or SentencePiece."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in (BYTE_LEVEL, SENTENCEPIECE):
        supported = [f"{BYTE_LEVEL} (byte-level BPE)", f"{SENTENCEPIECE} (SentencePiece)"]
        raise UnsupportedModelError("tokenizer.ggml.model", kind, supported)
    _check_keys(metadata)
    vocabulary = _vocabulary(metadata, SENTENCEPIECE_IDS if kind == SENTENCEPIECE else {})
    backend = _byte_level(metadata, vocabulary) if kind == BYTE_LEVEL else _sentencepiece(metadata, vocabulary)
    tokens, special = vocabulary.tokens, vocabulary.of_type(CONTROL)
    backend.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in special])
    defined = [tokens[i] for i in vocabulary.of_type(USER_DEFINED)]
    backend.add_tokens([AddedToken(token, normalized=False) for token in defined])
    adds_bos = kind == SENTENCEPIECE or metadata.get("tokenizer.ggml.pre") in LLAMA3
    backend.post_processor = processors.TemplateProcessing(**_around(metadata, vocabulary.ids, adds_bos=adds_bos))
    keys = ("tokenizer.chat_template", f"tokenizer.chat_template.{WITH_TOOLS}")
    template, tool_template = (found if isinstance(found := metadata.get(key), str) else None for key in keys)
    return Tokenizer(
        backend,
        SpecialTokens(
            named={f"{name}_token": text for name in ("bos", "eos") if (text := vocabulary.text(name)) is not None},
            eos_ids=vocabulary.end_ids,
            special_ids=frozenset(special) | vocabulary.end_ids,
        ),
        chat_template=template,
        tool_template=tool_template,
    )


def _vocabulary(metadata: Mapping[str, Any], default_ids: Mapping[str, int]) -> Vocabulary:
    tokens, types = _texts(metadata, "tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise _damaged("token_type", "no type per token", f"{len(tokens)} numbers")
    names = ("bos", "eos", "eot", "eom", "unknown")
    ids = {name: _token_id(metadata, name, len(tokens), default_ids.get(name)) for name in names}
    return Vocabulary(tokens=tokens, types=types, ids=ids)


def _byte_level(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Backend:
    vocab = {token: i for i, token in enumerate(vocabulary.tokens)}
    pre = metadata.get("tokenizer.ggml.pre")
    merges = _pairs(_texts(metadata, "tokenizer.ggml.merges"), vocab)
    backend = Backend(BPE(vocab=vocab, merges=merges, ignore_merges=pre in LLAMA3))
    backend.pre_tokenizer = _pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Backend:
    scores, tokens, unknown = metadata.get("tokenizer.ggml.scores"), vocabulary.tokens, vocabulary.ids["unknown"]
    if not isinstance(scores, list) or [score for score in scores if not isinstance(score, int | float)]:
        raise _damaged("scores", "no numbers", f"{len(tokens)} numbers")
    if len(scores) != len(tokens):
        raise _damaged("scores", "no score per token", f"{len(tokens)} numbers")
    if unknown is None:
        raise UnsupportedModelError(f"{PREFIX}unknown_token_id", None, [f"an id from 0 to {len(tokens) - 1}"])
    adds_space = _flag(metadata, "add_space_prefix", default=True)
    return sentencepiece_backend(tokens, vocabulary.types, scores, unknown=unknown, adds_space=adds_space)


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


def _token_id(metadata: Mapping[str, Any], name: str, num_tokens: int, default: int | None) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    value = metadata.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < num_tokens:
        raise UnsupportedModelError(key, value, [f"an id from 0 to {num_tokens - 1}"])
    return value


def _around(metadata: Mapping[str, Any], ids: Mapping[str, int | None], *, adds_bos: bool) -> dict[str, list[Any]]:
    """What is put around a text that no chat template has written, as the library's template wants it."""
    pieces, special = ["$A"], []
    for name, default in (("bos", adds_bos and ids["bos"] is not None), ("eos", False)):
        if not _flag(metadata, f"add_{name}_token", default=default):
            continue
        if ids[name] is None:
            raise UnsupportedModelError(f"{PREFIX}{name}_token_id", None, [f"an id, because add_{name}_token is true"])
        pieces = [name, *pieces] if name == "bos" else [*pieces, name]
        special.append((name, ids[name]))
    return {"single": pieces, "special_tokens": special}


def _pre_tokenizer(name: object) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merging. The file only names it, so each name is a promise to know."""
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if isinstance(name, str) and name in SPLITS:
        split = pre_tokenizers.Split(Regex(SPLITS[name]), behavior="isolated")
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


def _damaged(key: str, found: str, wanted: str) -> CheckpointError:
    return CheckpointError(f"metadata {key}", found, wanted, "Get the file again, or use the safetensors checkpoint.")
