"""The softmax of attention in plain torch, for the references.

Shapes: any leading dims *, J keys.
"""

from __future__ import annotations

import torch


def attention_weights(
    score_J: torch.Tensor, seen_J: torch.Tensor, softcap: float | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Weights of scaled scores [*, J] over the keys that are seen.

    `sinks` [*] (leading dims broadcast) is a logit that takes weight and has no value, so weights may sum to less
    than 1.
    """
    if softcap is not None:
        score_J = softcap * torch.tanh(score_J / softcap)
    return with_sinks(score_J.masked_fill(~seen_J, float("-inf")), sinks)


def with_sinks(score_J: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax of scores that are -inf where nothing is seen, with the sinks among them."""
    if sinks is None:
        return torch.softmax(score_J, dim=-1)
    sink_1 = sinks.float()[..., None].expand(*score_J.shape[:-1], 1)
    return torch.softmax(torch.cat((score_J, sink_1), dim=-1), dim=-1)[..., :-1]
