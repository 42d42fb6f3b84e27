"""What clients may know of a model, read off its engine."""

from __future__ import annotations

import hashlib
from pathlib import PurePath

from playhead import __version__
from playhead.engine.engine import Engine
from playhead.serve.backend import ModelFacts


def facts_of(engine: Engine, name: str | None = None) -> ModelFacts:
    """The facts of a loaded model. Without a name of its own it is called as its directory, its file or its hub id is.

    The fingerprint changes with what may change a token: this package, the model, its device and its dtype.
    """
    limits, reader, config = engine.worker.config.limits, engine.reader, engine.config
    spec = repr(engine.worker.model.decoder.spec)
    parts = (__version__, engine.name, spec, config.device, config.dtype, str(config.graph_mode))
    return ModelFacts(
        name=name or client_name(engine.name),
        max_model_len=limits.max_context_tokens,
        vocab_size=reader.vocab_size,
        has_chat_template=reader.tokenizer.chat_template is not None,
        default_params=reader.default_params,
        max_running=limits.max_running,
        device=config.device,
        dtype=config.dtype,
        fingerprint="fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12],
    )


def client_name(model: str) -> str:
    """What clients call a model that was given as a path or a hub id: no directory of this machine is in it.

    >>> client_name("/models/smol/"), client_name("org/model"), client_name("./x/model.gguf")
    ('smol', 'org/model', 'model.gguf')
    """
    path = PurePath(model)
    is_path = model.startswith((".", "/", "~")) or len(path.parts) > 2
    return path.name or model if is_path else model
