"""How every command gets its model, and asks no more of it than there is room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from playhead.cli.command import Flags, named
from playhead.engine.config import EngineConfig
from playhead.engine.front import Prompt
from playhead.engine.progress import load_bar
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams
from playhead.settings import Setting, declare, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """Stand-in until the parameters declare themselves."""

    max_tokens: int = declare(100, Setting(group="length", help="generate at most", aliases=("--max-new-tokens",)))
    temperature: float = declare(1.0, Setting(group="sampling", help="0 is greedy", aliases=("-t",)))
    top_p: float = declare(1.0, Setting(group="sampling", help="sample from this share of the probability"))
    top_k: int = declare(0, Setting(group="sampling", help="sample from the best N; 0 is all"))
    min_p: float = declare(0.0, Setting(group="sampling", help="drop tokens below X times the best one"))
    seed: int | None = declare(None, Setting(group="sampling", help="same seed, same tokens"))
    stop: Sequence[str] = declare((), Setting(group="length", help="end before this text; may be repeated"))
    n: int = declare(1, Setting(group="output", help="samples; several do not stream", aliases=("-n",)))
    logprobs: int | None = declare(None, Setting(group="output", help="show each token's, and the best N"))


def sampling(*names: str, **defaults: Any) -> Flags[dict[str, Any]]:
    """Flags for sampling parameters. The command gets those that were given; the model's own stand for the others."""
    settings = named(settings_of(SamplingFlags), names, {})
    return Flags(
        settings=tuple(replace(one, default=defaults.get(one.name), is_optional=True) for one in settings),
        make=asked_for,
        unset={one.name: "the model's" for one in settings if one.default is not None and not one.is_list},
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
