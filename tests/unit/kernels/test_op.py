"""Ops as torch sees them: schemas that tell the truth about writes, fakes that tell the truth about shapes."""

from __future__ import annotations

import importlib
import math
import pkgutil

import pytest
import torch

from playhead import kernels
from playhead.attention.base import decode_arguments, extend_arguments
from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from playhead.kernels.attention import decode, extend, longest_first, write_and_decode, write_and_extend
from playhead.kernels.binders import MODULES, cpu_binders, ops_of
from playhead.kernels.blocks import block_matmul
from playhead.kernels.collectives import first_rank_tells_, gather_columns, largest_over_ranks_, sum_over_ranks_
from playhead.kernels.cpu.attention import decode_cells, key_cells_into
from playhead.kernels.elementwise import embed, gated_activation, softcap_
from playhead.kernels.experts import grouped_matmul
from playhead.kernels.filters import least_keys
from playhead.kernels.head import head_logits, head_scratch, head_tokens
from playhead.kernels.masks import forbid_
from playhead.kernels.norm import add_rms_norm, norm_add_, rms_norm
from playhead.kernels.op import Op
from playhead.kernels.ordered import attend_in_order, gate_in_order, matmul_in_order, project_normed_in_order
from playhead.kernels.projection import project, project_gated, project_normed
from playhead.kernels.rope import qk_rope_write
from playhead.kernels.tokens import advance, choose_scratch, choose_tokens, newest_ids
from playhead.kernels.translate import translate
from playhead.kernels.vocabulary import choose_keys, embed_share
from playhead.testing.lone_rank import group_of_one
from tests.unit.attention.scenes import SceneSpec, make_scene
from tests.unit.kernels.test_advance import PAGE_SIZE, step_inputs
from tests.unit.kernels.test_extend import decode_scratch, packed_call
from tests.unit.kernels.test_newest import random_call as newest_call
from tests.unit.kernels.test_rope import random_call
from tests.unit.kernels.test_translate import random_call as translate_call


def decode_call():
    scene = make_scene(SceneSpec(seq_lens=(3,)), seed=0)
    scratch = (torch.zeros(8), torch.zeros(2), torch.zeros(1, dtype=torch.int32))
    return scene.q, torch.zeros(1, 1, 8), *decode_arguments(scene.plan, scene.layer), *scratch, 1, None


def extend_call():
    scene = make_scene(SceneSpec(seq_lens=(3,), query_lens=(2,)), seed=0)
    scratch = (torch.zeros(8), torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    return scene.q, torch.zeros(2, 1, 8), *extend_arguments(scene.plan, scene.layer), *scratch, 1


def write_and_extend_call():
    scene = make_scene(SceneSpec(seq_lens=(3,), query_lens=(2,)), seed=0)
    return packed_call(scene, decode_scratch(scene, 1), 1)


def choose_call():
    ids = [torch.tensor([1, 2]) for _ in range(3)]
    return torch.randn(2, 8), ids[0], torch.tensor([0.0, 1.0]), *ids, *choose_scratch(2, 8), 1e-5, True


def choose_keys_call():
    ids = [torch.tensor([1, 2]) for _ in range(3)]
    return torch.randn(2, 8), torch.tensor([0.0, 1.0]), *ids, *choose_scratch(2, 8), 8, 1e-5, True


def head_tokens_call():
    ids, scratch = [torch.tensor([1, 2]) for _ in range(3)], (head_scratch(2), torch.zeros(2, dtype=torch.int32))
    return torch.randn(2, 8), torch.randn(6, 8), 0.5, 30.0, torch.tensor([0.0, 1.0]), *ids, *scratch, 1e-5, True


def filter_call():
    numbers = (torch.tensor([1.0, 0.0]), torch.tensor([3, 2]), torch.tensor([0.5, 1.0]), torch.full((2,), -math.inf))
    return torch.randn(2, 8), *numbers, 1e-5


def key_cells_call():
    table, rows = torch.tensor([[0, 0], [1, 2]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    lookup = (table, rows, torch.tensor([8], dtype=torch.int32), torch.tensor([11], dtype=torch.int32))
    found = (torch.zeros((1, 8), dtype=torch.int64), torch.zeros(1, 8), torch.zeros(1, dtype=torch.int64))
    return *found, *lookup, 4, 8


def decode_cells_call():
    q, caches = torch.randn(1, 2, 8), [torch.randn(9, 1, 1, 8) for _ in "kv"]
    lengths = torch.tensor([3], dtype=torch.int32)
    return q, torch.zeros(1, 2, 8), *caches, torch.tensor([[2, 4, 5]]), torch.zeros(1, 3), lengths, None, 0.1, None


def block_matmul_call():
    codes = torch.randint(-128, 128, (2, 3, 32, 32), dtype=torch.int8)
    return torch.randn(2, 64), torch.randn(2, 96), codes, torch.randn(2, 3, 32), torch.randn(2, 3, 32), True


def norm_call():
    return torch.randn(2, 8), torch.randn(8), 1e-6, True, False


def add_norm_call():
    return torch.randn(2, 8), torch.randn(2, 8), torch.randn(8), torch.randn(8), 1e-6, True, False


def project_call():
    return torch.randn(2, 6), torch.randn(2, 8), torch.randn(6, 8), torch.randn(6), 0.5, True


def project_normed_call():
    first = (torch.randn(2, 5), torch.randn(8, 5), torch.randn(8), 0.5)
    norms = (torch.randn(8), None, 1e-6, True, False)
    return torch.randn(2, 3), *first, torch.randn(2, 8), *norms, torch.randn(6, 8), torch.randn(6), "silu"


def attend_in_order_call():
    return *extend_call()[:-1], False


CALLS = {
    matmul_in_order: lambda: (*(torch.randn(2, 8), torch.randn(6, 8), torch.randn(6), torch.randn(2, 6)), 0.5, True),
    attend_in_order: attend_in_order_call,
    gate_in_order: lambda: (torch.randn(2, 8), torch.randn(6, 8), torch.randn(6), "silu"),
    project_normed_in_order: project_normed_call,
    project: project_call,
    project_gated: lambda: (torch.randn(2, 8), torch.randn(6, 8), torch.randn(6), "silu"),
    project_normed: lambda: (*project_normed_call(), 0),
    rms_norm: norm_call,
    add_rms_norm: add_norm_call,
    norm_add_: lambda: (torch.randn(2, 8), torch.randn(2, 8), torch.randn(8), 1e-6, True, False),
    newest_ids: lambda: (torch.tensor([4, -1]), torch.tensor([0, 7])),
    gated_activation: lambda: (torch.randn(2, 8), "silu", 1.702, 7.0),
    embed: lambda: (torch.tensor([1, 0]), torch.randn(4, 8), 2.0),
    softcap_: lambda: (torch.randn(2, 8), 30.0),
    grouped_matmul: lambda: (torch.randn(4, 8), torch.randn(2, 8, 8), torch.tensor([1, 4], dtype=torch.int32)),
    qk_rope_write: lambda: tuple(random_call((2, 1), (8, 8, 4), seed=0, norm="head")),
    choose_tokens: choose_call,
    head_logits: lambda: (torch.randn(2, 6), torch.randn(2, 8), torch.randn(6, 8), 0.5, 30.0),
    head_tokens: head_tokens_call,
    least_keys: filter_call,
    forbid_: lambda: (torch.randn(2, 40), torch.tensor([[-1, -1], [5, 1]], dtype=torch.int32)),
    advance: lambda: (*step_inputs(3, 2, seed=0), PAGE_SIZE),
    longest_first: lambda: (torch.tensor([3, 9, 3], dtype=torch.int32),),
    decode: decode_call,
    write_and_decode: lambda: tuple(newest_call([3], (2, 1), (8, 8, 4), norm="head")),
    extend: extend_call,
    write_and_extend: write_and_extend_call,
    key_cells_into: key_cells_call,
    translate: lambda: tuple(translate_call([(3, 2), (9, 1)], page_size=4, window=6)),
    decode_cells: decode_cells_call,
    block_matmul: block_matmul_call,
    sum_over_ranks_: lambda: (torch.randn(4),),
    largest_over_ranks_: lambda: (torch.arange(4),),
    first_rank_tells_: lambda: (torch.arange(4),),
    gather_columns: lambda: (torch.randn(2, 8), torch.randn(2, 8), 8, 1),
    embed_share: lambda: (torch.tensor([1, 5]), torch.randn(4, 8), 2.0, 3),
    choose_keys: choose_keys_call,
}
DECLARED = {
    op
    for found in pkgutil.walk_packages(kernels.__path__, "playhead.kernels.")
    if ".triton" not in found.name
    for op in vars(importlib.import_module(found.name)).values()
    if isinstance(op, Op)
}


@pytest.fixture(autouse=True, scope="module")
def _world():
    """A group of this process alone, for the ops in which ranks meet."""
    with group_of_one(torch.device("cpu")):
        yield


def name_of(op: Op) -> str:
    return op.overload._schema.name


def test_every_declared_op_has_a_call_here():
    assert {name_of(op) for op in DECLARED} == {name_of(op) for op in CALLS}


@pytest.mark.parametrize("op", CALLS, ids=name_of)
def test_schema_and_fake_tell_the_truth(op):
    torch.library.opcheck(op.overload, CALLS[op](), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("op", CALLS, ids=name_of)
def test_no_argument_has_a_default_in_the_schema(op):
    """torch leaves trailing arguments that equal their defaults out of the call: a body would not get them."""
    assert not any(argument.has_default_value() for argument in op.overload._schema.arguments)


@pytest.mark.parametrize("op", [op for op in CALLS if op.into is not None], ids=name_of)
def test_a_twin_writes_what_its_op_returns(op):
    """Its schema says that it writes `out`, and what the op itself writes."""
    call = CALLS[op]()
    again = [value.clone() if isinstance(value, torch.Tensor) else value for value in call]
    wanted = op(*call)
    out = torch.empty_like(wanted)
    op.into(out, *again)
    assert torch.equal(out, wanted)
    torch.library.opcheck(op.into.overload, (out, *call), test_utils=("test_schema", "test_faketensor"))
    assert op.into.overload._schema.arguments[0].alias_info.is_write


def test_a_tape_is_given_every_op_that_can_be_bound():
    ops = {op for module in MODULES for op in ops_of(module)}
    assert ops == DECLARED | {op.into for op in DECLARED if op.into is not None}
    assert set(cpu_binders()) == {op.overload for op in ops if op.bind is not None}


@pytest.mark.parametrize("binders", [{}, cpu_binders()], ids=["by torch", "bound"])
def test_an_op_on_a_tape_is_one_node_and_reads_its_memory_at_replay(binders):
    x, weight = torch.randn(3, 8), torch.randn(8)
    recording, out = record(TapeBackend(binders), lambda: rms_norm(x, weight, 1e-6, True, False))
    assert recording.num_nodes == 1
    x.copy_(torch.randn(3, 8))
    weight.mul_(2)
    recording.replay()
    assert torch.equal(out, rms_norm(x, weight, 1e-6, True, False))


def test_arguments_that_numpy_cannot_do_are_the_references():
    """bfloat16 has no numpy dtype; LayerNorm has no numpy work."""
    x, weight = torch.randn(3, 8), torch.randn(8)
    half = (x.bfloat16(), weight.bfloat16(), 1e-6, True, False)
    assert torch.equal(rms_norm(*half), rms_norm.reference(*half))
    centred = (x, weight, 1e-6, False, True)
    assert torch.equal(rms_norm(*centred), rms_norm.reference(*centred))
