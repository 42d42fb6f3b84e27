"""Whole steps on tensors of a GPU that have no numbers: all is on one device, and nothing asks for a number.

The bodies of our ops do not run: their outputs are what the declarations say.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_leaves

import playhead.kernels.splits
from playhead.attention.triton import TritonBackend
from playhead.graph.breaks import InlineScope
from playhead.graph.piecewise import TraceScope, break_site, compute_sizes_where_used, number_parts
from playhead.graph.slots import FillContext
from playhead.kernels.attention import write_and_decode
from playhead.kernels.experts import grouped_matmul_cuda
from playhead.kv.cache import HybridKVCache
from playhead.kv.plan import KVLimits, plan_kv
from playhead.kv.swa_pool import create_kv_pool
from playhead.layers.parallel import weight_format
from playhead.layers.shard import WHOLE, Shard
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.decoder import Decoder
from playhead.models.spec import StoredAs
from playhead.sampling_params import SamplingKind
from playhead.step.build import build_worker
from playhead.step.forward import Forward, ModelStep, ScopedContext, kv_geometry, layer_attentions
from playhead.step.masks import masks_slot
from playhead.step.sampling import MASKS_SLOT, SamplerRows
from playhead.step.worker import WorkerConfig
from playhead.testing.gpu_tensors import GPU, gpu_with_open_rows, gpu_without_numbers
from playhead.testing.mutant import swapped
from playhead.types import TPMode
from tests.counting import CalledOps
from tests.unit.models.test_decoder_capture import CONFIGS, SIZES
from tests.unit.models.test_layer_ops import HEADS

LIMITS = KVLimits(max_context_tokens=32, max_running=4, chunk_tokens=8)
CONFIG = WorkerConfig(kv_memory_bytes=1 << 20, limits=LIMITS)
MODELS = {**CONFIGS, "olmo3": {"model_type": "olmo3", **SIZES, **HEADS, "sliding_window": 4}}
MODELS["large head"] = {**CONFIGS["cohere2"], "vocab_size": 131_072, "hidden_size": 64, "logit_scale": 0.0625}
DECODE = FillContext(raw_bs=3, padded_bs=3, raw_num_tokens=3, padded_num_tokens=3)
TOKENS = FillContext(raw_bs=2, padded_bs=2, raw_num_tokens=7, padded_num_tokens=7)
SECOND_OF_TWO = [Shard(rank=1, num_ranks=2, mode=mode, is_grouped=True) for mode in TPMode]


@pytest.fixture(scope="module")
def shapes():
    """Shapes and types of a step's slots: of decode, and of a step over tokens. All models have the same."""
    decoder = dummy_decoder(spec_from_config(MODELS["gemma3"]), dtype=torch.bfloat16, device=torch.device("cpu"))
    worker = build_worker(decoder, CONFIG)
    registries = (worker.decode.registry, DECODE), (worker.prefill.registry, TOKENS)
    views = [registry.extract_buffer(ctx) for registry, ctx in registries]
    return [{name: (slot.shape, slot.dtype) for name, slot in one.items()} for one in views]


def inputs_of(shapes):
    return {name: torch.empty(shape, dtype=dtype, device=GPU) for name, (shape, dtype) in shapes.items()}


def forward_of(model, shard=WHOLE):
    """A model's steps on a GPU, as `build_worker` puts them together."""
    spec = spec_from_config(MODELS[model])
    decoder = Decoder(spec, weight_format(StoredAs.PLAIN, dtype=torch.bfloat16, device=GPU, shard=shard))
    decoder.reach(LIMITS.max_context_tokens)
    geometry = kv_geometry(decoder.spec, page_size=CONFIG.page_size, dtype=torch.bfloat16)
    plan = plan_kv(num_bytes=CONFIG.kv_memory_bytes, geometry=geometry, limits=LIMITS)
    pool = create_kv_pool(plan, HybridKVCache(plan).allocator.mapping, device=GPU)
    layers = layer_attentions(decoder, pool)
    table_RP = torch.zeros(1 + LIMITS.max_running, 2, dtype=torch.int32, device=GPU)
    attention = TritonBackend(table_RP, layers, max_bs=LIMITS.max_running)
    sampler = SamplerRows(max_running=LIMITS.max_running, vocab_size=spec.vocab_size, device=GPU)
    sampler.make_tables()
    return Forward(ModelStep(decoder, pool, layers, attention), sampler, table_RP)


class OwnMemory(InlineScope):
    """Each call of a break has memory of its own, whatever the step says. `lent` has, for each piece of memory that
    calls would share, what each of them got, and how many ops had been called by then.
    """

    def __init__(self, live, ops):
        super().__init__(live)
        self.ops, self.lent = ops, {}

    def share_memory(self):
        pass

    def _memory(self, op, direction, position, spec, like):
        made = super()._memory(op, direction, position, spec, like)
        self.lent.setdefault((op, direction, position, spec), []).append((len(self.ops.calls), made))
        return made

    def read_too_late(self):
        """Ops that were given what a call had after the next call had it."""
        found = []
        for calls in self.lent.values():
            for (_, made), (end, _) in pairwise(calls):
                late = [op for op, args in self.ops.calls[end:] if storage(made) in map(storage, tensors_among(args))]
                found += late
        return found


def tensors_among(args):
    return [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]


def storage(tensor):
    return tensor.untyped_storage()._cdata


def read_too_late(model, shapes):
    """Of a decode step and a step over tokens; and how many calls would share memory."""
    found, num_shared = [], 0
    with gpu_without_numbers():
        forward = forward_of(model)
        specs = (
            (forward.decode_spec(SamplingKind.GREEDY, dict), DECODE),
            (forward.token_spec(dict, has_breaks=False), TOKENS),
        )
        for (spec, ctx), one in zip(specs, shapes, strict=True):
            inputs = inputs_of(one)
            with CalledOps() as ops:
                scope = OwnMemory(spec.plan({}, ctx, inputs), ops)
                spec.fn(inputs, scope)
            found += scope.read_too_late()
            num_shared += sum(len(calls) - 1 for calls in scope.lent.values())
    return found, num_shared


@pytest.mark.parametrize("model", MODELS)
def test_nothing_of_a_layers_attention_is_read_after_the_next_layers(shapes, model):
    """So the layers of a step share the memory of their projections and of attention's output."""
    found, num_shared = read_too_late(model, shapes)
    assert found == []
    assert num_shared >= 2


def test_a_layer_that_keeps_attentions_output_is_found(shapes, monkeypatch):
    attend, kept = ScopedContext.attend, {}

    def adds_the_last_layers(ctx, layer_index, qkv_TX):
        kept[layer_index] = attend(ctx, layer_index, qkv_TX)
        return kept[layer_index] + kept[layer_index - 1] if layer_index else kept[layer_index]

    monkeypatch.setattr(ScopedContext, "attend", adds_the_last_layers)
    found, _ = read_too_late("gemma3", shapes)
    assert torch.ops.aten.add.Tensor in found


def decode(forward, inputs, kind):
    spec = forward.decode_spec(kind, placeholder=lambda _: {})
    return spec.fn(inputs, InlineScope(spec.plan({}, DECODE, inputs)))


@pytest.mark.parametrize("model", MODELS)
def test_decode_is_all_on_its_device(shapes, model):
    with gpu_without_numbers():
        forward, inputs = forward_of(model), inputs_of(shapes[0])
        slot = masks_slot(forward.model.decoder.spec.vocab_size)
        masked = {**inputs, MASKS_SLOT: torch.empty(slot.shape_fn(3, 3), dtype=slot.dtype, device=GPU)}
        for kind in SamplingKind:
            for one in (inputs, masked):
                output = decode(forward, one, kind)
                assert {tensor.device for tensor in output} == {GPU}
                assert output.tokens_N.shape == (3,)


@pytest.mark.parametrize("model", MODELS)
def test_a_step_over_tokens_is_all_on_its_device(shapes, model):
    with gpu_without_numbers():
        forward, inputs = forward_of(model), inputs_of(shapes[1])
        spec = forward.token_spec(lambda _: {}, has_breaks=True)
        h_NM = spec.fn(inputs, InlineScope(spec.plan({}, TOKENS, inputs)))[: TOKENS.raw_bs]
        whole = forward.whole_token_spec(lambda _: {}, has_breaks=True)
        h_TM = whole.fn(inputs, InlineScope(whole.plan({}, TOKENS, inputs)))
        index_T = torch.empty(5, dtype=torch.int64, device=GPU)
        made = [*forward.report_prompt(h_TM, index_T, index_T, 2)]
        for kind in SamplingKind:
            made += forward.sample_last(h_NM, inputs, kind)
        assert {tensor.device for tensor in made} == {GPU}


def trace_for_all_sizes(shapes, model):
    num_tokens = TOKENS.padded_num_tokens
    with gpu_with_open_rows(num_tokens) as rows:
        by_token = {name: one for name, one in shapes.items() if num_tokens in one[0]}
        sizes = {name: [rows if size == num_tokens else size for size in one[0]] for name, one in by_token.items()}
        inputs = inputs_of({name: (size, by_token[name][1]) for name, size in sizes.items()})
        spec = forward_of(model).token_spec(lambda _: {}, has_breaks=True)

        scope = TraceScope()

        def layer_stack(*tensors):
            return spec.fn(dict(zip(inputs, tensors, strict=True)), scope)

        return make_fx(layer_stack, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs.values()), scope.ops


def inputs_of_pieces(traced, ops):
    """What each piece between two breaks is given, as it was traced."""
    compute_sizes_where_used(traced)
    module = split_module(traced, traced, number_parts(traced, ops).__getitem__, keep_original_order=True)
    pieces = [part for part in module.children() if break_site(part, ops) is None]
    return [
        [node.meta["val"] for node in piece.graph.nodes if node.op == "placeholder" and "val" in node.meta]
        for piece in pieces
    ]


@pytest.mark.parametrize("model", MODELS)
def test_pieces_of_a_trace_are_given_rows_of_all_tokens(shapes, model):
    """The compiler of a piece makes symbols anew for its inputs, and fails where a size is computed from another."""
    traced, ops = trace_for_all_sizes(shapes[1], model)
    given = [one for piece in inputs_of_pieces(traced, ops) for one in piece if isinstance(one, torch.Tensor)]
    sizes = {size.node.expr for one in given for size in one.shape if isinstance(size, torch.SymInt)}
    assert len(sizes) == 1
    assert all(size.is_symbol for size in sizes)


def without_ids(code):
    """A break's op has a name of its own in every model that is built."""
    return re.sub("_[0-9a-f]{32}", "", code)


@pytest.mark.parametrize("model", MODELS)
def test_a_trace_of_a_step_over_tokens_serves_all_sizes_and_is_the_same_twice(shapes, model):
    """The audit traces again and compares: what a GPU's layers call must not depend on when it is called."""
    (one, _), (other, _) = (trace_for_all_sizes(shapes[1], model) for _ in range(2))
    assert without_ids(one.code) == without_ids(other.code)
    placeholders = [node.meta["val"].shape for node in one.graph.nodes if node.op == "placeholder"]
    assert not any(isinstance(shape[0], int) for shape in placeholders)


@pytest.mark.parametrize("shard", SECOND_OF_TWO, ids=lambda shard: shard.mode)
@pytest.mark.parametrize("model", ["gemma3", "gpt_oss", "cohere2"])
def test_a_rank_of_two_is_all_on_its_device(shapes, model, shard):
    with gpu_without_numbers():
        forward, inputs = forward_of(model, shard), inputs_of(shapes[0])
        for kind in SamplingKind:
            assert {tensor.device for tensor in decode(forward, inputs, kind)} == {GPU}


def ops_of_decode(shapes, shard, model="gemma3", kind=SamplingKind.GREEDY):
    """How often a decode step calls each op of ours."""
    with gpu_without_numbers():
        forward, inputs = forward_of(model, shard), inputs_of(shapes[0])
        with CalledOps() as ops:
            decode(forward, inputs, kind)
    return Counter(op.overloadpacket.__name__ for op in ops.called if op.namespace == "playhead")


def test_layers_of_a_step_of_many_programs_are_given_the_order_of_its_requests(shapes):
    few = ops_of_decode(shapes, WHOLE)
    with swapped(playhead.kernels.splits, "MANY_PROGRAMS", 2):
        many = ops_of_decode(shapes, WHOLE)
    assert (few["longest_first"], many["longest_first"]) == (0, 1)
    assert many["write_and_decode"] == few["write_and_decode"] > 0
    with gpu_without_numbers():
        forward, inputs = forward_of("gemma3"), inputs_of(shapes[0])
        for many, is_given in ((2, True), (256, False)):
            with swapped(playhead.kernels.splits, "MANY_PROGRAMS", many), CalledOps() as ops:
                decode(forward, inputs, SamplingKind.GREEDY)
            orders = [args[-2] for op, args in ops.calls if op is write_and_decode.overload]
            assert orders
            assert all((order_B is not None) is is_given for order_B in orders)


@pytest.mark.parametrize("kind", SamplingKind)
def test_logits_and_a_choice_without_them_come_from_the_same_kernel(shapes, kind):
    """A request's tokens would else depend on what the others of its batch ask for."""
    ops = ops_of_decode(shapes, WHOLE, "large head", kind)
    is_at_once = kind <= SamplingKind.DRAWN
    assert (ops["head_tokens"], ops["head_logits"]) == ((1, 0) if is_at_once else (0, 1))
    assert ops["choose_tokens"] == (0 if is_at_once else 1)


def test_a_step_that_chooses_without_logits_says_so(shapes):
    with gpu_without_numbers():
        forward, inputs = forward_of("large head"), inputs_of(shapes[0])
        found = {kind: decode(forward, inputs, kind).logits_NV.shape for kind in SamplingKind}
    assert found[SamplingKind.GREEDY] == found[SamplingKind.DRAWN] == (3, 0)
    assert found[SamplingKind.FILTERED] == found[SamplingKind.EVERYTHING] == (3, 131_072)


def test_ranks_and_small_heads_choose_from_logits(shapes):
    for model, shard in (("gemma3", WHOLE), ("large head", SECOND_OF_TWO[0])):
        assert ops_of_decode(shapes, shard, model)["head_tokens"] == 0


@pytest.mark.parametrize("mode", TPMode)
def test_layers_of_a_rank_without_others_are_those_of_no_ranks(shapes, mode):
    """It meets itself for the embedding and for the choice. Two ranks meet in every layer."""
    none = ops_of_decode(shapes, WHOLE)
    lone, one_of_two = (
        ops_of_decode(shapes, Shard(num_ranks=num_ranks, mode=mode, is_grouped=True)) for num_ranks in (1, 2)
    )
    in_layers = ["project_normed", "project", "add_rms_norm", "write_and_decode"]
    assert none["project_normed"] > 0
    assert [lone[name] for name in in_layers] == [none[name] for name in in_layers]
    meetings = ["sum_over_ranks_", "gather_columns", "largest_over_ranks_"]
    assert sum(lone[name] for name in meetings) == 2
    assert sum(one_of_two[name] for name in meetings) > 2 + none["write_and_decode"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_inputs", [16, 24, 20])
def test_experts_of_any_size_give_their_rows_on_their_device(num_inputs, dtype):
    with gpu_without_numbers():
        rows_PI = torch.empty(6, num_inputs, dtype=dtype, device=GPU)
        weights_XOI = torch.empty(4, 8, num_inputs, dtype=dtype, device=GPU)
        ends_X = torch.empty(4, dtype=torch.int32, device=GPU)
        out_PO = grouped_matmul_cuda(rows_PI, weights_XOI.mT, ends_X)
        assert (out_PO.shape, out_PO.dtype, out_PO.device) == ((6, 8), dtype, GPU)
        assert out_PO.is_contiguous()


def test_a_look_at_a_number_and_a_tensor_of_the_host_are_found():
    with gpu_without_numbers():
        numbers = torch.empty(3, device=GPU)
        with pytest.raises(DataDependentOutputException):
            bool(numbers.any())
        with pytest.raises(RuntimeError, match="on the same device"):
            numbers + torch.empty(3)
