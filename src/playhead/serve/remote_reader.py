"""What the HTTP side has of a model whose engine is elsewhere: facts, tokenizer, chat template. No torch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from playhead.engine.config import EngineConfig
from playhead.engine.front import PromptReader
from playhead.engine.tokenizer_files import tokenizer_at, tokenizer_path_here
from playhead.models.text.tokenizer import Tokenizer
from playhead.serve import wire
from playhead.serve.backend import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReader:
    """Known once an engine is loaded."""

    facts: ModelFacts
    reader: PromptReader

    @staticmethod
    def early(model: str, config: EngineConfig) -> asyncio.Future[Tokenizer] | None:
        """Read the tokenizer while the engine loads. One of the hub waits until the engine has fetched it."""
        path = tokenizer_path_here(model, config)
        if path is None:
            return None
        reading = asyncio.ensure_future(asyncio.to_thread(tokenizer_at, path, config))
        # Files that cannot be used fail the engine too, whose error is raised.
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        return reading

    @classmethod
    async def of(cls, ready: wire.Ready, config: EngineConfig, early: asyncio.Future[Tokenizer] | None) -> RemoteReader:
        """From what a loaded engine says."""
        params = wire.params_of(ready.default_params)
        facts = ModelFacts(**ready.facts, default_params=params)
        reader = PromptReader(
            tokenizer=await (early or asyncio.to_thread(tokenizer_at, Path(ready.tokenizer_path), config)),
            vocab_size=facts.vocab_size,
            max_context=facts.max_model_len,
            default_params=params,
        )
        return cls(facts=facts, reader=reader)
