"""A conversation, read for the engine: what chats and responses share. No torch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from playhead.engine.front import CheckedPrompt
from playhead.sampling_params import SamplingParams
from playhead.serve.decode import BodyError
from playhead.serve.protocol.fields import ServedFields
from playhead.serve.service import Service
from playhead.serve.tools.events import Parser
from playhead.serve.tools.formats import CallsAlone, OutputSettings
from playhead.serve.validate import ChatWanted
from playhead.structured_outputs import structured_outputs

NUM_END_TOKENS = 32
"""Tokens at the end of a prompt that show whether its template has begun the reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A conversation as token ids. `new_parser` makes a parser for each sample; None: every answer is plain text."""

    prompt: CheckedPrompt
    new_parser: Callable[[], Parser] | None


def check_template(service: Service, param: str) -> None:
    """Refuse a conversation with a model that has no chat template."""
    if not service.backend.facts.has_chat_template:
        found = "a model without a chat template"
        raise BodyError(param, found, "a model with one", "Use /v1/completions.", code="no_chat_template")


def form_field(request: ServedFields, name: str, response_format: object) -> str | None:
    """The field that asks for the form of an answer: `name`, the tools one of which is forced, or None for the form."""
    if request.structured_outputs is not None:
        return None
    return "tools" if response_format is None else name


async def read_turn(service: Service, wanted: ChatWanted) -> Turn:
    """The conversation as the model reads it, and how its answer will be read; or `RequestError`."""
    form = service.format
    chat = replace(wanted.chat, tools=form.template_tools(wanted.tools))
    ids = await service.read_chat(form.messages(wanted.messages, wanted.tools), chat)
    if not (wanted.tools.names or form.reasoning is not None or form.has_channels):
        return Turn(prompt=await service.read_prompt(ids, wanted.params), new_parser=None)
    tokenizer = service.backend.reader.tokenizer
    prompt_end = tokenizer.decode(ids[-NUM_END_TOKENS:], skip_special_tokens=False)
    params = parsed_params(service, wanted, prompt_end)

    def new_parser() -> Parser:
        names, is_forced = wanted.tools.names, wanted.tools.is_forced
        parser = form.parser(names=names, prompt_end=prompt_end, is_forced=is_forced)
        return CallsAlone(parser) if is_forced else parser

    return Turn(prompt=await service.read_prompt(ids, params), new_parser=new_parser)


def parsed_params(service: Service, wanted: ChatWanted, prompt_end: str) -> SamplingParams:
    """Parameters that give an answer which the format's parser can read, and the call that is forced."""
    params, tokens = wanted.params, service.token_names
    settings = service.format.output_settings(tokens)
    forced = service.format.structured_outputs(wanted.tools, tokens, prompt_end=prompt_end)
    if forced is not None and params.structured_outputs is not None:
        found = "a call that must be made, and a form of the answer"
        raise BodyError("tool_choice", found, "one of them", 'Leave out the form, or say tool_choice: "auto".')
    form = params.structured_outputs if forced is None else structured_outputs("tool_choice", forced)
    if forced is None and form is not None and form.before is None:
        form = replace(form, before=service.format.before_form(tokens, prompt_end=prompt_end))
    eos_ids = service.backend.reader.tokenizer.special.eos_ids
    return replace(
        params,
        skip_special_tokens=params.skip_special_tokens and settings.skip_special_tokens,
        stop_token_ids=(*(params.stop_token_ids or ()), *added_stops(params, settings, eos_ids)),
        structured_outputs=form,
    )


def added_stops(params: SamplingParams, settings: OutputSettings, eos_ids: Collection[int]) -> tuple[int, ...]:
    """The format's stop tokens that do not end an answer already.

    A token that the client did not name and that ends every answer of the model is no `stop_reason` to the client.
    """
    return () if params.ignore_eos else tuple(one for one in settings.stop_token_ids if one not in eos_ids)
