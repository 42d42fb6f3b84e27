"""Who chooses a step's tokens: the only rank there is. `shared_choice.py` has the choice of several.

Shapes: N requests of a step, M hidden, V vocabulary.
"""

from __future__ import annotations

import torch

from playhead.graph.spec import OwnedMemory
from playhead.models.decoder import Decoder
from playhead.sampling_params import GREEDY_BELOW, SamplingKind
from playhead.step.sampling import SampledTokens, room_for, sample, without_reports
from playhead.step.scores import SamplerInputs


class Choice:
    """The choice of one rank, which has all logits."""

    owned: tuple[OwnedMemory, ...] = ()

    def sample(
        self,
        logits_NV: torch.Tensor,
        inputs: SamplerInputs,
        kind: SamplingKind,
        room: SampledTokens | None = None,
    ) -> SampledTokens:
        """One token per row, counted where the next ones depend on it. `room` may be where they go (`sample`)."""
        sampled = sample(logits_NV, inputs, kind, room)
        if kind is SamplingKind.EVERYTHING:
            assert inputs.tables is not None, "a step of every kind has tables"
            inputs.tables.take_(inputs.rows_N, sampled.tokens_N)
        return sampled

    def sample_at_once(
        self,
        decoder: Decoder,
        h_NM: torch.Tensor,
        inputs: SamplerInputs,
        kind: SamplingKind,
        room: SampledTokens | None = None,
    ) -> SampledTokens | None:
        """The same of rows that came out of the decoder's layers, without logits; None where that needs logits."""
        if kind > SamplingKind.DRAWN or inputs.allowed_NW is not None:
            return None
        sampled, numbers = room or without_reports(room_for(h_NM)), inputs.numbers
        of_rows = (numbers["temperature"], numbers["seed"], numbers["num_generated"])
        scratch, draws = (inputs.best_R, inputs.arrivals_R), kind is SamplingKind.DRAWN
        is_chosen = decoder.choose(h_NM, *of_rows, sampled.tokens_N, *scratch, GREEDY_BELOW, draws)
        return sampled if is_chosen else None

    def all_logits(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """The logits of all ids."""
        return logits_NV
