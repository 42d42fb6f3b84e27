"""A checkpoint directory: one safetensors file, or several and an index that says which tensor is where."""

from __future__ import annotations

from pathlib import Path

import torch

from playhead.errors import CheckpointError, some_of
from playhead.models.checkpoint.safetensors_file import SafetensorsFile
from playhead.models.checkpoint.sources import Part, TensorInfo
from playhead.models.config import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class SafetensorsDirectory:
    """All shards as one source, tensors in the order they lie on disk. All headers are read and checked at once."""

    def __init__(self, directory: Path) -> None:
        self.label = directory.name
        self._shard_of: dict[str, SafetensorsFile] = {}
        self.tensors: dict[str, TensorInfo] = {}
        for file_name, indexed in _shards(directory).items():
            shard = SafetensorsFile(directory / file_name)
            self._check_index(file_name, indexed, shard)
            for name, info in shard.tensors.items():
                if name in self.tensors:
                    raise CheckpointError(
                        file_name, f"tensor {name!r} again", "each tensor in one shard", "Download the files again."
                    )
                self.tensors[name], self._shard_of[name] = info, shard

    def _check_index(self, file_name: str, indexed: set[str] | None, shard: SafetensorsFile) -> None:
        if indexed is not None and indexed != set(shard.tensors):
            different = sorted(indexed ^ set(shard.tensors))
            raise CheckpointError(
                file_name,
                f"index and file disagree about {some_of(different)}",
                f"the tensors {INDEX_FILE} places there",
                "Index and shards must come from the same checkpoint; download them again.",
            )

    def read(self, name: str, part: Part | None = None) -> torch.Tensor:
        return self._shard_of[name].read(name, part)

    def blocks(self, name: str, part: Part | None = None) -> None:
        """A safetensors file has plain numbers."""


def _shards(directory: Path) -> dict[str, set[str] | None]:
    """File names in order, each with the tensors the index places in it; None where there is no index.

    The single file comes first, as in transformers: an index beside it is a leftover of another export.
    """
    if (directory / SINGLE_FILE).is_file():
        return {SINGLE_FILE: None}
    if not (directory / INDEX_FILE).is_file():
        raise CheckpointError(
            directory.name,
            f"neither {SINGLE_FILE} nor {INDEX_FILE}",
            "a checkpoint with weights in safetensors",
            "Pickled weights (.bin, .pt) are never read; convert them to safetensors first.",
        )
    weight_map = read_json(directory / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(INDEX_FILE, "no weight_map", "tensor names with their files", "Download it again.")
    shards: dict[str, set[str] | None] = {}
    for file_name in sorted({str(value) for value in weight_map.values()}):
        # A name with a path in it would read outside the directory the user pointed at.
        if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
            raise CheckpointError(INDEX_FILE, f"shard {file_name!r}", "a .safetensors file beside it", "Do not use it.")
        if not (directory / file_name).is_file():
            raise CheckpointError(file_name, "no such file", f"every shard of {INDEX_FILE}", "Finish the download.")
        shards[file_name] = {name for name, value in weight_map.items() if value == file_name}
    return shards
