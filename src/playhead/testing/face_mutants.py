"""Bugs in what callers say to an LLM, and what notices them."""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import replace
from typing import Any

import playhead.engine.conversations
import playhead.engine.front
import playhead.engine.memory
import playhead.sgl as sgl
from playhead.engine.config import EngineConfig, config_from
from playhead.engine.conversations import Message
from playhead.engine.foreign import ForeignSetting
from playhead.errors import ConfigError, PlayheadError, RequestError
from playhead.inputs import PlainPrompt, plain_prompt
from playhead.sampling_params import SamplingParams
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.tiny_engine import small_llm

FEW = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
PAGES = tuple(range(5, 45))  # two whole pages and a half


@mutant(
    "salt of a prompt forgotten",
    source="prefix caches that show one tenant what another asked",
    killed_by=("two tenants ask the same",),
)
def salt_of_a_prompt_forgotten() -> Patch:
    def unsalted(prompt: object) -> PlainPrompt:
        return replace(plain_prompt(prompt), salt="")

    return swapped(playhead.engine.front, "plain_prompt", unsalted)


@mutant(
    "a caller's parameters kept",
    source="per-request state left in a shared object",
    killed_by=("parameters set while a request runs",),
)
def a_callers_parameters_kept() -> Patch:
    def itself(self: SamplingParams) -> SamplingParams:
        return self

    return swapped(SamplingParams, "clone", itself)


@mutant("a share of what is free", source="two engines on one GPU", killed_by=("half of a GPU",))
def a_share_of_what_is_free() -> Patch:
    def of_free(config: EngineConfig, free: int, total: int) -> int:
        return int(free * (config.gpu_memory_utilization or 0.9))

    return swapped(playhead.engine.memory, "share_of_gpu", of_free)


@mutant(
    "a setting ignored quietly",
    source="flags that are taken and do nothing",
    killed_by=("eight GPUs asked for",),
)
def a_setting_ignored_quietly() -> Patch:
    def whatever(self: ForeignSetting, name: str, value: object) -> None:
        return None

    return swapped(ForeignSetting, "check", whatever)


@mutant(
    "errors made of their message",
    source="found here: a pool of processes that waits for ever",
    killed_by=("a worker's error",),
)
def errors_made_of_their_message() -> Patch:
    def pythons_own(self: PlayheadError) -> tuple[Any, ...]:
        return type(self), self.args, vars(self)

    return swapped(PlayheadError, "__reduce__", pythons_own)


@mutant(
    "nothing said is written out",
    source="found here: a prompt with the word None in it",
    killed_by=("a message without a text",),
)
def nothing_said_is_written_out() -> Patch:
    def as_sent(message: Message) -> dict[str, object]:
        return {}

    return swapped(playhead.engine.conversations, "_plain_content", as_sent)


@mutant(
    "threads end before their engine",
    source="found here: a shutdown that waits for every token",
    killed_by=("shut down under a coroutine",),
)
def threads_end_before_their_engine() -> Patch:
    def patient(self: sgl.Engine) -> None:
        self._threads.shutdown(wait=True)
        self._llm.close()

    return swapped(sgl.Engine, "shutdown", patient)


def tenants() -> list[str]:
    """Prompts of different salts share no page, and prompts of one salt do."""
    llm = small_llm()
    asked = [{"prompt_token_ids": PAGES, "cache_salt": salt} for salt in ("a", "b", "a")]
    cached = [llm.generate(prompt, FEW, use_tqdm=False)[0].num_cached_tokens for prompt in asked]
    return [] if cached[:2] == [0, 0] and cached[2] > 0 else [f"cached tokens: {cached}"]


def set_while_running() -> list[str]:
    """A field that is set after a request was sent changes nothing of the request."""
    llm, params = small_llm(), copy(FEW)  # `clone` is what the mutant breaks
    stream = llm.stream([5, 6, 7], params)
    params.stop_token_ids = tuple(range(llm.engine.reader.vocab_size))
    num_tokens = len(list(stream)[-1].outputs[0].token_ids)
    return [] if num_tokens == FEW.max_tokens else [f"{num_tokens} tokens instead of {FEW.max_tokens}"]


def half_a_gpu() -> list[str]:
    """A share is one of all the memory there is."""
    half = EngineConfig(gpu_memory_utilization=0.5)
    found = playhead.engine.memory.share_of_gpu(half, 80, 100)
    return [] if found == 50 else [f"{found} of 100"]


def eight_gpus() -> list[str]:
    """A setting that asks for something Playhead does not have is refused."""
    try:
        config_from(None, {"pipeline_parallel_size": 8})
    except ConfigError:
        return []
    return ["a model on eight GPUs was promised"]


def a_workers_error() -> list[str]:
    """An error can be made anew of what another process sends of it."""
    sent = RequestError("prompt", "0 tokens", "at least 1", "Send a prompt.")
    try:
        return [] if copy(sent).wanted == "at least 1" else ["the parts of an error are lost"]
    except TypeError as error:
        return [str(error)]


def nothing_said() -> list[str]:
    """A message without a text adds none to the prompt."""
    (message,) = playhead.engine.conversations.plain_messages([{"role": "user", "content": None}])
    return [] if message["content"] == "" else [f"the prompt would have {message['content']}"]


def shut_down_under_a_coroutine() -> list[str]:
    """A coroutine that reads a stream gets what there is when the engine is shut down, and is told so."""
    engine = sgl.Engine("embedded", context_length=64, max_running_requests=2, disable_cuda_graph=True)

    async def last() -> list[str]:
        answers = await engine.async_generate("The whale", {"temperature": 0, "max_new_tokens": 60}, stream=True)
        await anext(answers)
        engine.shutdown()
        *_, end = [answer["meta_info"]["finish_reason"] async for answer in answers]
        return [] if end["type"] == "abort" else [f"the stream ended by {end['type']}"]

    try:
        return asyncio.run(last())
    except RuntimeError as error:
        return [str(error)]


FACE_MUTANTS: tuple[Mutant, ...] = (
    salt_of_a_prompt_forgotten,
    a_callers_parameters_kept,
    a_share_of_what_is_free,
    a_setting_ignored_quietly,
    errors_made_of_their_message,
    nothing_said_is_written_out,
    threads_end_before_their_engine,
)

FACE_CHECKERS: tuple[Checker, ...] = (
    Checker(name="two tenants ask the same", run=tenants),
    Checker(name="parameters set while a request runs", run=set_while_running),
    Checker(name="half of a GPU", run=half_a_gpu),
    Checker(name="eight GPUs asked for", run=eight_gpus),
    Checker(name="a worker's error", run=a_workers_error),
    Checker(name="a message without a text", run=nothing_said),
    Checker(name="shut down under a coroutine", run=shut_down_under_a_coroutine),
)
