"""What the HTTP side has of a model whose engine is elsewhere: facts, tokenizer, chat template. No torch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playhead.engine.config import EngineConfig
from playhead.engine.front import PromptReader
from playhead.engine.tokenizer_files import tokenizer_at, tokenizer_path_here
from playhead.models.text.generation_config import check_end_ids
from playhead.models.text.tokenizer import Tokenizer
from playhead.serve import wire
from playhead.serve.backend import ModelFacts

BEGIN_S = 0.02  # to tell an engine what to load


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReader:
    """Known once an engine is loaded."""

    facts: ModelFacts
    reader: PromptReader

    @classmethod
    async def beside(cls, loading: Coroutine[Any, Any, wire.Ready], model: str, config: EngineConfig) -> RemoteReader:
        """The reader of a model that an engine is loading. What either of them cannot use is raised at once.

        The tokenizer is read while the engine loads. One of the hub waits until the engine has fetched it.
        """
        engine, path = asyncio.ensure_future(loading), tokenizer_path_here(model, config)
        try:
            # Reading a tokenizer holds the interpreter's lock: the engine must know before what to load.
            await asyncio.wait({engine}, timeout=BEGIN_S)
            if path is None:
                path = Path((await engine).tokenizer_path)
            reading = asyncio.ensure_future(asyncio.to_thread(tokenizer_at, path, config))
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # if the engine's is raised
            await asyncio.wait({engine, reading}, return_when=asyncio.FIRST_EXCEPTION)
            for one in engine, reading:
                if one.done():
                    one.result()
            return cls.of(engine.result(), reading.result(), path)
        finally:
            engine.cancel()
            await asyncio.wait({engine})

    @classmethod
    def of(cls, ready: wire.Ready, tokenizer: Tokenizer, path: Path) -> RemoteReader:
        """From what a loaded engine says. An end id that the model does not have is refused."""
        params = wire.params_of(ready.default_params)
        has_template = tokenizer.chat_template is not None
        facts = ModelFacts(**ready.facts, default_params=params, has_chat_template=has_template)
        where = path.name if path.is_file() else "tokenizer_config.json"
        check_end_ids(tokenizer.special.eos_ids, facts.vocab_size, where)
        reader = PromptReader(
            tokenizer=tokenizer,
            vocab_size=facts.vocab_size,
            max_context=facts.max_model_len,
            default_params=params,
        )
        return cls(facts=facts, reader=reader)
