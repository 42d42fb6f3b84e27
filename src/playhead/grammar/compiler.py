"""Forms of answers compiled to grammars, once for equal forms, each within limits of time and memory.

Compiling takes milliseconds, and building the tables of a large vocabulary takes seconds: neither belongs on an event
loop or between two steps. `compile` may be called from any thread, and its caller waits.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from playhead.errors import PlayheadError, RequestError
from playhead.grammar.forms import grammar_texts, library, refusal
from playhead.structured_outputs import StructuredOutputs

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_CACHED = 128
COMPILE_LIMIT_S = 1.0
MAX_COMPILING = 4  # threads that a hostile request may keep busy
PATIENCE = 10  # on a busy machine a second of computing takes longer
POLL_S = 0.02
MAX_LEXER_STATES = 50_000  # 1 to 2 KB each


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vocabulary:
    """What a grammar must know of a model's tokens: the bytes of every id, which end a text, which are no text at all.

    An id without text has no bytes. `encode` is the tokenizer's own way to cut a text.
    """

    token_bytes: Sequence[bytes]
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    encode: Callable[[str], list[int]]


class Grammar:
    """A compiled form. Every answer begins with a `start` of its own.

    Copies of a matcher share the lexer states that any of them has found, and there is room for `MAX_LEXER_STATES`.
    So an answer may lack room that others have used up. `make` gives a matcher that shares nothing.
    """

    def __init__(self, first: LLMatcher, make: Callable[[], LLMatcher], *, vocab_size: int) -> None:
        self._first, self._make, self._lock = first, make, threading.Lock()
        self.vocab_size = vocab_size

    def start(self, spent: LLMatcher | None = None) -> tuple[LLMatcher, LLMatcher]:
        """llguidance's state before the first token, the caller's own, and the matcher that it is a copy of.

        `spent` is a matcher whose copies have no room left. A new one takes its place, unless one has done so already.
        """
        with self._lock:
            if self._first is spent:
                self._first = self._make()
            return self._first.deep_copy(), self._first


Outcome = Grammar | RequestError | BaseException


class GrammarCompiler:
    """Compiles forms for one vocabulary. Grammars and refusals of the newest forms are kept.

    A form that takes over `limit_s` seconds of computing is refused. Its thread goes on until llguidance's own limits
    end it, for up to some 15 seconds; at most `MAX_COMPILING` threads compile at a time.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], *, limit_s: float = COMPILE_LIMIT_S) -> None:
        self._vocabulary, self._limit_s = vocabulary, limit_s
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._cache: OrderedDict[StructuredOutputs, Grammar | RequestError] = OrderedDict()
        self._compiling = threading.BoundedSemaphore(MAX_COMPILING)
        self.num_compiled = 0

    def compile(self, form: StructuredOutputs) -> Grammar:
        """The grammar of a form, or `RequestError` with what is wrong with it."""
        with self._lock:
            found = self._cache.get(form)
            if found is not None:
                self._cache.move_to_end(form)
        if found is None:
            found = self._compiled(form)
            with self._lock:
                self._cache[form] = found
                while len(self._cache) > MAX_CACHED:
                    self._cache.popitem(last=False)
        if isinstance(found, RequestError):
            raise RequestError(found.where, found.found, found.wanted, found.fix)
        return found

    def tokenizer(self) -> LLTokenizer:
        """llguidance's tables of the vocabulary, built by the first call."""
        with self._building:
            if self._tokenizer is None:
                self._tokenizer = built(self._vocabulary())
            return self._tokenizer

    def _compiled(self, form: StructuredOutputs) -> Grammar | RequestError:
        library()
        tokenizer = self.tokenizer()
        result: list[Outcome] = []
        if not self._compiling.acquire(timeout=PATIENCE * self._limit_s):
            return too_slow(form)
        work = begun(partial(self._work, form, tokenizer, result))
        self.num_compiled += 1
        started_s = time.monotonic()
        while work.is_alive() and computed_s(work, started_s) <= self._limit_s:
            work.join(POLL_S)
        if not result:
            return too_slow(form)
        if isinstance(result[0], Grammar | RequestError):
            return result[0]
        raise result[0]

    def _work(self, form: StructuredOutputs, tokenizer: LLTokenizer, result: list[Outcome]) -> None:
        try:
            result.append(compiled(form, tokenizer))
        except BaseException as error:  # noqa: BLE001  the caller's thread raises it
            result.append(error)
        finally:
            self._compiling.release()


def begun(work: Callable[[], None]) -> threading.Thread:
    """A thread that compiles. A program that ends waits for it: llguidance would come back to a Python that is gone."""
    thread = threading.Thread(target=work, name="grammar", daemon=False)  # also where a daemon asks
    thread.start()
    return thread


def compiled(form: StructuredOutputs, tokenizer: LLTokenizer) -> Grammar | RequestError:
    """The grammar of a form, or why there is none.

    A form is tried alone first: behind other text its faults would show in the middle of an answer.
    """
    try:
        texts = grammar_texts(form)
    except RequestError as error:
        return error
    for name, text in texts.items():
        make = partial(matcher_of, text, tokenizer)
        first = make()
        fault = first.get_error() or fault_at_start(first.deep_copy())
        if fault:
            return refusal(name, fault)
    return Grammar(first, make, vocab_size=tokenizer.vocab_size)


def matcher_of(text: str, tokenizer: LLTokenizer) -> LLMatcher:
    """llguidance's state before the first token of a grammar, or its error."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
    return LLMatcher(tokenizer, text, log_level=0, limits=limits)


def fault_at_start(matcher: LLMatcher) -> str:
    """Why no answer can begin, though the grammar can be read; nothing if one can.

    The first mask of "a{1000000}" takes a second of computing, and its million letters have more states than there is
    room for. Between two steps all other answers would wait for that.
    """
    matcher.compute_bitmask()
    if not matcher.is_error():
        matcher.consume_tokens(matcher.compute_ff_tokens())
    return matcher.get_error()


def computed_s(work: threading.Thread, started_s: float) -> float:
    """How long a thread has computed. Waiting for a processor does not count where the system can tell."""
    waited_s = time.monotonic() - started_s
    if sys.platform == "linux" and work.ident is not None:
        with suppress(OSError):  # the thread has ended
            used_s = time.clock_gettime(time.pthread_getcpuclockid(work.ident))
            return max(used_s, waited_s / PATIENCE)
    return waited_s


def too_slow(form: StructuredOutputs) -> RequestError:
    found = "a form that takes too long to compile"
    return RequestError(f"structured_outputs field {form.kind!r}", found, "a simpler one", "Simplify it.")


def built(vocabulary: Vocabulary) -> LLTokenizer:
    """llguidance's tables, or `RequestError` for a model whose tokens no grammar can use."""
    from llguidance import LLTokenizer, TokenizerWrapper

    for is_there, what in ((any(vocabulary.token_bytes), "tokenizer"), (bool(vocabulary.eos_ids), "end token")):
        if not is_there:
            found, wanted = f"a model without a{'n' if what[0] == 'e' else ''} {what}", f"a model that has a {what}"
            raise RequestError("structured_outputs", found, wanted, "Use another model.")
    eos_ids = sorted(vocabulary.eos_ids)
    wrapper = TokenizerWrapper(WrappedVocabulary(vocabulary, eos_ids[0]))
    return LLTokenizer(wrapper, n_vocab=len(vocabulary.token_bytes), eos_token=eos_ids)


class WrappedVocabulary:
    """A vocabulary under the names that llguidance reads."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_id: int) -> None:
        self._encode, self.eos_token_id = vocabulary.encode, eos_id
        self.tokens = list(vocabulary.token_bytes)
        self.special_token_ids = sorted(vocabulary.special_ids | vocabulary.eos_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        try:
            return self._encode(text.decode() if isinstance(text, bytes) else text)
        except (UnicodeDecodeError, PlayheadError):
            return []  # llguidance goes on by itself
