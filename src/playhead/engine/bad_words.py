"""Bad words as token ids: what `SamplingParams.bad_words` forbids in this model's vocabulary. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from playhead.errors import RequestError, shown
from playhead.models.text.tokenizer import Tokenizer
from playhead.sampling_values import MAX_LONG_WORDS, MAX_WORD_TOKENS

WHERE = "sampling field 'bad_words'"


def bad_word_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token ids of each word at the start of a text and after a space, each once; or `RequestError`.

    With " whale" as one token and "whale" as two, the word "whale" forbids both.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        spelled = [ids for text in (bare, f" {bare}") if (ids := tuple(_encoded(text, tokenizer)))]
        if not spelled:
            raise RequestError(WHERE, f"{shown(word)}, which has no tokens", "words of text", "Leave it out.")
        longest = max(map(len, spelled))
        if longest > MAX_WORD_TOKENS:
            most = f"at most {MAX_WORD_TOKENS} in one word"
            raise RequestError(WHERE, f"{shown(word)}, which has {longest} tokens", most, "Forbid a part of it.")
        found |= dict.fromkeys(spelled)
    num_long = sum(len(ids) > 1 for ids in found)
    if num_long > MAX_LONG_WORDS:
        spellings = f"{num_long} spellings of several tokens"
        raise RequestError(WHERE, spellings, f"at most {MAX_LONG_WORDS}; of one token, any number", "Send fewer.")
    return tuple(found)


def _encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except RequestError as error:  # its words about a prompt are true of a bad word too
        raise RequestError(WHERE, error.found, error.wanted, "Leave it out.") from None
