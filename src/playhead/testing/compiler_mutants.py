# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels that the interpreter runs and a GPU refuses, those that are compiled too late, pieces of a trace that a GPU's
compiler refuses, and what notices it without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

from playhead.attention.base import AttentionBackend, LayerAttention
from playhead.attention.triton import TritonBackend, decode_shape
from playhead.graph import piecewise
from playhead.graph.shapes import bucket_sizes
from playhead.kernels.attention import left_width, longest_first
from playhead.kernels.splits import is_worth_an_order, num_splits
from playhead.kernels.triton import decode, newest, projection_tiles, rope, write_and_decode
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.decoder import Decoder
from playhead.step import build
from playhead.step.compile_ahead import telling_sizes
from playhead.testing.launched_kernels import launched, read
from playhead.testing.mutant import Checker, Mutant, swapped
from playhead.testing.tile_room import PROGRAM_BYTES, shared_bytes
from playhead.testing.tiny_worker import TINY_GEMMA3, dense_logits, differences, last_logits, tiny_worker
from playhead.types import Mode

TWO_LAYERS = {**TINY_GEMMA3, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
NUM_REQUESTS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 8, 32, 8, 128


# The compiler reads what follows an `if` even where the `if` returns.


@triton.jit
def _pairs_after_a_return(angles, position, zero_H1, mask_HF, F: tl.constexpr):
    if F == 0:
        return 0.0, 0.0
    place_HF = angles + position.to(tl.int64) * (2 * F) + zero_H1 + tl.arange(0, mask_HF.shape[1])[None, :]
    return tl.load(place_HF, mask=mask_HF, other=1.0), tl.load(place_HF + F, mask=mask_HF, other=0.0)


@triton.jit
def _dims_after_a_return(angles, position, F: tl.constexpr, STEP, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr):
    dim_GD = tl.arange(0, BLOCK_D)[None, :] + tl.zeros([BLOCK_G, 1], tl.int32)
    if F == 0:
        return dim_GD, dim_GD
    place_GD = angles + position.to(tl.int64) * (2 * F) + dim_GD // 2
    return tl.load(place_GD), tl.load(place_GD + F)


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _caches() -> list[torch.Tensor]:
    return [_meta(64, 16, NUM_KV_HEADS, HEAD_DIM) for _ in "kv"]


def rope_without_rotation() -> list[str]:
    """The compiler reads rope's kernel for a layer that rotates nothing."""
    heads = (_meta(NUM_REQUESTS, num_heads, HEAD_DIM) for num_heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS))
    positions, locs = (_meta(NUM_REQUESTS, dtype=torch.int32) for _ in range(2))
    call = (*heads, None, None, None, positions, *_caches(), locs, 1e-6, False, False)
    found = launched(rope.qk_rope_write_kernel, lambda: rope.launch_qk_rope_write(*call))
    read(found.source, found.options)
    return []


def decode_without_rotation() -> list[str]:
    """The same of the kernel that writes the newest token and attends to it."""
    qkv = _meta(NUM_REQUESTS, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    out = _meta(NUM_REQUESTS, left_width(NUM_HEADS, HEAD_DIM, 0))
    positions, locs, rows, lengths = (_meta(NUM_REQUESTS, dtype=torch.int32) for _ in range(4))
    tables = (_meta(NUM_REQUESTS + 1, 512, dtype=torch.int32), rows, lengths)
    scratch = (*(_meta(64, dtype=torch.float32) for _ in range(2)), _meta(64, dtype=torch.int32))
    turning, scoring = (None, None, None, positions, locs, 1e-6, False, False), (None, 0.1, None, None)
    call = (qkv, out, *turning, *_caches(), *tables, *scoring, *scratch, 8, None, 0)
    kernel = write_and_decode.write_and_decode_kernel
    found = launched(kernel, lambda: write_and_decode.launch_write_and_decode(*call))
    read(found.source, found.options)
    return []


def products_have_room() -> list[str]:
    """Programs of Qwen2.5-7B's queries, keys and values fit a multiprocessor, for all sizes of a step."""
    num_outputs, num_inputs = 4608, 3584
    kinds = projection_tiles.HeldTiles | projection_tiles.StreamedTiles
    problems = []
    for num_rows in bucket_sizes(projection_tiles.MOST_ROWS):
        tiles = projection_tiles.tiles_for(_meta(num_rows, num_inputs), _meta(num_outputs, num_inputs))
        if isinstance(tiles, kinds) and shared_bytes(tiles) > PROGRAM_BYTES:
            problems.append(f"{num_rows} rows: {shared_bytes(tiles)} bytes")
    return problems


def sizes_are_rehearsed() -> list[str]:
    """Decode steps of Gemma-3-1B of any size launch attention as one that was rehearsed does."""
    k_cache, v_cache = (_meta(64, 16, 1, 256) for _ in "kv")
    layer = LayerAttention(
        num_heads=4,
        num_kv_heads=1,
        k_head_dim=256,
        v_head_dim=256,
        scale=0.1,
        k_cache_NSKD=k_cache,
        v_cache_NSKE=v_cache,
        window=512,
    )
    table_RP, sizes = _meta(257, 256, dtype=torch.int32), bucket_sizes(256)
    backend, shape = TritonBackend(table_RP, [layer], max_bs=256), decode_shape(layer, table_RP)

    def launch(size: int) -> str:
        rows, lengths = (_meta(size, dtype=torch.int32) for _ in range(2))
        order = longest_first(lengths) if is_worth_an_order(shape, size) else None
        scratch = (*(_meta(64, dtype=torch.float32) for _ in range(2)), _meta(64, dtype=torch.int32))
        q, out, splits = _meta(size, 4, 256), _meta(size, 4, 256), num_splits(shape, size)
        call = (q, out, k_cache, v_cache, table_RP, rows, lengths, None, 0.1, 512, None, *scratch, splits, order)
        one = launched(decode.decode_kernel, lambda: decode.launch_decode(*call))
        return f"{one.source.constants} {one.options}"

    rehearsed = {launch(size) for size in telling_sizes(sizes, backend.kind_of_step)}
    return [f"{size} requests" for size in sizes if launch(size) not in rehearsed]


def layers_are_rehearsed() -> list[str]:
    """A model whose layers are alike: one of those that are rehearsed has a layer in front."""
    alike = spec_from_config({**TINY_GEMMA3, "layer_types": 3 * ["full_attention"]})
    decoder = dummy_decoder(alike, dtype=torch.float32, device=torch.device("cpu"))
    with decoder.few_layers_of_each_kind():
        found = [block.index for block in decoder._stack]
    return [] if found == [0, 1] else [f"layers {found}"]


@contextmanager
def _one_layer_of_each_kind(self: Decoder) -> Iterator[None]:
    whole = self._stack
    self._stack = tuple({block.spec: block for block in reversed(whole)}.values())[::-1]
    yield
    self._stack = whole


def pieces_are_compiled() -> list[str]:
    """Inductor takes the pieces of a step over tokens, up to the code it would make of them, for all sizes.

    The last layer has as many rows as there are tokens, or as requests may run: both are tried.
    """
    # Imported here: it takes seconds, and no other checker wants it.
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._inductor import compile_fx

    found = []
    with (
        patch.object(compile_fx, "compile_fx_inner", lambda graph, inputs, **settings: make_boxed_func(graph.forward)),
        swapped(build, "compiler_for", lambda device: piecewise.with_inductor),
    ):
        worker = tiny_worker(Mode.PIECEWISE, model=TWO_LAYERS, prefix_caching=False)
        for num_tokens in (2 * worker.config.limits.max_running, worker.config.limits.max_running - 1):
            prompt = list(range(7, 7 + num_tokens))
            wanted = dense_logits(worker.model.decoder, prompt)
            found += differences(last_logits(worker, [prompt]), wanted, f"{num_tokens} tokens")
    return found


COMPILER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="angles of a layer without any",
        source="Cohere 2 and EXAONE 4 on a GPU: the first prompt's kernel was refused",
        apply=lambda: swapped(rope, "_load_angles", _pairs_after_a_return),
        killed_by=("rope without rotation",),
    ),
    Mutant(
        name="angles of a layer without any, in decode steps",
        source="the same models' steps of few requests",
        apply=lambda: swapped(newest, "load_angles", _dims_after_a_return),
        killed_by=("decode without rotation",),
    ),
    Mutant(
        name="twice the outputs for any number of inputs",
        source="found by compiling all public models: Qwen2.5-7B's first step of up to 8 rows was refused",
        apply=lambda: swapped(projection_tiles, "MOST_HELD_TWICE", projection_tiles.MOST_INPUTS),
        killed_by=("products have room",),
    ),
    Mutant(
        name="sizes up to a power of two launch the same",
        source="steps of 144 to 240 requests of Gemma-3-1B: their first one waited 3 s for a compiler",
        apply=lambda: swapped(TritonBackend, "kind_of_step", AttentionBackend.kind_of_step),
        killed_by=("sizes are rehearsed",),
    ),
    Mutant(
        name="one layer of each kind is rehearsed",
        source="Llama's second layer on a GPU: its projection is one kernel with the norm behind the first",
        apply=lambda: swapped(Decoder, "few_layers_of_each_kind", _one_layer_of_each_kind),
        killed_by=("layers are rehearsed",),
    ),
    Mutant(
        name="pieces with symbols of their own",
        source="found on a GPU: rows that are the least of tokens and requests",
        apply=lambda: swapped(piecewise, "show_results", lambda piece: None),
        killed_by=("pieces are compiled",),
    ),
)

COMPILER_CHECKERS = (
    Checker(name="rope without rotation", run=rope_without_rotation, raises=(CompilationError,)),
    Checker(name="decode without rotation", run=decode_without_rotation, raises=(CompilationError,)),
    Checker(name="products have room", run=products_have_room),
    Checker(name="sizes are rehearsed", run=sizes_are_rehearsed),
    Checker(name="layers are rehearsed", run=layers_are_rehearsed),
    Checker(name="pieces are compiled", run=pieces_are_compiled, raises=(AssertionError,)),
)
