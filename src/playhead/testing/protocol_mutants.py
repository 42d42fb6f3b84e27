"""Bugs between a client's bytes and the engine's requests, and what notices them. No model is loaded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import playhead.serve.decode
import playhead.serve.routes.chat
import playhead.serve.routes.completions
import playhead.serve.service
import playhead.serve.validate
from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.outputs import CompletionOutput
from playhead.serve.backend import Backend, Stream
from playhead.serve.call import Answer, Call, EventStream, Tenant
from playhead.serve.routes import ROUTES
from playhead.serve.routes.chat import ChatEvents
from playhead.serve.routes.completions import TextPlace
from playhead.serve.service import Service, respond
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.scripted_backend import ScriptedBackend, embedded_tokenizer

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
BY_PATH = {route.path: route for route in ROUTES}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@mutant("a key twice", source="servers whose checks and work read different values", killed_by=("bodies",))
def a_key_twice() -> Patch:
    def as_many(value: object) -> int:
        return COLONS

    return swapped(playhead.serve.decode, "num_keys", as_many)


COLONS = 4  # as many as the repeated body has


@mutant("depth unchecked", source="parsers that recurse", killed_by=("bodies",))
def depth_unchecked() -> Patch:
    def unchecked(bare: bytes) -> None:
        return None

    return swapped(playhead.serve.decode, "check_size", unchecked)


@mutant("tenants share prefixes", source="timing of cached prompts", killed_by=("salts",))
def tenants_share_prefixes() -> Patch:
    def own_alone(tenant: str, own: str) -> str:
        return own

    return swapped(playhead.serve.validate, "joined_salt", own_alone)


@mutant("salts run together", source="timing of cached prompts", killed_by=("salts",))
def salts_run_together() -> Patch:
    def together(tenant: str, own: str) -> str:
        return tenant + own

    return swapped(playhead.serve.validate, "joined_salt", together)


@mutant("an end told twice", source="streams of several samples", killed_by=("ends of samples",))
def an_end_told_twice() -> Patch:
    original = ChatEvents._events

    def forgetful(self: ChatEvents, completion: CompletionOutput) -> bytes:
        events = original(self, completion)
        self._ended.clear()
        return events * 2

    return swapped(ChatEvents, "_events", forgetful)


@mutant("half a call queued", source="leak on refusal: prompts of one call", killed_by=("prompts of one call",))
def half_a_call_queued() -> Patch:
    def careless(
        backend: Backend, answer_id: str, prompts: Sequence[CheckedPrompt], options: RequestOptions
    ) -> list[Stream]:
        return [backend.submit(f"{answer_id}-{i}", prompt, options) for i, prompt in enumerate(prompts)]

    return swapped(playhead.serve.routes.completions, "submit_all", careless)


@mutant("refused fields ignored", source="servers that ignore what they cannot do", killed_by=("refused fields",))
def refused_fields_ignored() -> Patch:
    def lenient(request: object) -> None:
        return None

    return swapped(playhead.serve.validate, "check_refused", lenient)


@mutant(
    "texts of tokens added up", source="found here: text_offset after a character of two tokens", killed_by=("places",)
)
def texts_added_up() -> Patch:
    def after(self: TextPlace, token_ids: Sequence[int]) -> list[int]:
        texts = [embedded_tokenizer().token_text(token_id) or "" for token_id in token_ids]
        return [sum(map(len, texts[:i])) for i in range(len(texts))]

    return swapped(TextPlace, "after", after)


def called(service: Service, path: str, body: Any, salt: str = "") -> Answer | bytes:
    """The answer of a route, or all bytes of its stream."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def work() -> Answer | bytes:
        made = Call(request_id="r", tenant=Tenant(salt=salt), body=data)
        answer = await respond(service, BY_PATH[path], made)
        if not isinstance(answer, EventStream):
            return answer
        events = b"".join([part async for part in answer.events])
        answer.close()
        return events

    return asyncio.run(work())


def status(service: Service, path: str, body: Any) -> int:
    answer = called(service, path, body)
    return answer.status if isinstance(answer, Answer) else 200


def check_places() -> list[str]:
    """A token after a character of several tokens begins one character later."""
    tokenizer = embedded_tokenizer()
    ids = tokenizer.encode("é!", add_special_tokens=False)
    found = TextPlace(tokenizer.detokenizer()).after(ids)
    return [] if found == [0] * (len(ids) - 1) + [1] else [f"tokens begin at {found}"]


def check_bodies() -> list[str]:
    """A body with a key twice, or nested too deeply, is refused."""
    service = Service(backend=ScriptedBackend())
    twice = b'{"prompt": "a", "max_tokens": 1, "n": 1, "n": 2}'
    deep = b'{"prompt": "a", "metadata": ' + b"[" * 500 + b"]" * 500 + b"}"
    found = []
    for name, body in (("a key twice", twice), ("depth", deep)):
        answer = called(service, COMPLETIONS, body)
        text = answer.body if isinstance(answer, Answer) else b""
        if (b"twice" if body is twice else b"deeper than") not in text:
            found.append(f"{name}: a body that must be refused for it was not")
    return found


def check_salts() -> list[str]:
    """Requests of two tenants, or with two salts, never have one salt."""
    backend = ScriptedBackend()
    service = Service(backend=backend)
    pairs = [("t", None), ("u", None), ("t", "u"), ("tu", None), ("", "tu")]
    for salt, own in pairs:
        called(service, COMPLETIONS, {"prompt": "a", "cache_salt": own}, salt)
    salts = [options.salt for options in backend.options]
    return [] if len(set(salts)) == len(pairs) else [f"{len(set(salts))} salts of {len(pairs)} pairs"]


def check_ends() -> list[str]:
    """Every sample of a stream ends once."""
    events = called(Service(backend=ScriptedBackend()), CHAT, {**HELLO, "n": 3, "stream": True})
    assert isinstance(events, bytes), "a stream was asked for"
    num_ends = events.count(b'"finish_reason":"stop"')
    return [] if num_ends == 3 else [f"3 samples ended {num_ends} times"]


def check_prompts() -> list[str]:
    """A call that is refused leaves nothing with the engine."""
    backend = ScriptedBackend(room=2)
    called(Service(backend=backend), COMPLETIONS, {"prompt": ["a", "b", "c"]})
    return [f"stream {i} was left open" for i, stream in enumerate(backend.streams) if not stream.is_closed]


def check_refused() -> list[str]:
    """What would change the answer and cannot be done is refused."""
    service = Service(backend=ScriptedBackend())
    return [] if status(service, COMPLETIONS, {"prompt": "a", "suffix": "b"}) == 400 else ["a suffix was ignored"]


PROTOCOL_MUTANTS: tuple[Mutant, ...] = (
    a_key_twice,
    depth_unchecked,
    tenants_share_prefixes,
    salts_run_together,
    an_end_told_twice,
    half_a_call_queued,
    refused_fields_ignored,
    texts_added_up,
)
PROTOCOL_CHECKERS: tuple[Checker, ...] = (
    Checker(name="bodies", run=check_bodies),
    Checker(name="salts", run=check_salts),
    Checker(name="ends of samples", run=check_ends),
    Checker(name="prompts of one call", run=check_prompts),
    Checker(name="refused fields", run=check_refused),
    Checker(name="places", run=check_places),
)
