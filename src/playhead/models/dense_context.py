"""Attention in plain torch over whole sequences: the truth the fast ways are compared with.

Shapes: T tokens of this step, M hidden, X = all heads of q, k and v, Y = all heads of the output, Q tokens of one
sequence in it, S keys of one sequence, H heads, K kv heads, G = H / K heads per kv head, D head dim of q and k, E head
dim of v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from playhead.layers.attention import turned_qkv
from playhead.layers.spec import AttentionSpec
from playhead.models.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSequence:
    """Keys and values of one sequence, per layer, from its first token on. Nothing is ever dropped."""

    keys: dict[int, torch.Tensor] = field(default_factory=dict)
    values: dict[int, torch.Tensor] = field(default_factory=dict)

    def extend(self, layer_index: int, k_QKD: torch.Tensor, v_QKE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of the layer, these included."""
        if layer_index in self.keys:
            k_QKD = torch.cat((self.keys[layer_index], k_QKD))
            v_QKE = torch.cat((self.values[layer_index], v_QKE))
        self.keys[layer_index], self.values[layer_index] = k_QKD, v_QKE
        return k_QKD, v_QKE

    @property
    def num_tokens(self) -> int:
        return len(self.keys[0]) if self.keys else 0


class DenseContext:
    """One step over packed sequences. `num_new[i]` of the tokens belong to `sequences[i]`, in order."""

    def __init__(self, decoder: Decoder, sequences: Sequence[DenseSequence], num_new: Sequence[int]) -> None:
        self._specs = tuple(layer.attention for layer in decoder.spec.layers)
        # In powers of two, so that a sequence that grows token by token does not make a table for every one.
        longest = max(sequence.num_tokens + new for sequence, new in zip(sequences, num_new, strict=True))
        decoder.reach(min(decoder.spec.max_context_tokens, 1 << longest.bit_length()))
        self._sinks, self._transforms = decoder.sinks, decoder.transforms
        self._sequences, self._num_new = tuple(sequences), list(num_new)
        starts = [sequence.num_tokens for sequence in sequences]
        positions = [torch.arange(start, start + new) for start, new in zip(starts, num_new, strict=True)]
        self.positions_T = torch.cat(positions).to(decoder.embedding_VM.device)

    def live_rows(self) -> None:
        """All rows are tokens."""

    def rows_read(self) -> None:
        """All rows are read."""

    def room(self, layer_index: int, h_TM: torch.Tensor) -> torch.Tensor:
        return h_TM.new_empty(h_TM.shape[0], sum(self._specs[layer_index].qkv_sizes))

    def parts_left(self, layer_index: int) -> int:
        return 0

    def attend(self, layer_index: int, qkv_TX: torch.Tensor) -> torch.Tensor:
        spec, sinks_H = self._specs[layer_index], self._sinks[layer_index]
        q_THD, k_TKD, v_TKE = turned_qkv(qkv_TX, spec, self._transforms[layer_index], self.positions_T)
        outputs = []
        packed = (torch.split(x, self._num_new) for x in (q_THD, k_TKD, v_TKE, self.positions_T))
        for sequence, q_QHD, k_QKD, v_QKE, positions_Q in zip(self._sequences, *packed, strict=True):
            k_SKD, v_SKE = sequence.extend(layer_index, k_QKD, v_QKE)
            sees_QS = visible(positions_Q, torch.arange(len(k_SKD), device=q_QHD.device), spec.window)
            outputs.append(dense_attention(q_QHD, k_SKD, v_SKE, sees_QS, spec=spec, sinks_H=sinks_H))
        return torch.cat(outputs).flatten(1)


def visible(query_positions_Q: torch.Tensor, key_positions_S: torch.Tensor, window: int | None) -> torch.Tensor:
    """Which keys a query sees: itself and the `window - 1` before it, or all before it."""
    distance_QS = query_positions_Q[:, None] - key_positions_S
    sees_QS = distance_QS >= 0
    return sees_QS if window is None else sees_QS & (distance_QS < window)


def dense_attention(
    q_QHD: torch.Tensor,
    k_SKD: torch.Tensor,
    v_SKE: torch.Tensor,
    sees_QS: torch.Tensor,
    *,
    spec: AttentionSpec,
    sinks_H: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax attention in float32. A sink is one more logit that takes weight and gives no value."""
    group = spec.num_heads // spec.num_kv_heads
    k_HSD = k_SKD.transpose(0, 1).repeat_interleave(group, dim=0).float()
    v_HSE = v_SKE.transpose(0, 1).repeat_interleave(group, dim=0).float()
    logits_HQS = q_QHD.transpose(0, 1).float() @ k_HSD.mT * spec.scale
    if spec.softcap is not None:
        logits_HQS = torch.tanh(logits_HQS / spec.softcap) * spec.softcap
    logits_HQS = logits_HQS.masked_fill(~sees_QS, float("-inf"))
    if sinks_H is not None:
        sinks_HQ1 = sinks_H.float()[:, None, None].expand(-1, logits_HQS.shape[1], 1)
        weights_HQS = torch.softmax(torch.cat((logits_HQS, sinks_HQ1), dim=-1), dim=-1)[..., :-1]
    else:
        weights_HQS = torch.softmax(logits_HQS, dim=-1)
    return (weights_HQS @ v_HSE).transpose(0, 1).to(q_QHD.dtype)
