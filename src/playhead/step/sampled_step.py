"""From token ids to tokens: the model's steps with sampling behind them, and what the next step reads.

A decode graph samples and advances: it leaves its slots as the next step's inputs, so a batch that just goes on needs
nothing from the host. A step over tokens samples after its replay, for each request's last token.

Shapes: N requests of a step, T tokens, M hidden, V vocabulary, R rows of running requests, P pages per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from playhead.attention.base import Phase
from playhead.graph.breaks import Scope
from playhead.graph.capture import Inputs
from playhead.graph.runner import OwnedMemory, StepSpec
from playhead.graph.slots import Batch, FillContext, GraphSlot, host_vector
from playhead.kernels.tokens import advance, newest_ids
from playhead.step.forward import ModelStep
from playhead.step.inputs import ROWS
from playhead.step.sampler_rows import GENERATED_SLOT, SamplerRows
from playhead.step.sampling import VARIANTS, SampledTokens, SamplerNeeds, sample

LAST_TOKEN_SLOT = "last_token_index"
SAMPLING_ROWS_SLOT = "sampling_rows"

Placeholder = Callable[[FillContext], Batch]


class StepOutput(NamedTuple):
    """Logits of each request's last token, and what was drawn from them. Flat: a graph's outputs are tensors."""

    logits_NV: torch.Tensor
    tokens_N: torch.Tensor
    logprob_ids_NL: torch.Tensor
    logprobs_NL: torch.Tensor
    ranks_NL: torch.Tensor

    @property
    def sampled(self) -> SampledTokens:
        return SampledTokens(*self[1:])


def token_step_slots() -> tuple[GraphSlot, ...]:
    """What sampling after a step over tokens needs: each request's last token, and its row if it gets a new one.

    A request with more of its prompt to come shows the sink's row: what is drawn for it goes nowhere.
    """
    return (
        host_vector(LAST_TOKEN_SLOT, "bs", torch.int32),
        host_vector(SAMPLING_ROWS_SLOT, "bs", ROWS.dtype, index=ROWS),
    )


class SampledStep:
    """A model's steps, and each row's newest token, which steps hand on without the host."""

    def __init__(self, model: ModelStep, sampler: SamplerRows, page_table_RP: torch.Tensor) -> None:
        self.model, self.sampler = model, sampler
        self._page_table_RP = page_table_RP
        self._page_size = model.layers[0].page_size
        self.newest_R = torch.zeros(page_table_RP.shape[0], dtype=torch.int32, device=page_table_RP.device)
        # One for all steps of all sizes: with their own, 34 graphs of Gemma-3-1B kept 2.9 GB of them.
        max_running, vocab_size = page_table_RP.shape[0] - 1, model.decoder.spec.vocab_size
        self._logits_RV = torch.zeros(
            (max_running, vocab_size), dtype=model.decoder.logits_dtype, device=page_table_RP.device
        )

    def decode_spec(self, needs: SamplerNeeds, placeholder: Placeholder) -> StepSpec:
        """Embedding to tokens, and the inputs of the next step."""

        def decode(inputs: Inputs, scope: Scope) -> StepOutput:
            rows_N = inputs["req_pool_indices"]
            logits_NV = self._head(self._hidden(inputs, scope, Phase.DECODE))
            sampled = self._sample(logits_NV, inputs, rows_N, needs)
            advance(
                sampled.tokens_N,
                inputs["input_ids"],
                inputs["positions"],
                inputs["seq_lens"],
                inputs["out_cache_loc"],
                inputs[GENERATED_SLOT],
                rows_N,
                inputs["num_token_non_padded"],
                self.newest_R,
                self._page_table_RP,
                self._page_size,
            )
            return StepOutput(logits_NV, *sampled)

        spec = self.model.spec("bs", decode, placeholder)
        logits = OwnedMemory(name="logits", tensors=(self._logits_RV,), writable=True)
        owned = (*spec.owned, self._newest(writable=True), logits, *self.sampler.owned)
        return replace(spec, name=f"decode, {VARIANTS[needs]}", owned=owned)

    def token_spec(self, placeholder: Placeholder, *, has_breaks: bool) -> StepSpec:
        """The layer stack over tokens; `finish` does the rest."""

        def layer_stack(inputs: Inputs, scope: Scope) -> torch.Tensor:
            return self._hidden(inputs, scope, Phase.EXTEND)

        spec = self.model.spec("tokens", layer_stack, placeholder, has_breaks=has_breaks)
        return replace(spec, owned=(*spec.owned, self._newest(writable=False)))

    @torch.no_grad()
    def finish(self, h_TM: torch.Tensor, inputs: Inputs, needs: SamplerNeeds) -> StepOutput:
        """Logits and tokens of the requests of a step over tokens, from its slots."""
        logits_NV = self._head(h_TM.index_select(0, inputs[LAST_TOKEN_SLOT]))
        rows_N = inputs[SAMPLING_ROWS_SLOT]
        sampled = self._sample(logits_NV, inputs, rows_N, needs)
        self.newest_R[rows_N] = sampled.tokens_N.to(torch.int32)
        return StepOutput(logits_NV, *sampled)

    def _head(self, h_NM: torch.Tensor) -> torch.Tensor:
        return self.model.decoder.head(h_NM, self._logits_RV[: h_NM.shape[0]])

    def _hidden(self, inputs: Inputs, scope: Scope, phase: Phase) -> torch.Tensor:
        ids_T = newest_ids(inputs["input_ids"], self.newest_R)
        return self.model.hidden({**inputs, "input_ids": ids_T}, scope, phase)

    def _sample(
        self, logits_NV: torch.Tensor, inputs: Inputs, rows_N: torch.Tensor, needs: SamplerNeeds
    ) -> SampledTokens:
        sampler_inputs = self.sampler.inputs(inputs, rows_N)
        sampled = sample(logits_NV, sampler_inputs, needs)
        if needs.penalties:
            assert sampler_inputs.tables is not None, "rows with penalties have tables"
            sampler_inputs.tables.count_(rows_N, sampled.tokens_N)
        return sampled

    def _newest(self, *, writable: bool) -> OwnedMemory:
        return OwnedMemory(name="newest tokens", tensors=(self.newest_R,), writable=writable, sink_rows=1)
