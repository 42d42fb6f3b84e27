"""Logprobs of prompt tokens, for the requests that want them.

Shapes: T tokens of a step, M hidden size.
"""

from __future__ import annotations

import torch

from playhead.step.forward import Forward
from playhead.step.inputs import StepRequests
from playhead.step.sampling import SampledTokens


def report_prompts(forward: Forward, requests: StepRequests, h_TM: torch.Tensor) -> SampledTokens | None:
    """The logprobs of the prompt tokens that follow a reported position.

    The step's graph gives the hidden states of all its tokens. Their logits are computed after it, as those of the
    last tokens are, so requests without `prompt_logprobs` run as they always do.
    """
    chunks = [(chunk, chunk.reported, stop) for chunk, stop in zip(requests.chunks, requests.tokens.stops, strict=True)]
    index = [stop - chunk.end + position for chunk, reported, stop in chunks for position in reported]
    if not index:
        return None
    tokens = [chunk.request.prompt[position + 1] for chunk, reported, _ in chunks for position in reported]
    index_T, tokens_T = (torch.tensor(numbers, dtype=torch.int64).to(h_TM.device) for numbers in (index, tokens))
    num_best = max(chunk.request.params.prompt_logprobs or 0 for chunk, reported, _ in chunks if reported)
    return forward.report_prompt(h_TM, index_T, tokens_T, num_best)
