"""How every command gets its model, and asks no more of it than there is room for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from playhead.cli.command import in_flags
from playhead.engine.config import ENGINE_SETTINGS, EngineConfig
from playhead.engine.memory import LOG as SIZES_LOG
from playhead.engine.progress import load_bar
from playhead.inputs import Prompt
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams


def loaded(model: str, config: EngineConfig) -> LLM:
    """The model, behind a bar while it loads."""
    with load_bar(model) as advance, flags_in_log():
        return LLM(model, config, on_load_progress=advance)


@contextmanager
def flags_in_log() -> Iterator[None]:
    """Inside, warnings about settings that gave way to memory name flags."""

    def translate(record: logging.LogRecord) -> bool:
        record.msg, record.args = in_flags(record.getMessage(), ENGINE_SETTINGS), ()
        return True

    SIZES_LOG.addFilter(translate)
    try:
        yield
    finally:
        SIZES_LOG.removeFilter(translate)


def sampling_of(llm: LLM, asked: Mapping[str, Any]) -> SamplingParams:
    """The model's own way to sample, with the fields that were asked for."""
    return replace(llm.get_default_sampling_params(), **asked)


def fitted(llm: LLM, prompt: Prompt, params: SamplingParams) -> SamplingParams:
    """The parameters with no more tokens than the context leaves: on a command line `--max-tokens` is a bound."""
    room = llm.engine.reader.check(prompt, replace(params, max_tokens=None)).max_new_tokens
    return replace(params, max_tokens=min(params.max_tokens or room, room))
