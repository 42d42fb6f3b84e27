"""The embedded model with other files beside its weights."""

from __future__ import annotations

import json

from playhead.engine.config import EMBEDDED
from playhead.engine.tokenizer_files import resolve_model_name

SMALL = {"max_model_len": 64, "max_num_seqs": 1, "max_num_batched_tokens": 16, "graph_mode": "eager"}


def checkpoint(directory, **files):
    """The embedded model with other files beside it."""
    source = resolve_model_name(EMBEDDED)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (directory / name).symlink_to(f"{source}/{name}")
    for name, table in files.items():
        (directory / f"{name}.json").unlink(missing_ok=True)
        (directory / f"{name}.json").write_text(json.dumps(table))
    return str(directory)
