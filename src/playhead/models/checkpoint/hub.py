"""From what a user typed to files on this machine: a directory, a GGUF file, or a model of the hub."""

from __future__ import annotations

import re
from pathlib import Path

from playhead.errors import CheckpointError

# owner/name as the hub allows it; anything else would be a path, and paths are looked at first.
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")

# Only what is read. Pickled weights stay where they are, and so does code.
PATTERNS = ("*.json", "*.safetensors", "*.jinja")
# A pattern's * takes slashes too. Folders (original/, metal/, onnx/) and consolidated files repeat the same weights.
IGNORED_PATTERNS = ("*/*", "consolidated*", "*.bin", "*.pth", "*.pt")


def resolve_model(model: str, *, revision: str | None = None, config_only: bool = False) -> Path:
    """Where the model's files are. A hub id is downloaded if it is not here yet, and found in the cache if it is.

    With `config_only` that is one small file: enough to plan memory, or to make weights of the same shapes.
    """
    path = Path(model).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise CheckpointError(model, "a file", "a directory, a .gguf file or a hub id", "Give its directory.")
    if not HUB_ID.fullmatch(model):
        raise CheckpointError(
            model, "nothing by that name here", "a directory, a .gguf file or a hub id", "Hub ids look like owner/name."
        )
    return _download(model, revision, config_only=config_only)


def _download(model: str, revision: str | None, *, config_only: bool) -> Path:
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise CheckpointError(
            model,
            "this is a hub id, and huggingface_hub is not installed",
            "",
            "Install playhead[hub], or pass a local directory.",
        ) from None
    try:
        if config_only:
            return Path(hf_hub_download(model, "config.json", revision=revision)).parent
        wanted, unwanted = list(PATTERNS), list(IGNORED_PATTERNS)
        return Path(snapshot_download(model, revision=revision, allow_patterns=wanted, ignore_patterns=unwanted))
    except LocalEntryNotFoundError:
        raise CheckpointError(
            model,
            "the hub cannot be reached and the model is not in the local cache",
            "",
            "Go online once, or copy the files here and give their directory.",
        ) from None
    except HfHubHTTPError as error:
        raise CheckpointError(
            model, f"the hub refused it ({error.response.status_code})", "a model you may read", "Check id and token."
        ) from None
