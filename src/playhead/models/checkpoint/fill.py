"""Filling a decoder from a source: everything is checked first, then read one tensor at a time.

Shapes: X experts, I rows of an expert's gate and up together; further dims follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from playhead.errors import CheckpointError, some_of
from playhead.layers.blocks import BlockLinear, Blocks, BlockWeights
from playhead.layers.parallel import weight_format
from playhead.layers.shard import WHOLE, Shard
from playhead.models.build import family_named
from playhead.models.checkpoint.mxfp4 import dequantise_mxfp4
from playhead.models.checkpoint.pieces import Piece, embedding_name, head_name, is_ignorable, pieces_of
from playhead.models.checkpoint.sources import TensorSource
from playhead.models.decoder import Decoder
from playhead.models.family import Family
from playhead.models.spec import ModelSpec

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a load is, in bytes of the checkpoint."""

    num_bytes: int
    total_bytes: int


OnProgress = Callable[[LoadProgress], None]


def load_decoder(
    spec: ModelSpec,
    source: TensorSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    shard: Shard = WHOLE,
    on_progress: OnProgress | None = None,
) -> Decoder:
    """A decoder with the source's weights, or a `CheckpointError` before any of its memory is taken.

    Of a decoder that ranks share, what this rank has is read, and nothing else.
    """
    pieces = check_tensors(spec, source, shard)
    family, configured = family_named(spec.family), spec
    spec = as_stored(spec, family, source)
    if spec != configured:
        pieces = pieces_of(spec, family, source.tensors, shard)
    weights = weight_format(spec.stored_as, dtype=dtype, device=device, shard=shard)
    decoder = Decoder(spec, weights)
    keeps_blocks = isinstance(weights, BlockWeights) and weights.keeps_blocks
    filling = Filling(source=source, shard=shard, maps=block_maps(decoder) if keeps_blocks else {})
    _fill_all(targets_of(decoder, pieces, shard), filling, on_progress)
    weights.finish_loading(decoder)
    return decoder


def as_stored(spec: ModelSpec, family: Family, source: TensorSource) -> ModelSpec:
    """The spec, untied where the checkpoint has a head that differs from its embedding: as transformers, files win.

    Old exports of tied models carry the embedding a second time, so the head's presence alone says nothing.
    """
    embedding, head = embedding_name(family, source.tensors), head_name(family, source.tensors)
    if not spec.is_tied or not {embedding, head} <= source.tensors.keys():
        return spec
    if source.tensors[embedding] == source.tensors[head] and torch.equal(source.read(embedding), source.read(head)):
        return spec
    LOG.warning("%s: %s differs from %s although the config ties them; both are used", source.label, head, embedding)
    return replace(spec, is_tied=False)


def check_tensors(spec: ModelSpec, source: TensorSource, shard: Shard = WHOLE) -> list[Piece]:
    """The decoder's pieces, each with its tensors in the source. Headers are enough: no tensor is read.

    Otherwise one error lists every tensor that is missing, unexpected, or of another shape or type.
    """
    family = family_named(spec.family)
    pieces = pieces_of(spec, family, source.tensors, shard)
    wanted = {name: (shape, piece.is_mxfp4) for piece in pieces for name, shape in piece.sources}
    found = source.tensors
    if spec.is_tied:  # a head beside the embedding is the embedding once more, or is used in its place
        vocab_shape = (spec.vocab_size, spec.hidden_size)
        wanted |= {name: (vocab_shape, False) for name in family.head_names if name in found}
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted and not is_ignorable(name, family)]
    wrong = []
    for name, (shape, is_mxfp4) in wanted.items():
        if name not in found:
            continue
        info = found[name]
        if info.shape != shape:
            wrong.append(f"{name} is {list(info.shape)}, not {list(shape)}")
        elif is_mxfp4 and info.dtype != torch.uint8:
            wrong.append(f"{name} is {info.dtype}, not torch.uint8")
        elif not is_mxfp4 and (not info.dtype.is_floating_point or info.dtype.itemsize < 2):
            wrong.append(f"{name} is {info.dtype}, not a float of 16 bits or more")
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape or type": wrong}
    if problems := [f"{len(names)} {kind}: {some_of(names)}" for kind, names in kinds.items() if names]:
        raise CheckpointError(
            source.label,
            "; ".join(problems),
            f"the {len(wanted)} tensors of a {spec.family} decoder as its config describes it",
            "Config and weights must come from the same checkpoint; download both again.",
        )
    return pieces


def block_maps(decoder: Decoder) -> dict[str, BlockLinear]:
    """The maps that may keep blocks, by the names of their matrices. A tied head's matrix is the embedding."""
    names = {id(parameter): name for name, parameter in decoder.named_parameters()}
    return {names[id(module.weight)]: module for module in decoder.modules() if isinstance(module, BlockLinear)}


def targets_of(decoder: Decoder, pieces: Sequence[Piece], shard: Shard) -> dict[Piece, torch.Tensor]:
    """Where each piece goes. A rank's rows of a parameter lie one after the other, in the order of the pieces.

    A rank may lack a parameter: a bias that is added to a sum over ranks is the first rank's alone.
    """
    parameters = dict(decoder.named_parameters())
    targets: dict[Piece, torch.Tensor] = {}
    first_rows: dict[str, int] = {}
    for piece in pieces:
        if piece.target not in parameters:
            assert shard.num_ranks > 1, f"{piece.target}: a decoder on one rank has all parameters"
            continue
        targets[piece] = parameters[piece.target]
        if piece.rows is not None:
            first, end = piece.span(shard) if piece.split_axis == 0 else (0, piece.rows[1])
            first_row = first_rows.get(piece.target, 0)
            targets[piece] = targets[piece].narrow(0, first_row, end - first)
            first_rows[piece.target] = first_row + end - first
    return targets


def _bytes_of(piece: Piece, source: TensorSource) -> int:
    """How much of the checkpoint a piece reads. Three pieces may share one fused tensor."""
    num_bytes = sum(source.tensors[name].num_bytes for name, _ in piece.sources)
    if piece.is_fused and piece.rows is not None:
        return num_bytes * piece.rows[1] // piece.sources[0][1][0]
    return num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Where parameters are filled from: a rank's part of a source. `maps` are given the blocks of their matrices."""

    source: TensorSource
    shard: Shard
    maps: Mapping[str, BlockLinear]

    def fill(self, target: torch.Tensor, piece: Piece) -> Blocks | None:
        """Writes the piece. Gives its blocks if a map may keep them, so that no tensor is unpacked twice."""
        name, _ = piece.sources[0]
        blocks = self.source.blocks(name, piece.part(self.shard)) if piece.target in self.maps else None
        if blocks is None:
            _fill(target, piece, self.source, self.shard)
        else:
            blocks.write_to(target)
        return blocks

    def keep(self, target: str, parts: Sequence[Blocks | None]) -> None:
        """Give a map the blocks of its matrix, if every row has some."""
        found = [part for part in parts if part is not None]
        if target in self.maps and len(found) == len(parts) and (blocks := Blocks.joined(found)).can_be_packed:
            self.maps[target].keep(blocks)


def _fill_all(targets: Mapping[Piece, torch.Tensor], filling: Filling, on_progress: OnProgress | None) -> None:
    """Read every piece, those of one parameter after each other: parameters in the order that is fastest."""
    source, by_target = filling.source, dict[str, list[Piece]]()
    place = {name: i for i, name in enumerate(source.tensors)}
    for piece in sorted(targets, key=lambda piece: place[piece.sources[0][0]]):
        by_target.setdefault(piece.target, []).append(piece)
    total_bytes = sum(_bytes_of(piece, source) for piece in targets)
    num_bytes = 0
    for target, pieces in by_target.items():
        parts = []
        for piece in sorted(pieces, key=lambda piece: piece.rows or (0, 0)):
            parts.append(filling.fill(targets[piece], piece))
            num_bytes += _bytes_of(piece, source)
            if on_progress is not None:
                on_progress(LoadProgress(num_bytes=num_bytes, total_bytes=total_bytes))
        filling.keep(target, parts)


def _fill(target: torch.Tensor, piece: Piece, source: TensorSource, shard: Shard) -> None:
    stored = [source.read(name, piece.part(shard)) for name, _ in piece.sources]
    if not piece.is_mxfp4:
        _copy(target, stored[0].mT if piece.is_transposed else stored[0], piece)
        return
    # One expert at a time: all of a layer's experts in float32 would be eight times what the file holds.
    for expert in range(len(target)):
        blocks, scales = (tensor[expert : expert + 1].to(target.device) for tensor in stored)
        _copy(target[expert : expert + 1], dequantise_mxfp4(blocks, scales, target.dtype), piece)


def _copy(target_XI: torch.Tensor, values_XI: torch.Tensor, piece: Piece) -> None:
    """Of interleaved rows the even ones are the gate's and go first; odd rows are up's. Further dims follow along."""
    if not piece.is_interleaved:
        target_XI.copy_(values_XI)
        return
    size = target_XI.shape[1] // 2
    target_XI[:, :size].copy_(values_XI[:, 0::2])
    target_XI[:, size:].copy_(values_XI[:, 1::2])
