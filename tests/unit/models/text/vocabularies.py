"""Small tokenizers of the kinds checkpoints have, built here so that tests need no files."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from playhead.models.text.detokenize import byte_level_table


def byte_level() -> Tokenizer:
    """Every byte is a token, a few are merged across character borders, and two tokens are added."""
    chars = {byte: char for char, byte in byte_level_table().items()}

    def spelled(data: bytes) -> str:
        return "".join(chars[byte] for byte in data)

    vocab = {chars[byte]: byte for byte in range(256)}
    # " é" and the first two bytes of three-byte characters: tokens that end inside a character.
    merges = [(spelled(b" "), spelled(b"\xc3")), (spelled(b"\xe6"), spelled(b"\x97")), (spelled(b"h"), spelled(b"i"))]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("日本 語")])
    return tokenizer


def byte_fallback(*, strips_first_space: bool) -> Tokenizer:
    """SentencePiece's kind: characters, words that begin with a mark, and bytes for everything else."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for token in ["▁", *"abcdehilo", "hi", "▁hi"]:
        vocab[token] = len(vocab)
    merges = [("h", "i"), ("▁", "hi")]
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips_first_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        replace.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(replace)
    return tokenizer


def metaspace() -> Tokenizer:
    """A Unigram vocabulary whose decoder is Metaspace: no bytes, and no space before the first word."""
    words = ["<unk>", "▁", "▁hello", "▁world", "hello", "▁▁▁", *"abcdehilorwd", "日", "<0x41>"]
    tokenizer = Tokenizer(Unigram([(word, -float(i + 1)) for i, word in enumerate(words)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer
