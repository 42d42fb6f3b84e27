"""The decoder's layers on a tape: recorded once, replayed on new inputs, equal to eager bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch

from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.breakable import BreakableCapture
from playhead.graph.breaks import BreakOp, InlineScope, Scope, TensorSpec
from playhead.graph.bridges import BridgePool
from playhead.layers.attention import turned_qkv
from playhead.layers.spec import AttentionSpec
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.decoder import Decoder
from playhead.models.dense_context import dense_attention, visible
from tests.unit.models.tiny import CONFIG

NUM_TOKENS = 7
SIZES = {key: CONFIG[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
EXPERTS = {"model_type": "gpt_oss", **SIZES, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
CONFIGS = {
    "gemma3": CONFIG,
    "gpt_oss": {**EXPERTS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3},
    "cohere2": {
        "model_type": "cohere2",
        **SIZES,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "sliding_window": 3,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedAttention:
    """Attention among the tokens of one step, each with its sequence's number: nothing is kept between steps."""

    decoder: Decoder
    positions_T: torch.Tensor
    sequence_T: torch.Tensor

    def run(self, inputs, outputs, layer_index):
        spec = self.decoder.spec.layers[layer_index].attention
        turned = turned_qkv(inputs[0], spec, self.decoder.transforms[layer_index], self.positions_T)
        together_TT = self.sequence_T[:, None] == self.sequence_T
        sees_TT = together_TT & visible(self.positions_T, self.positions_T, spec.window)
        out_THE = dense_attention(*turned, sees_TT, spec=spec, sinks_H=self.decoder.sinks[layer_index])
        outputs[0].copy_(out_THE.flatten(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeContext:
    """How a step reaches attention through a scope: the shape the engine's own context has."""

    spec: AttentionSpec
    attention: BreakOp
    scope: Scope

    def room(self, layer_index, h_TM):
        spec = TensorSpec(shape=(h_TM.shape[0], sum(self.spec.qkv_sizes)), dtype=h_TM.dtype)
        return self.scope.bridge(self.attention, 0, spec, h_TM)

    def live_rows(self):
        return None

    def rows_read(self):
        return None

    def parts_left(self, layer_index):
        return 0

    def attend(self, layer_index, qkv_TX):
        return self.scope.call(self.attention, qkv_TX, site=layer_index)[0]


@pytest.fixture(params=CONFIGS, scope="module")
def decoder(request):
    made = dummy_decoder(spec_from_config(CONFIGS[request.param]), dtype=torch.float32, device=torch.device("cpu"))
    made.reach(64)
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        parameter.normal_(0.0, 0.3, generator=generator)
    return made


def inputs_of(seed):
    generator = torch.Generator().manual_seed(seed)
    ids_T = torch.randint(0, CONFIG["vocab_size"], (NUM_TOKENS,), generator=generator)
    lengths = [NUM_TOKENS] if seed else [3, NUM_TOKENS - 3]
    positions = torch.cat([torch.arange(length) for length in lengths]) + 5 * seed
    sequence = torch.cat([torch.full((length,), i) for i, length in enumerate(lengths)])
    return {"ids": ids_T, "positions": positions, "sequence": sequence}


@cache
def attention_of(decoder):
    width = decoder.spec.layers[0].attention.output_size
    return BreakOp(
        "playhead_tests::packed_attention",
        run=lambda live, inputs, outputs, site: live.run(inputs, outputs, site),
        outputs=lambda inputs: [TensorSpec(shape=(inputs[0].shape[0], width), dtype=inputs[0].dtype)],
    )


def forward(decoder, inputs, scope):
    ctx = ScopeContext(spec=decoder.spec.layers[0].attention, attention=attention_of(decoder), scope=scope)
    return decoder.head(decoder.layers(decoder.embed(inputs["ids"]), ctx))


def live_of(decoder, inputs):
    return PackedAttention(decoder=decoder, positions_T=inputs["positions"], sequence_T=inputs["sequence"])


def test_a_full_recording_replays_as_eager_computes(decoder):
    slots = inputs_of(0)
    live = live_of(decoder, slots)
    recording, logits = record(TapeBackend(), lambda: forward(decoder, slots, InlineScope(live)))
    for seed in (1, 2, 0):
        fresh = inputs_of(seed)
        for name, slot in slots.items():
            slot.copy_(fresh[name])
        recording.replay()
        assert torch.equal(logits, forward(decoder, fresh, InlineScope(live_of(decoder, fresh))))


def test_a_recording_broken_at_attention_replays_as_eager_computes(decoder):
    slots = inputs_of(0)
    capture = BreakableCapture(BridgePool(max_rows=NUM_TOKENS, device="cpu"))
    step = capture.capture(
        TapeBackend(), lambda inputs, scope: forward(decoder, inputs, scope), slots, live_of(decoder, slots)
    )
    for seed in (1, 2, 0):
        fresh = inputs_of(seed)
        for name, slot in slots.items():
            slot.copy_(fresh[name])
        step.replay(live_of(decoder, fresh))
        assert torch.equal(step.output, forward(decoder, fresh, InlineScope(live_of(decoder, fresh))))
