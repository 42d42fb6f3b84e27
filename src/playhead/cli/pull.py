"""`playhead pull`: bring a model of the hub to this machine."""

from __future__ import annotations

from playhead.cli.options import PullOptions
from playhead.cli.screen import Screen
from playhead.engine.progress import fetch_bar
from playhead.env import user_path
from playhead.errors import CheckpointError
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.hub import WANTED, HubName, fetch, hub_name
from playhead.models.config import read_json
from playhead.settings import show_size


def run_pull(screen: Screen, options: PullOptions) -> None:
    """Fetch, behind a bar, and say what came and how to talk to it."""
    name = named(options.model)
    if name.file is None:  # a model that cannot run here is refused before its weights are on their way
        spec_from_config(read_json(fetch(name, revision=options.revision, config_only=True) / "config.json"))
    with fetch_bar() as advance:
        path = fetch(name, revision=options.revision, on_progress=advance)
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    size = show_size(sum(file.stat().st_size for file in files))
    screen.out(f"{name}: {len(files)} {'file' if len(files) == 1 else 'files'}, {size}, in {path}", highlight=False)
    screen.out(f"playhead chat -m hf:{name}", highlight=False)


def named(model: str) -> HubName:
    """The hub's name; a path of this machine needs no fetching."""
    name = hub_name(model)
    if name is None:
        fix = "It is here already." if user_path(model).exists() else "Check the name."
        raise CheckpointError(model, "no name of the hub", WANTED.removeprefix("a directory, a .gguf file, or "), fix)
    return name
