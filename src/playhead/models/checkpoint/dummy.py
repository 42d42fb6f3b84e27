"""Random weights of the real shapes, made where they are needed: for speed work and for tests without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from playhead.layers.linear import PlainWeights
from playhead.layers.parallel import weight_format
from playhead.layers.shard import WHOLE, Shard
from playhead.layers.spec import NormKind
from playhead.models.build import family_named
from playhead.models.checkpoint.fill import targets_of
from playhead.models.checkpoint.pieces import Piece, pieces_of
from playhead.models.checkpoint.sources import Part
from playhead.models.decoder import Decoder
from playhead.models.spec import ModelSpec

# Small enough that sixty layers of residuals stay in float16, large enough that every layer shows in the logits.
STD = 0.02


def dummy_decoder(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device, seed: int = 0, shard: Shard = WHOLE
) -> Decoder:
    """A decoder with the same weights for the same seed, dtype and kind of device, and finite logits.

    Ranks have their parts of those weights: each makes all numbers of a parameter, and keeps its own.
    """
    weights = weight_format(spec.stored_as, dtype=dtype, device=device, shard=shard)
    decoder = Decoder(spec, weights)
    generator = torch.Generator(device=device).manual_seed(seed)
    rms1p = spec.final_norm.kind is NormKind.RMS1P
    whole = Whole(spec, decoder)
    for name, values in whole.parameters():
        if "norm" in name:
            values.fill_(0.0 if rms1p else 1.0)
        else:
            values.normal_(0.0, STD, generator=generator)
        whole.share_out(name, values)
    del whole, values  # what is stored anew below must not be kept by them
    weights.finish_loading(decoder)
    return decoder


class Whole:
    """The parameters of a decoder on one rank, of which this decoder may have parts. They are there one at a time."""

    def __init__(self, spec: ModelSpec, decoder: Decoder) -> None:
        self._spec, self._decoder, self._targets = spec, decoder, dict[Piece, torch.Tensor]()
        if decoder.shard.num_ranks > 1:
            pieces = pieces_of(spec, family_named(spec.family), (), decoder.shard)
            self._targets = targets_of(decoder, pieces, decoder.shard)

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Their names and memory: of a decoder on one rank its own."""
        if not self._targets:
            yield from self._decoder.named_parameters()
            return
        no_memory = PlainWeights(dtype=self._decoder.dtype, device=torch.device("meta"))
        for name, parameter in Decoder(self._spec, no_memory).named_parameters():
            yield name, torch.empty_like(parameter, device=self._decoder.embedding_VM.device)

    def share_out(self, name: str, values: torch.Tensor) -> None:
        """Keep this rank's part of a parameter."""
        for piece, target in self._targets.items():
            if piece.target == name:
                rows = values if piece.rows is None else values.narrow(0, *piece.rows)
                first, end = piece.span(self._decoder.shard)
                part = Part(axis=piece.split_axis or 0, start=first, stop=end)
                target.copy_(rows if piece.split_axis is None else rows[part.index])
