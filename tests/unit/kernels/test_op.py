"""Ops as torch sees them: schemas that tell the truth about writes, fakes that tell the truth about shapes."""

from __future__ import annotations

import pytest
import torch

from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from playhead.kernels.activation import gated_activation
from playhead.kernels.advance import newest_ids, newest_ids_into
from playhead.kernels.choose import choose_scratch, choose_tokens
from playhead.kernels.decode import decode
from playhead.kernels.decode_rows import decode_rows, key_rows_into
from playhead.kernels.embedding import embed, softcap_
from playhead.kernels.extend import extend
from playhead.kernels.norm import add_rms_norm, add_rms_norm_into, norm_add_, rms_norm, rms_norm_into
from playhead.kernels.rope import qk_rope_write
from playhead.kernels.translate import translate
from tests.unit.attention.scenes import SceneSpec, make_scene
from tests.unit.kernels.test_rope import random_call
from tests.unit.kernels.test_translate import random_call as translate_call


def decode_call():
    scene = make_scene(SceneSpec(seq_lens=(3,)), seed=0)
    layer, plan = scene.layer, scene.plan
    scratch = (torch.zeros(8), torch.zeros(2), torch.zeros(1, dtype=torch.int32))
    memory = (layer.k_cache_NSKD, layer.v_cache_NSKE, plan.page_table_RP, plan.rows_B, plan.seq_lens_B)
    return scene.q, torch.zeros(1, 1, 8), *memory, None, *scratch, 0.1, None, None, 1


def extend_call():
    scene = make_scene(SceneSpec(seq_lens=(3,), query_lens=(2,)), seed=0)
    layer, plan = scene.layer, scene.plan
    memory = (layer.k_cache_NSKD, layer.v_cache_NSKE, plan.page_table_RP, plan.rows_B, plan.seq_lens_B)
    return scene.q, torch.zeros(2, 1, 8), *memory, plan.query_starts_B, plan.query_lens_B, None, 0.1, None, None


def choose_call():
    ids = [torch.tensor([1, 2]) for _ in range(3)]
    return torch.randn(2, 8), torch.tensor([0.0, 1.0]), *ids, *choose_scratch(2, 8), 1e-5, True


def key_rows_call():
    table, rows = torch.tensor([[0, 0], [1, 2]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    lookup = (table, rows, torch.tensor([8], dtype=torch.int32), torch.tensor([11], dtype=torch.int32))
    found = (torch.zeros((1, 8), dtype=torch.int64), torch.zeros(1, 8), torch.zeros(1, dtype=torch.int64))
    return *found, *lookup, 4, 8


def decode_rows_call():
    q, caches = torch.randn(1, 2, 8), [torch.randn(9, 1, 1, 8) for _ in "kv"]
    lengths = torch.tensor([3], dtype=torch.int32)
    return q, torch.zeros(1, 2, 8), *caches, torch.tensor([[2, 4, 5]]), torch.zeros(1, 3), lengths, None, 0.1, None


CALLS = {
    rms_norm_into: lambda: (torch.zeros(2, 8), torch.randn(2, 8), torch.randn(8), 1e-6, True),
    add_rms_norm_into: lambda: (
        torch.zeros(2, 8),
        torch.randn(2, 8),
        torch.randn(2, 8),
        torch.randn(8),
        torch.randn(8),
        1e-6,
        True,
    ),
    newest_ids: lambda: (torch.tensor([4, -1]), torch.tensor([0, 7])),
    newest_ids_into: lambda: (torch.tensor([0, 0]), torch.tensor([4, -1]), torch.tensor([0, 7])),
    rms_norm: lambda: (torch.randn(2, 8), torch.randn(8), 1e-6, True),
    add_rms_norm: lambda: (torch.randn(2, 8), torch.randn(2, 8), torch.randn(8), None, 1e-6, True),
    norm_add_: lambda: (torch.randn(2, 8), torch.randn(2, 8), torch.randn(8), 1e-6, True),
    gated_activation: lambda: (torch.randn(2, 8), "silu", 1.702, 7.0),
    embed: lambda: (torch.tensor([1, 0]), torch.randn(4, 8), 2.0),
    softcap_: lambda: (torch.randn(2, 8), 30.0),
    qk_rope_write: lambda: tuple(random_call((2, 1), (8, 8, 4), seed=0, norm="head")),
    choose_tokens: choose_call,
    decode: decode_call,
    extend: extend_call,
    key_rows_into: key_rows_call,
    translate: lambda: tuple(translate_call([(3, 2), (9, 1)], page_size=4, window=6)),
    decode_rows: decode_rows_call,
}


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_schema_and_fake_tell_the_truth(op):
    torch.library.opcheck(op, CALLS[op](), test_utils=("test_schema", "test_faketensor"))


def test_a_bound_op_on_a_tape_is_one_node_and_reads_its_memory_at_replay():
    x, weight = torch.randn(3, 8), torch.randn(8)
    recording, out = record(TapeBackend(), lambda: rms_norm(x, weight, 1e-6, True))
    assert recording.num_nodes == 1
    x.copy_(torch.randn(3, 8))
    weight.mul_(2)
    recording.replay()
    assert torch.equal(out, rms_norm(x, weight, 1e-6, True))
