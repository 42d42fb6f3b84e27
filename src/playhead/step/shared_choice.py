"""The choice of tokens by ranks that have a part of the vocabulary each.

Ranks choose plain tokens together: each among its own ids, and the largest key of all ranks decides. Filters, masks,
penalties and logprobs look at all ids of a row: the first rank gets all logits, chooses, and tells the others.

Shapes: N requests of a step, R rows of running requests, V vocabulary.
"""

from __future__ import annotations

import torch

from playhead.graph.spec import OwnedMemory
from playhead.kernels.collectives import first_rank_tells_, gather_columns, largest_over_ranks_
from playhead.kernels.vocabulary import choose_keys, tokens_of
from playhead.layers.shard import Shard
from playhead.models.decoder import Decoder
from playhead.sampling_params import GREEDY_BELOW, SamplingKind
from playhead.step.choice import Choice
from playhead.step.sampling import SampledTokens, without_reports
from playhead.step.scores import SamplerInputs


class SharedChoice(Choice):
    """The choice of several ranks. `first_id` is the first of this rank's ids."""

    def __init__(self, decoder: Decoder, shard: Shard, max_running: int) -> None:
        device, vocab_size = decoder.embedding_VM.device, decoder.spec.vocab_size
        self._is_first, self._first_id = shard.rank == 0, decoder.vocabulary.first_id
        self._is_alone = shard.num_ranks == 1
        self._share = shard.share(vocab_size)
        self._keys_R = torch.zeros(max_running, dtype=torch.int64, device=device)
        self._logits_RV = torch.zeros((max_running, vocab_size), dtype=decoder.logits_dtype, device=device)
        memory = (self._keys_R, self._logits_RV)
        self.owned = (OwnedMemory(name="ranks' choice", tensors=memory, writable=True),)

    def sample(
        self,
        logits_NV: torch.Tensor,
        inputs: SamplerInputs,
        kind: SamplingKind,
        room: SampledTokens | None = None,
    ) -> SampledTokens:
        num_rows, numbers = len(logits_NV), inputs.numbers
        if kind <= SamplingKind.DRAWN and inputs.allowed_NW is None:
            keys_N, draws = self._keys_R[:num_rows], kind is SamplingKind.DRAWN
            of_rows = (numbers["temperature"], numbers["seed"], numbers["num_generated"])
            scratch = (inputs.parts_RX, inputs.arrivals_R)
            choose_keys(logits_NV, *of_rows, keys_N, *scratch, self._first_id, GREEDY_BELOW, draws)
            largest_over_ranks_(keys_N)
            return without_reports(tokens_of(keys_N))
        all_NV = self.all_logits(logits_NV)
        if self._is_first:
            sampled = super().sample(all_NV, inputs, kind, room)
        else:
            sampled = without_reports(torch.zeros(num_rows, dtype=torch.int64, device=all_NV.device))
        first_rank_tells_(sampled.tokens_N)
        return sampled

    def sample_at_once(
        self,
        decoder: Decoder,
        h_NM: torch.Tensor,
        inputs: SamplerInputs,
        kind: SamplingKind,
        room: SampledTokens | None = None,
    ) -> SampledTokens | None:
        # The keys of several ranks are of logits. A rank without others needs no keys.
        return super().sample_at_once(decoder, h_NM, inputs, kind, room) if self._is_alone else None

    def all_logits(self, logits_NV: torch.Tensor) -> torch.Tensor:
        all_NV = self._logits_RV[: len(logits_NV)]
        gather_columns(all_NV, logits_NV, self._share, 1)
        return all_NV


def choice_of(decoder: Decoder, max_running: int) -> Choice:
    """The choice that fits a decoder: alone, or with other ranks."""
    shard = decoder.shard
    return SharedChoice(decoder, shard, max_running) if shard.is_grouped else Choice()
