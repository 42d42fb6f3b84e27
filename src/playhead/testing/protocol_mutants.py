"""Bugs between a client's bytes and the engine's requests, and what notices them. No model is loaded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import playhead.serve.decode
import playhead.serve.routes.chat
import playhead.serve.routes.completions
import playhead.serve.routes.turn
import playhead.serve.service
import playhead.serve.validate
from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.outputs import CompletionOutput, FinishReason, RequestOutput
from playhead.request_limits import RequestLimits
from playhead.sampling_params import SamplingParams
from playhead.serve.backend import Backend, Stream
from playhead.serve.call import Answer, Call, EventStream, Tenant
from playhead.serve.protocol.chat import TokenLogprob
from playhead.serve.protocol.responses import ResponsesRequest
from playhead.serve.routes import ROUTES
from playhead.serve.routes.chat import ChatEvents
from playhead.serve.routes.completions import Completions, TextPlace
from playhead.serve.routes.items import Items
from playhead.serve.routes.responses import Accepted
from playhead.serve.service import Service, respond
from playhead.serve.tools.events import Event
from playhead.serve.tools.formats import OutputSettings, ToolFormat
from playhead.serve.validate import Rules
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.scripted_backend import ScriptedBackend, embedded_tokenizer

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
BY_PATH = {route.path: route for route in ROUTES}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES = "tokens of a response"
HALF_CALLS = "forced calls cut off"


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
    def lenient(request: object, path: str = "") -> None:
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


@mutant("a whole response read as one piece", source="found here: reasoning_tokens of 0", killed_by=(RESPONSES,))
def read_as_one_piece() -> Patch:
    return swapped(Accepted, "by_token", lambda self, completion: iter([completion]))


@mutant("reports of text that waits are lost", source="found here: logprobs beside tools", killed_by=(RESPONSES,))
def waiting_reports_lost() -> Patch:
    def forgetful(self: Items, found: Sequence[Event], reports: list[TokenLogprob]) -> None:
        for i, one in enumerate(found):
            self.add(one, [] if i else reports)

    return swapped(Items, "take", forgetful)


@mutant("a form from the first token", source="models that cannot reason before JSON", killed_by=("forms of answers",))
def form_from_the_first_token() -> Patch:
    return swapped(ToolFormat, "before_form", lambda self, tokens, *, prompt_end="": None)


@mutant("half a forced call is content", source="found here: answers cut at max_tokens", killed_by=(HALF_CALLS,))
def half_a_forced_call() -> Patch:
    return swapped(playhead.serve.routes.turn, "CallsAlone", lambda parser: parser)


@mutant("every end a stop token", source="found here: stop_reason with tools", killed_by=("ends of the model",))
def every_end_a_stop_token() -> Patch:
    return swapped(playhead.serve.routes.turn, "added_stops", lambda params, settings, eos_ids: settings.stop_token_ids)


@mutant("a scored prompt has nothing cached", source="found here: max_tokens of 0", killed_by=("cached tokens",))
def scored_without_cache() -> Patch:
    original = Completions.add

    def careless(self: Completions, number: int, output: RequestOutput) -> None:
        if not self.wanted.is_scored:
            original(self, number, output)

    return swapped(Completions, "add", careless)


@mutant("forms named as the library names them", source="found here: response_format", killed_by=("names",))
def forms_named_otherwise() -> Patch:
    return swapped(playhead.serve.routes.chat, "form_field", lambda request, name, response_format: None)


@mutant("lengths named as the library names them", source="found here: max_completion_tokens", killed_by=("names",))
def lengths_named_otherwise() -> Patch:
    return swapped(playhead.serve.routes.chat, "names_of", lambda request: {})


@mutant("too many prompts for any queue", source="found here: 429 for ever", killed_by=("prompts that never fit",))
def too_many_prompts() -> Patch:
    return swapped(playhead.serve.routes.completions, "check_fits", lambda wanted, max_sequences: None)


@mutant("calls apart from their message", source="found here: templates refuse it", killed_by=("items of a turn",))
def calls_apart() -> Patch:
    original = playhead.serve.validate.item_tables

    def apart(request: ResponsesRequest, rules: Rules) -> list[dict[str, object]]:
        tables = []
        for table in original(request, rules):
            tables += [{**table, "tool_calls": None}] * ("tool_calls" in table) + [table]
        return tables

    return swapped(playhead.serve.validate, "item_tables", apart)


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


def check_fits() -> list[str]:
    """Prompts that could never be queued together are not told to wait."""
    service = Service(backend=ScriptedBackend(max_sequences=5))
    found = status(service, COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2})
    return [] if found == 400 else [f"status {found}"]


def check_refused() -> list[str]:
    """What would change the answer and cannot be done is refused."""
    service = Service(backend=ScriptedBackend())
    return [] if status(service, COMPLETIONS, {"prompt": "a", "suffix": "b"}) == 400 else ["a suffix was ignored"]


def check_response() -> list[str]:
    """A whole response with reasoning counts its tokens, and reports those of the message."""
    tokenizer, tool = embedded_tokenizer(), {"type": "function", "name": "f"}
    ids = tokenizer.encode("<|channel>thought\nHm<channel|>a < b", add_special_tokens=False)
    backend = ScriptedBackend(pieces=[tokenizer.token_text(one) or "" for one in ids], token_ids=ids)
    body = {"input": "a", "tools": [tool], "include": ["message.output_text.logprobs"]}
    answer = called(Service(backend=backend, tool_format="gemma4"), "/v1/responses", body)
    assert isinstance(answer, Answer), "no stream was asked for"
    read = json.loads(answer.body)
    text = "".join(one["token"] for one in read["output"][-1]["content"][0]["logprobs"])
    num_thought = read["usage"]["output_tokens_details"]["reasoning_tokens"]
    return [] if (text, num_thought > 0) == ("a < b", True) else [f"{text!r} reported, {num_thought} of reasoning"]


def check_stops() -> list[str]:
    """A format adds no stop token that ends the model's answers anyway."""
    settings = OutputSettings(skip_special_tokens=True, stop_token_ids=(2, 9))
    found = playhead.serve.routes.turn.added_stops(SamplingParams(), settings, {2})
    return [] if found == (9,) else [f"{found} added"]


def check_cached() -> list[str]:
    """A prompt that is only scored tells how much of it was cached."""
    service = Service(backend=ScriptedBackend(pieces=["a"], num_cached_tokens=3))
    answer = called(service, COMPLETIONS, {"prompt": "a", "echo": True, "max_tokens": 0})
    assert isinstance(answer, Answer), "no stream was asked for"
    used = json.loads(answer.body)["usage"]
    num_cached = used["prompt_tokens_details"]["cached_tokens"]
    return [] if (num_cached, used["completion_tokens"]) == (3, 0) else [f"{used}"]


def check_names() -> list[str]:
    """What cannot be served is refused under the name of the field that asked for it."""
    named = {"name": "a", "schema": {"type": "nothing"}}
    found = []
    for name, value in (
        ("response_format", {"type": "json_schema", "json_schema": named}),
        ("max_completion_tokens", 0),
    ):
        answer = called(Service(backend=ScriptedBackend()), CHAT, {**HELLO, name: value})
        assert isinstance(answer, Answer), "no stream was asked for"
        param = json.loads(answer.body)["error"]["param"]
        found += [] if param == name else [f"{param} was refused, and {name} was sent"]
    return found


def check_forms() -> list[str]:
    """Where the prompt ends with the beginning of reasoning, it ends before the form of the answer begins."""
    backend = ScriptedBackend(pieces=["Hm", "<channel|>", "{}"])
    service = Service(backend=backend, tool_format="gemma4")
    messages = [*HELLO["messages"], {"role": "assistant", "content": "<|channel>thought"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    body = {"messages": messages, **options, "response_format": {"type": "json_object"}}
    answer = called(service, CHAT, body)
    assert isinstance(answer, Answer), "no stream was asked for"
    said = json.loads(answer.body)["choices"][0]["message"]
    found = [] if (said["reasoning_content"], said["content"]) == ("Hm", "{}") else [f"{said}"]
    form = backend.submitted[-1].params.structured_outputs
    return found if form is not None and form.before is not None else [*found, f"nothing stands before {form}"]


def check_half_calls() -> list[str]:
    """What is left of a forced call that was cut off before its name is no content."""
    service = Service(backend=ScriptedBackend(pieces=['{"name": "'], finish=FinishReason.LENGTH))
    tool = {"type": "function", "function": {"name": "f"}}
    answer = called(service, CHAT, {**HELLO, "tools": [tool], "tool_choice": "required"})
    assert isinstance(answer, Answer), "no stream was asked for"
    said = json.loads(answer.body)["choices"][0]["message"]
    return [] if said["content"] == "" else [f"{said}"]


def check_items() -> list[str]:
    """What the model said and called in one answer is one message."""
    items = [{"role": "assistant", "content": "I look."}]
    items.append({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})
    request = playhead.serve.decode.as_struct({"input": items}, ResponsesRequest)
    rules = Rules(defaults=SamplingParams(), limits=RequestLimits())
    num_messages = len(playhead.serve.validate.validate_responses(request, rules).messages)
    return [] if num_messages == 1 else [f"{num_messages} messages"]


PROTOCOL_MUTANTS: tuple[Mutant, ...] = (
    a_key_twice,
    depth_unchecked,
    tenants_share_prefixes,
    salts_run_together,
    an_end_told_twice,
    half_a_call_queued,
    refused_fields_ignored,
    texts_added_up,
    read_as_one_piece,
    waiting_reports_lost,
    calls_apart,
    form_from_the_first_token,
    forms_named_otherwise,
    lengths_named_otherwise,
    too_many_prompts,
    half_a_forced_call,
    every_end_a_stop_token,
    scored_without_cache,
)
PROTOCOL_CHECKERS: tuple[Checker, ...] = (
    Checker(name="bodies", run=check_bodies),
    Checker(name="salts", run=check_salts),
    Checker(name="ends of samples", run=check_ends),
    Checker(name="prompts of one call", run=check_prompts),
    Checker(name="refused fields", run=check_refused),
    Checker(name="places", run=check_places),
    Checker(name=RESPONSES, run=check_response),
    Checker(name="items of a turn", run=check_items),
    Checker(name="forms of answers", run=check_forms),
    Checker(name="names", run=check_names),
    Checker(name="prompts that never fit", run=check_fits),
    Checker(name=HALF_CALLS, run=check_half_calls),
    Checker(name="ends of the model", run=check_stops),
    Checker(name="cached tokens", run=check_cached),
)
