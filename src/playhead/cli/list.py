"""`playhead list`: the models on this machine that a command can name."""

from __future__ import annotations

from pathlib import Path

from playhead.cli.screen import Screen
from playhead.engine.config import EMBEDDED
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.models.hub_cache import CachedModel, cached_models
from playhead.settings import show_size


def run_list(screen: Screen) -> None:
    """The embedded model, then those of the hub's cache; under the table why a model does not run."""
    embedded = Path(resolve_model_name(EMBEDDED))
    num_bytes = sum(path.stat().st_size for path in embedded.iterdir())
    models = [CachedModel(name=EMBEDDED, format="safetensors", num_bytes=num_bytes), *cached_models()]
    rows = [("model", "size", "format", "runs")]
    rows += [(one.name, show_size(one.num_bytes), one.format, "no" if one.problem else "yes") for one in models]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:  # no table: it would cut a long name, and names are there to be copied
        screen.out("  ".join(map(str.ljust, row, widths)).rstrip(), highlight=False)
    for model in models:
        if model.problem:
            screen.out(f"{model.name}: {model.problem}", highlight=False)
