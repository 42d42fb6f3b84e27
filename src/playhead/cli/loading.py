"""How every command gets its model, and asks no more of it than there is room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from playhead.cli.command import Flags, named
from playhead.engine.config import EngineConfig
from playhead.engine.progress import load_bar
from playhead.inputs import Prompt
from playhead.llm import LLM
from playhead.sampling_params import PARAMETERS, SAMPLING_SETTINGS, SamplingParams


def sampling(*names: str, **defaults: Any) -> Flags[dict[str, Any]]:
    """Flags for sampling parameters. The command gets those that were given; the model's own stand for the others."""
    settings = named([one for one in SAMPLING_SETTINGS if one.setting.help], names, {})
    return Flags(
        settings=tuple(replace(one, default=defaults.get(one.name), is_optional=True) for one in settings),
        make=asked_for,
        unset={one.name: "the model's" for one in settings if PARAMETERS[one.name].in_checkpoints},
    )


def loaded(model: str, config: EngineConfig) -> LLM:
    """The model, behind a bar while it loads."""
    with load_bar(model) as advance:
        return LLM(model, config, on_load_progress=advance)


def asked_for(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling fields that were given on the command line, checked before the model is loaded."""
    given = {name: value for name, value in fields.items() if value is not None}
    SamplingParams(**given)
    return given


def sampling_of(llm: LLM, asked: Mapping[str, Any]) -> SamplingParams:
    """The model's own way to sample, with the fields that were asked for."""
    return replace(llm.get_default_sampling_params(), **asked)


def fitted(llm: LLM, prompt: Prompt, params: SamplingParams) -> SamplingParams:
    """The parameters with no more tokens than the context leaves: on a command line `--max-tokens` is a bound."""
    room = llm.engine.reader.check(prompt, replace(params, max_tokens=None)).max_new_tokens
    return replace(params, max_tokens=min(params.max_tokens or room, room))
