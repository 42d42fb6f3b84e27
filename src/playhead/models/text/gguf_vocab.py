"""The tokenizer inside a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from playhead.models.errors import CheckpointError, UnsupportedModelError
from playhead.models.text.tokenizer import SpecialTokens, Tokenizer

CONTROL, USER_DEFINED = 3, 4

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

PRE_TOKENIZERS = ("gpt-2", "llama-bpe", "qwen2", "smollm")


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE with the file's own vocabulary, merges, special tokens and chat template."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedModelError("tokenizer.ggml.model", kind, ["gpt2 (byte-level BPE)"])
    tokens, merges = _texts(metadata, "tokenizer.ggml.tokens"), _texts(metadata, "tokenizer.ggml.merges")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise _damaged("token_type", "no type per token", f"{len(tokens)} numbers")
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = Backend(BPE(vocab=vocab, merges=_pairs(merges, vocab)))
    backend.pre_tokenizer = _pre_tokenizer(metadata.get("tokenizer.ggml.pre"))
    backend.decoder = decoders.ByteLevel()
    special = [i for i, token_type in enumerate(types) if token_type == CONTROL]
    backend.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in special])
    defined = [tokens[i] for i, token_type in enumerate(types) if token_type == USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False) for token in defined])
    eos_id = metadata.get("tokenizer.ggml.eos_token_id")
    # A chat model ends its turn with eot where the file names one, and with eos where it does not.
    end_ids = (eos_id, metadata.get("tokenizer.ggml.eot_token_id"))
    return Tokenizer(
        backend,
        SpecialTokens(
            bos=_token(tokens, metadata.get("tokenizer.ggml.bos_token_id")),
            eos=_token(tokens, eos_id),
            eos_ids=frozenset(i for i in end_ids if isinstance(i, int)),
            special_ids=frozenset(special),
        ),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


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


def _token(tokens: list[str], token_id: object) -> str | None:
    return tokens[token_id] if isinstance(token_id, int) and 0 <= token_id < len(tokens) else None


def _damaged(key: str, found: str, wanted: str) -> CheckpointError:
    return CheckpointError(f"metadata {key}", found, wanted, "Get the file again, or use the safetensors checkpoint.")
