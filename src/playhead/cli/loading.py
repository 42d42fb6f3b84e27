"""How every command gets its model."""

from __future__ import annotations

from playhead.engine_config import EngineConfig
from playhead.llm import LLM
from playhead.progress import load_bar


def loaded(model: str, config: EngineConfig) -> LLM:
    """The model, behind a bar while it loads."""
    with load_bar(model) as advance:
        return LLM(model, config, on_load_progress=advance)
