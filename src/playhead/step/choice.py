"""Who chooses a step's tokens: the only rank there is. `shared_choice.py` has the choice of several.

Shapes: N requests of a step, V vocabulary.
"""

from __future__ import annotations

import torch

from playhead.graph.spec import OwnedMemory
from playhead.sampling_params import SamplingKind
from playhead.step.sampling import SampledTokens, sample
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

    def all_logits(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """The logits of all ids."""
        return logits_NV
