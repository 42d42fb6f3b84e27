"""A model from a name: find its files, read what it is, load its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from playhead.layers.blocks import BlockWeights, packed_bytes
from playhead.layers.parallel import weight_format
from playhead.layers.shard import WHOLE, Shard
from playhead.models.build import family_named, spec_from_config
from playhead.models.checkpoint.directory import SafetensorsDirectory
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.checkpoint.fill import OnProgress, block_maps, load_decoder
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_model import GgufWeights, config_from_gguf, spec_from_gguf
from playhead.models.checkpoint.hub import resolve_model
from playhead.models.checkpoint.pieces import pieces_of
from playhead.models.checkpoint.sources import TensorSource
from playhead.models.config import read_json
from playhead.models.decoder import Decoder
from playhead.models.spec import ModelSpec
from playhead.models.text.generation_config import GenerationConfig, check_end_ids, read_generation_config
from playhead.models.text.tokenizer import Tokenizer
from playhead.types import LoadFormat

STORED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What a checkpoint says it is. Cheap: no weight has been read, and memory can be planned from it.

    `gguf` is the opened file where the checkpoint is one: weights and tokenizer come from it too.
    """

    path: Path
    config: dict[str, object]
    spec: ModelSpec
    gguf: GgufFile | None = None

    @property
    def stored_dtype(self) -> torch.dtype | None:
        """What the config says its weights are in; None if it does not say, as in GGUF files."""
        text = self.config.get("text_config")
        for level in (self.config, text if isinstance(text, dict) else {}):
            for key in ("dtype", "torch_dtype"):
                value = level.get(key)
                if isinstance(value, str) and value in STORED_DTYPES:
                    return STORED_DTYPES[value]
        return None


def describe_model(model: str, *, revision: str | None = None, config_only: bool = False) -> ModelDescription:
    """The model behind a directory, a .gguf file or a hub id, of which `config_only` fetches config.json alone."""
    path = resolve_model(model, revision=revision, config_only=config_only)
    gguf = GgufFile(path) if path.is_file() else None
    if gguf is None:
        config = read_json(path / "config.json")
        return ModelDescription(path=path, config=config, spec=spec_from_config(config))
    config = config_from_gguf(gguf)
    return ModelDescription(path=path, config=config, spec=spec_from_gguf(gguf, config), gguf=gguf)


def load_weights(
    description: ModelDescription,
    *,
    dtype: torch.dtype,
    device: torch.device,
    load_format: LoadFormat = LoadFormat.AUTO,
    shard: Shard = WHOLE,
    on_progress: OnProgress | None = None,
) -> Decoder:
    """The decoder with the checkpoint's weights, or a `CheckpointError` and nothing."""
    if load_format is LoadFormat.DUMMY:
        return dummy_decoder(description.spec, dtype=dtype, device=device, shard=shard)
    return load_decoder(
        description.spec,
        _source(description),
        dtype=dtype,
        device=device,
        shard=shard,
        on_progress=on_progress,
    )


def num_block_bytes(description: ModelDescription, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes of the blocks that a loaded decoder keeps beside its parameters. Headers are enough: no tensor is read."""
    spec = description.spec
    weights = weight_format(spec.stored_as, dtype=dtype, device=device)
    if description.gguf is None or not (isinstance(weights, BlockWeights) and weights.keeps_blocks):
        return 0
    source = GgufWeights(description.gguf, description.config, description.path.name)
    maps = block_maps(Decoder(spec, replace(weights, device=torch.device("meta"))))
    pieces = pieces_of(spec, family_named(spec.family), source.tensors)
    plain = {piece.target for piece in pieces if not all(source.has_blocks(name) for name, _ in piece.sources)}
    return sum(packed_bytes(*one.weight.shape) for target, one in maps.items() if target not in plain)


def _source(description: ModelDescription) -> TensorSource:
    if description.gguf is None:
        return SafetensorsDirectory(description.path)
    return GgufWeights(description.gguf, description.config, description.path.name)


def load_generation_config(description: ModelDescription, tokenizer: Tokenizer) -> GenerationConfig:
    """What the model's authors sample with. An end id that the model does not have is refused."""
    path, vocab_size = description.path, description.spec.vocab_size
    generation = read_generation_config(path) if path.is_dir() else GenerationConfig()
    check_end_ids(generation.eos_ids, vocab_size, generation.eos_file)
    check_end_ids(tokenizer.special.eos_ids, vocab_size, "tokenizer_config.json" if path.is_dir() else path.name)
    return generation
