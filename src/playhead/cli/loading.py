"""How every command gets its model, and asks no more of it than there is room for."""

from __future__ import annotations

from dataclasses import replace

from playhead.engine_config import EngineConfig
from playhead.llm import LLM, Prompt
from playhead.progress import load_bar
from playhead.schedule.sampling_params import SamplingParams


def loaded(model: str, config: EngineConfig) -> LLM:
    """The model, behind a bar while it loads."""
    with load_bar(model) as advance:
        return LLM(model, config, on_load_progress=advance)


def fitted(llm: LLM, prompt: Prompt, params: SamplingParams) -> SamplingParams:
    """The parameters with no more tokens than the context leaves: on a command line `--max-tokens` is a bound."""
    room = llm.engine.check_request(prompt, replace(params, max_tokens=None)).max_new_tokens
    return replace(params, max_tokens=min(params.max_tokens or room, room))
