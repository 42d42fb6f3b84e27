"""What a layer launches, op by op: on a GPU each of these is one kernel, and nothing stands between them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from playhead.attention.base import LayerAttention, Phase
from playhead.attention.triton import TritonBackend
from playhead.graph.breaks import InlineScope
from playhead.graph.op_facts import UNINITIALISED, op_name
from playhead.graph.slots import FillContext
from playhead.kv.plan import KVLimits
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.step.build import build_worker
from playhead.step.forward import ModelStep
from playhead.step.worker import WorkerConfig
from tests.unit.models.test_decoder_capture import SIZES

NUM_TOKENS = 2
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
ATTENTION = ["mm", "write_and_decode", "mm"]
MLP = ["mm", "gated_activation", "mm"]
LAYERS = {
    "gemma3_text": [*ATTENTION, "add_rms_norm", *MLP, "add_rms_norm"],
    "llama": [*ATTENTION, "add_rms_norm", *MLP, "add_rms_norm"],
    "glm4": ["addmm", *ATTENTION[1:], "add_rms_norm", *MLP, "add_rms_norm"],
    # The factor on what is added to the residual is the matmul's own.
    "granite": [*ATTENTION[:-1], "addmm", "add_rms_norm", *MLP[:-1], "addmm", "add_rms_norm"],
    "olmo3": [*ATTENTION, "norm_add_", *MLP, "norm_add_"],
    "exaone4": [*ATTENTION, "norm_add_", *MLP, "norm_add_"],
    "cohere2": [*ATTENTION, "mm", "gated_activation", "addmm_", "add_rms_norm"],
}
FIRST_NORM = {"olmo3": [], "exaone4": []}
TRANSLATION = {"llama": [], "glm4": [], "granite": []}


class OpNames(TorchDispatchMode):
    """The ops that do something: no views, no empty memory."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_view = any(arg.alias_info is not None and not arg.alias_info.is_write for arg in func._schema.arguments)
        if not is_view and not op_name(func).startswith(UNINITIALISED):
            self.names.append(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


def recorded_ops(model_type: str) -> list[str]:
    """One decode step of a two-layer model with the GPU's backend."""
    sizes = {**SIZES, **HEADS, "num_hidden_layers": 2, "sliding_window": 4, "head_dim": 8}
    spec = spec_from_config({"model_type": model_type, "residual_multiplier": 0.5, **sizes})
    decoder = dummy_decoder(spec, dtype=torch.float32, device=torch.device("cpu"))
    limits = KVLimits(max_context_tokens=32, max_running=NUM_TOKENS, chunk_tokens=8)
    worker = build_worker(decoder, WorkerConfig(kv_memory_bytes=1 << 20, limits=limits))
    ctx = FillContext(raw_bs=NUM_TOKENS, padded_bs=NUM_TOKENS, raw_num_tokens=NUM_TOKENS, padded_num_tokens=NUM_TOKENS)
    # Without memory no body runs, so what is logged is what every device is asked for; a CPU would log its own ops.
    decoder.to("meta")
    layers = tuple(map(without_memory, worker.model.layers))
    inputs = {name: slot.to("meta") for name, slot in worker.decode.registry.extract_buffer(ctx).items()}
    table_RP = worker.tables.table_RP.to("meta")
    step = ModelStep(decoder, worker.pool, layers, TritonBackend(table_RP, layers, max_bs=NUM_TOKENS))

    def decode_layers(inputs, scope):
        return step.hidden(inputs, scope, Phase.DECODE)

    plan = step.spec("bs", decode_layers, worker.decode.registry.null_batch).plan({}, ctx, inputs)
    log = OpNames()
    with log, torch.no_grad():
        step.decoder.head(decode_layers(inputs, InlineScope(plan)))
    return log.names


def without_memory(layer: LayerAttention) -> LayerAttention:
    return replace(layer, k_cache_NSKD=layer.k_cache_NSKD.to("meta"), v_cache_NSKE=layer.v_cache_NSKE.to("meta"))


@pytest.mark.parametrize("model_type", LAYERS)
def test_a_layer_is_its_matmuls_and_what_stands_between_them(model_type):
    """The last layer's last op is the final norm, so it is one that gives a normed sum whatever the placement.

    Models with windows begin with one translation, however many window layers they have.
    """
    layer = LAYERS[model_type]
    last = [*layer[:-1], "add_rms_norm"]
    head = ["mm", "mul_"] if model_type == "cohere2" else ["mm"]
    first = [*TRANSLATION.get(model_type, ["translate"]), "embed", *FIRST_NORM.get(model_type, ["rms_norm"])]
    assert recorded_ops(model_type) == [*first, *layer, *last, *head]
