"""Which models of the hub are on this machine, and whether this decoder can run them. Nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playhead.errors import CheckpointError, PlayheadError
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.directory import INDEX_FILE, SINGLE_FILE
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_model import config_from_gguf, spec_from_gguf
from playhead.models.checkpoint.hub import HubName, hub_name
from playhead.models.config import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model that can be named without a download. `problem` says why this decoder cannot run it."""

    name: str
    format: str
    num_bytes: int
    problem: str | None = None


def cached_models() -> list[CachedModel]:
    """The models in the hub's cache, by name. A repository with several GGUF files has one entry for each."""
    try:
        from huggingface_hub import constants, scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        raise CheckpointError(
            "cache", "huggingface_hub is not installed", "", "Install playhead[hub] to see models of the hub."
        ) from None
    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    found = [
        model
        for repository in repositories
        if repository.repo_type == "model" and repository.revisions and hub_name(repository.repo_id) is not None
        for model in models_in(
            repository.repo_id, max(repository.revisions, key=lambda revision: revision.last_modified).snapshot_path
        )
    ]
    return sorted(found, key=lambda model: model.name.lower())


def models_in(repo_id: str, snapshot: Path) -> Iterator[CachedModel]:
    """What one snapshot can be run as: its directory, and each GGUF file."""
    for path in sorted(snapshot.rglob("*.gguf")):
        name = hub_name(f"{repo_id}:{path.relative_to(snapshot).as_posix()}")
        if name is not None and path.is_file():
            yield _checked(name, "gguf", path, path.stat().st_size)
    if (snapshot / "config.json").is_file():
        num_bytes = sum(path.stat().st_size for path in snapshot.glob("*") if path.is_file())
        has_weights = (snapshot / SINGLE_FILE).is_file() or (snapshot / INDEX_FILE).is_file()
        kind = "safetensors" if has_weights else "config alone"
        yield _checked(HubName(repo_id=repo_id), kind, snapshot, num_bytes)


def _checked(name: HubName, kind: str, path: Path, num_bytes: int) -> CachedModel:
    try:
        if path.is_file():
            file = GgufFile(path)
            spec_from_gguf(file, config_from_gguf(file))
        else:
            spec_from_config(read_json(path / "config.json"))
    except PlayheadError as error:
        return CachedModel(name=str(name), format=kind, num_bytes=num_bytes, problem=str(error))
    return CachedModel(name=str(name), format=kind, num_bytes=num_bytes)
