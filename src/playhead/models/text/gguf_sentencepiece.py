"""SentencePiece vocabularies of GGUF files: pieces with scores, a mark for spaces, bytes for what has no piece.

The file has no merges. Of two neighbours that make a piece together, those with the best piece are merged first, so the
merges are the ways to cut each piece in two, by the piece's score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers
from tokenizers.models import BPE

from playhead.errors import CheckpointError

SPACE = "▁"
NORMAL, UNKNOWN = 1, 2

# Each piece is cut at every character. A vocabulary of 262,144 pieces has 1.8 million characters and 514,906 merges.
MAX_PIECE_CHARS = 128
MAX_CHARS = 3 << 20
MAX_MERGES = 1 << 21


def sentencepiece_backend(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], *, unknown: int, adds_space: bool
) -> Backend:
    """The pieces as byte-pair encoding. With `adds_space` a text, and what follows a special token, begins with one."""
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = merges_of(tokens, types, scores)
    backend = Backend(BPE(vocab=vocab, merges=merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True))
    to_mark = normalizers.Replace(" ", SPACE)
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), to_mark])
        back.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = to_mark
    backend.decoder = decoders.Sequence(back)
    return backend


def merges_of(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of pieces whose sum is a piece, best sum first."""
    pieces = {token: i for i, token in enumerate(tokens) if types[i] == NORMAL}
    _check_sizes(pieces, scores)
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, i in pieces.items():
        for cut in range(1, len(piece)):
            left = piece[:cut]
            if left in pieces and (right := piece[cut:]) in pieces:
                ranked.append((-scores[i], pieces[left], pieces[right], left, right))
        if len(ranked) > MAX_MERGES:
            raise _damaged("tokens", f"over {MAX_MERGES} ways to merge pieces", "a vocabulary")
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _check_sizes(pieces: dict[str, int], scores: Sequence[float]) -> None:
    """Refuse pieces that would take minutes to cut, and scores that have no order."""
    longest, num_chars = max(map(len, pieces), default=0), sum(map(len, pieces))
    if longest > MAX_PIECE_CHARS or num_chars > MAX_CHARS:
        found = f"pieces of up to {longest} characters, {num_chars} together"
        raise _damaged("tokens", found, f"at most {MAX_PIECE_CHARS} and {MAX_CHARS}")
    if not all(math.isfinite(scores[i]) for i in pieces.values()):
        raise _damaged("scores", "a score that is no number", "a number for each piece")


def _damaged(key: str, found: str, wanted: str) -> CheckpointError:
    where = f"metadata tokenizer.ggml.{key}"
    return CheckpointError(where, found, wanted, "Get the file again, or use the safetensors checkpoint.")
