"""What notices an op in an engine with `batch_invariant` that may add up in an order which depends on the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from playhead.attention.base import LENGTHS_SLOT, ROWS_SLOT, AttentionBackend, AttentionPlan, LayerAttention
from playhead.kernels.head import head_scratch
from playhead.kernels.triton import norm, ordered_projection
from playhead.kernels.triton.ordered_matmul import chunk_of
from playhead.kernels.triton.projection_tiles import MOST_ROWS
from playhead.layers.linear import PlainWeights
from playhead.layers.spec import AttentionSpec
from playhead.models.build import spec_from_config
from playhead.models.decoder import Decoder
from playhead.models.spec import ModelSpec
from playhead.sampling_params import GREEDY_BELOW
from playhead.schedule.request import Chunk
from playhead.step.build import prepare_sums
from playhead.step.worker import Worker
from playhead.testing.mutant import Checker
from playhead.testing.tiny_worker import TINY_GEMMA3, last_logits, tiny_worker
from playhead.types import Mode

MATMULS = frozenset({"mm", "addmm", "addmm_", "mv", "addmv", "linear", "_scaled_mm", "_grouped_mm", "dot"})
BATCHED_MATMULS = frozenset({"bmm", "baddbmm"})  # a CPU's attention has them; no setting is about its order
# Ours whose result for a row depends on nothing but the row: a program for each row, or sums of integers. Matrix
# instructions add up a row's inputs in ascending order: `matmul_in_order` and the two ops around it for any number of
# rows, the two of the head for up to 128, to the same bits. An op that is not here has to be looked at, on a GPU,
# before an engine with `batch_invariant` may use it.
ROW_ALONE = frozenset(
    {
        "matmul_in_order",
        "gate_in_order",
        "project_normed_in_order",
        "attend_in_order",
        "embed",
        "rms_norm",
        "add_rms_norm",
        "norm_add_",
        "qk_rope_write",
        "gated_activation",
        "softcap_",
        "head_logits",
        "head_tokens",
        "choose_tokens",
        "least_keys",
        "forbid_",
        "advance",
        "newest_ids",
        "translate",
    }
)
SIDE_BY_SIDE = {**TINY_GEMMA3, "model_type": "cohere2", "logit_scale": 1.0}
LARGE_HEAD = {**TINY_GEMMA3, "vocab_size": 131_072, "hidden_size": 64}
PRODUCTS = {  # qkv, o, gate-up and down: outputs and inputs
    "gemma-3-1b": ((1536, 1152), (1152, 1024), (13824, 1152), (1152, 6912)),
    "llama-3.2-1b": ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)),
    "gemma-3-4b": ((4096, 2560), (2560, 2048), (20480, 2560), (2560, 10240)),
    "qwen3-0.6b": ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)),
}
CPU_ATTENTION = frozenset({"decode_cells", "key_cells", "extend_cells"})


class OpNames(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The names of all ops that are dispatched, without overloads."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found.add(str(func).rsplit(".", 1)[0])  # "aten.mm.out" without its overload
        return func(*args, **(kwargs or {}))


def unordered_ops(worker: Worker) -> list[str]:
    """The ops of a step over tokens and of a decode step that may add up in an order of the batch.

    The worker captures nothing: its ops are those that graphs hold.
    """
    with OpNames() as names:
        last_logits(worker, [[7, 8, 9], [3]])
        seq = worker.kv.admit("one", [3])
        for token in (3, 4):  # the first is a step over tokens, the second decodes
            worker.kv.extend(seq, 1)
            worker.run([Chunk.newest(seq, [token])])
    return without_order(names.found, worker.device.type)


def without_order(names: set[str], device_type: str) -> list[str]:
    """A line for each of these ops that is not known to look at one row alone."""
    on_cpu = device_type == "cpu"
    matmuls = MATMULS if on_cpu else MATMULS | BATCHED_MATMULS
    ours = ROW_ALONE | CPU_ATTENTION if on_cpu else ROW_ALONE
    found = []
    for name in sorted(names):
        namespace, base = name.split(".", 1)
        base = base.removesuffix("_into")
        if (namespace == "playhead" and base not in ours) or (namespace == "aten" and base in matmuls):
            found.append(f"{name} may add up in another order in another batch")
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttendsOnce:
    """A decoder's context that attends to nothing cached: one step of a backend, in each layer."""

    layers: tuple[LayerAttention, ...]
    backend: AttentionBackend
    plan: AttentionPlan

    def room(self, layer_index: int, h_TM: Tensor) -> Tensor:
        layer = self.layers[layer_index]
        num_k_heads = layer.num_heads + layer.num_kv_heads
        width = num_k_heads * layer.k_head_dim + layer.num_kv_heads * layer.v_head_dim
        return h_TM.new_empty((h_TM.shape[0], width))

    def live_rows(self) -> None:
        """All rows are tokens."""

    def rows_read(self) -> None:
        """All rows are read."""

    def parts_left(self, layer_index: int) -> int:
        return self.backend.parts_left(self.layers[layer_index], 1)

    def attend(self, layer_index: int, qkv_TX: Tensor) -> Tensor:
        layer, num_tokens = self.layers[layer_index], qkv_TX.shape[0]
        q_THD = qkv_TX.new_empty((num_tokens, layer.num_heads, layer.k_head_dim))
        out_THE = qkv_TX.new_empty((num_tokens, layer.num_heads, layer.v_head_dim))
        self.backend.attend(self.plan, layer, q_THD, out_THE)
        return out_THE.flatten(1)


def sums_in_order_on_a_gpu() -> list[str]:
    """What a GPU would run, found without one: the ops of tensors that have a device and no numbers."""
    found: list[str] = []
    for model in (TINY_GEMMA3, SIDE_BY_SIDE, LARGE_HEAD):
        with FakeTensorMode():
            names = gpu_ops(spec_from_config(dict(model)))
        found += without_order(names, "cuda")
    return found


def gpu_ops(spec: ModelSpec) -> set[str]:
    """The ops of steps of a few sizes, from embedding to logits and tokens. A size may have kernels of its own."""
    device = torch.device("cuda")
    decoder = Decoder(spec, PlainWeights(dtype=torch.bfloat16, device=device))
    layers = tuple(attention_of(layer.attention, device) for layer in spec.layers)
    backend = prepare_sums(decoder, torch.zeros(9, 4, dtype=torch.int32, device=device), layers, batch_invariant=True)
    with OpNames() as names:
        for num_requests, num_tokens in ((1, 1), (8, 8), (4, 300)):
            per_request = [torch.ones(num_requests, dtype=torch.int32, device=device) for _ in range(4)]
            queries = (
                {} if num_tokens == num_requests else {"query_starts": per_request[2], "query_lens": per_request[3]}
            )
            plan = backend.plan({ROWS_SLOT: per_request[0], LENGTHS_SLOT: per_request[1], **queries})
            ids_T = torch.zeros(num_tokens, dtype=torch.int64, device=device)
            context = AttendsOnce(layers=layers, backend=backend, plan=plan)
            h_TM = decoder.layers(decoder.embed(ids_T), context)
            decoder.head(h_TM)
            temperature_T = torch.zeros(num_tokens, device=device)
            scratch = head_scratch(num_tokens, device), torch.zeros(num_tokens, dtype=torch.int32, device=device)
            decoder.choose(h_TM, temperature_T, ids_T, ids_T, torch.empty_like(ids_T), *scratch, GREEDY_BELOW, True)
    return set(names.found)


def attention_of(spec: AttentionSpec, device: torch.device) -> LayerAttention:
    k_cache, v_cache = (
        torch.empty(8, 4, spec.num_kv_heads, dim, dtype=torch.bfloat16, device=device)
        for dim in (spec.k_head_dim, spec.v_head_dim)
    )
    return LayerAttention(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        k_head_dim=spec.k_head_dim,
        v_head_dim=spec.v_head_dim,
        scale=spec.scale,
        k_cache_NSKD=k_cache,
        v_cache_NSKE=v_cache,
        window=spec.window,
    )


def sums_in_order() -> list[str]:
    """Steps of an eager worker on a CPU."""
    models = (TINY_GEMMA3, SIDE_BY_SIDE)
    return [
        line for model in models for line in unordered_ops(tiny_worker(Mode.EAGER, model=model, batch_invariant=True))
    ]


def tiles_in_order() -> list[str]:
    """Tiles by which a product of few rows adds up otherwise than the same product of many."""
    found = []
    for model, shapes in PRODUCTS.items():
        for num_outputs, num_inputs in shapes:
            weight_OI = torch.empty((num_outputs, num_inputs), dtype=torch.bfloat16, device="meta")
            for num_rows in range(1, MOST_ROWS + 2):
                where = f"{num_rows} rows of {num_outputs} x {num_inputs} ({model})"
                found += [f"{where} {what}" for what in out_of_order(num_rows, weight_OI)]
    return found


def out_of_order(num_rows: int, weight_OI: Tensor) -> list[str]:
    """What the tiles of one product do beside taking inputs in turn, in the chunks of its matrix."""
    num_outputs, num_inputs = weight_OI.shape
    x_TI, chunk = weight_OI.new_empty((num_rows, num_inputs)), chunk_of(num_outputs, num_inputs)
    whole = ordered_projection.tiles_in_order(x_TI, weight_OI)
    chunks = ordered_projection.tiles_of_chunks(x_TI, weight_OI)
    found = ["multiplies what is held last"] if any(tiles and tiles.held for tiles in (whole, chunks)) else []
    if whole is not None and (whole.num_splits > 1 or chunk < num_inputs):
        found.append("is not cut as the matrix is")
    if chunks is not None and (chunks.share != chunk or chunk % chunks.block_k or chunk >= num_inputs):
        found.append("has chunks of its own")
    return found


def norms_in_order() -> list[str]:
    """Norms of whole rows that cut a row otherwise where it comes with more. Those of heads are in rope's kernels."""
    found = []
    for width in (1024, 1152, 2560):
        wanted = norm_cuts(1, width)
        found += [f"{name}: {len(cuts)} launches" for name, cuts in wanted.items() if len(cuts) != 1]
        for num_rows in (8, 128, 129, 256, 8192):
            cuts = norm_cuts(num_rows, width)
            found += [f"{name}: {num_rows} rows of {width}" for name in wanted if cuts[name] != wanted[name]]
    return found


def norm_cuts(num_rows: int, width: int) -> dict[str, list[Any]]:
    """The launch options of all norms of rows in an engine with `batch_invariant`, by op. Nothing is launched."""
    x, residual, out = (torch.empty(num_rows, width, device="meta") for _ in range(3))
    weight, numbers = torch.empty(width, device="meta"), (1e-6, True, False)
    normed = (residual, weight, None, *numbers, None, None, None)
    calls: dict[str, Callable[[], Any]] = {
        "rms_norm": lambda: norm.launch_rms_norm(x, weight, *numbers),
        "add_rms_norm": lambda: norm.launch_add_rms_norm(x, residual, weight, None, *numbers),
        "norm_add_": lambda: norm.launch_norm_add(x, residual, weight, *numbers),
        "project_normed_in_order": lambda: ordered_projection.launch_project_normed_in_order(
            out, x, None, None, 1.0, *normed
        ),
    }
    found = {}
    for name, launch in calls.items():
        kernel = MagicMock()
        with patch.multiple(norm, rms_norm_kernel=kernel, add_norm_kernel=kernel):
            launch()
        found[name] = [call.kwargs for call in kernel[()].call_args_list]  # whatever the grid
    return found


ORDER_CHECKERS = (
    Checker(name="norms in order", run=norms_in_order),
    Checker(name="tiles in order", run=tiles_in_order),
    Checker(name="sums in order", run=sums_in_order),
    Checker(name="sums in order on a GPU", run=sums_in_order_on_a_gpu),
)
