"""Logprobs of prompt tokens, for the requests that want them.

Shapes: T tokens of a step, M hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from playhead.step.forward import Forward
from playhead.step.inputs import StepRequests
from playhead.step.sampling import SampledTokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptReport:
    """The prompt tokens that follow a reported position, and the index of that position among the step's tokens."""

    index: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    num_best: int

    @classmethod
    def wanted(cls, requests: StepRequests) -> PromptReport | None:
        """What the requests of a step over tokens want; None if they want nothing."""
        planned, stops = requests.chunks, requests.tokens.stops
        if all(chunk.request.reads_prefixes for chunk in planned.newcomers):  # those want no report
            return None
        newcomers = zip(planned.newcomers, stops[planned.num_going_on :], strict=True)
        chunks = [(chunk, chunk.reported, stop) for chunk, stop in newcomers]
        index = [stop - chunk.end + position for chunk, reported, stop in chunks for position in reported]
        if not index:
            return None
        tokens = [chunk.request.prompt[position + 1] for chunk, reported, _ in chunks for position in reported]
        num_best = max(chunk.request.params.prompt_logprobs or 0 for chunk, reported, _ in chunks if reported)
        return cls(index=np.array(index, np.int64), tokens=np.array(tokens, np.int64), num_best=num_best)

    def compute(self, forward: Forward, h_TM: torch.Tensor) -> SampledTokens:
        """The logprobs of the tokens.

        The step has run over all rows (`Forward.whole_token_spec`). Logits are computed after it, as those of the last
        tokens are.
        """
        index_T, tokens_T = (torch.tensor(numbers).to(h_TM.device) for numbers in (self.index, self.tokens))
        return forward.report_prompt(h_TM, index_T, tokens_T, self.num_best)
