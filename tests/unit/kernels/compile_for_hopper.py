"""Compiles every kernel for sm_90 without a GPU and prints what each takes: `python compile_for_hopper.py`.

What is compiled is exactly what would be launched (`launches.py`). Must run without TRITON_INTERPRET: interpreted
functions cannot be compiled.
"""

from __future__ import annotations

import json
import math

import torch

from playhead.kernels.attention import left_width
from playhead.kernels.triton import (
    activation as activation_triton,
)
from playhead.kernels.triton import (
    choose as choose_triton,
)
from playhead.kernels.triton import (
    decode as decode_triton,
)
from playhead.kernels.triton import (
    embedding as embedding_triton,
)
from playhead.kernels.triton import (
    extend as extend_triton,
)
from playhead.kernels.triton import (
    filters as filters_triton,
)
from playhead.kernels.triton import (
    head as head_triton,
)
from playhead.kernels.triton import (
    left as left_triton,
)
from playhead.kernels.triton import (
    longest_first as longest_first_triton,
)
from playhead.kernels.triton import (
    masks as masks_triton,
)
from playhead.kernels.triton import (
    norm as norm_triton,
)
from playhead.kernels.triton import (
    ordered_attention as ordered_attention_triton,
)
from playhead.kernels.triton import (
    ordered_matmul as ordered_matmul_triton,
)
from playhead.kernels.triton import (
    ordered_projection as ordered_projection_triton,
)
from playhead.kernels.triton import (
    projection as projection_triton,
)
from playhead.kernels.triton import (
    rope as rope_triton,
)
from playhead.kernels.triton import (
    translate as translate_triton,
)
from playhead.kernels.triton import (
    write_and_decode as write_and_decode_triton,
)
from playhead.kernels.triton.projection_kernels import streamed_kernel
from playhead.kernels.triton.projection_tiles import (
    FittedTiles,
    HeldTiles,
    RingTiles,
    RowTiles,
    StreamedTiles,
    gated_tiles,
    split_tiles,
    tiles_for,
)
from tests.quick_triton import describe_each_shape_once, tell_types_apart_at_once
from tests.unit.kernels.launches import compiled, compiled_beside, indices, meta
from tests.unit.kernels.read_compiled import facts_of


def decode(num_heads, num_kv_heads, head_dim, page_size, window, num_requests=32, num_splits=8, order=None):
    scratch = (meta(64, dtype=torch.float32), meta(64, dtype=torch.float32), indices(64))
    caches = [meta(64, page_size, num_kv_heads, head_dim) for _ in "kv"]
    tables = (indices(num_requests + 1, 512), indices(num_requests), indices(num_requests), None)
    q, out = meta(num_requests, num_heads, head_dim), meta(num_requests, num_heads, head_dim)
    return compiled(
        decode_triton.decode_kernel,
        lambda: decode_triton.launch_decode(q, out, *caches, *tables, 0.1, window, None, *scratch, num_splits, order),
    )


def write_and_decode(num_heads, num_kv_heads, head_dim, window, num_requests=32, num_left=0):
    """A decode step from its packed projection on."""
    scratch = (meta(64, dtype=torch.float32), meta(64, dtype=torch.float32), indices(64))
    caches = [meta(64, 16, num_kv_heads, head_dim) for _ in "kv"]
    per_request = [indices(num_requests) for _ in range(4)]
    tables, scoring = (indices(33, 512), *per_request[:2]), (None, 0.1, window, None)
    turning = (meta(head_dim), meta(head_dim), meta(4096, head_dim, dtype=torch.float32), *per_request[2:])
    qkv = meta(num_requests, (num_heads + 2 * num_kv_heads) * head_dim)
    out = meta(num_requests, left_width(num_heads, head_dim, num_left))
    call = (qkv, out, *turning, 1e-6, True, False, *caches, *tables, *scoring, *scratch, 32, None, num_left)
    kernel = write_and_decode_triton.write_and_decode_kernel
    return compiled(kernel, lambda: write_and_decode_triton.launch_write_and_decode(*call))


def decode_rows(num_heads, num_kv_heads, head_dim):
    """The requests of a step over tokens that have one query."""
    scratch = (meta(64, dtype=torch.float32), meta(64, dtype=torch.float32), indices(64))
    caches = [meta(64, 16, num_kv_heads, head_dim) for _ in "kv"]
    tables, queries = (indices(33, 512), indices(32), indices(32), None), (indices(32), indices(32))
    q, out = meta(64, num_heads, head_dim), meta(64, num_heads, head_dim)
    return compiled(
        decode_triton.decode_kernel,
        lambda: decode_triton.launch_decode_rows(q, out, *caches, *tables, 0.1, None, None, *scratch, 8, *queries),
    )


def extend(num_heads, num_kv_heads, head_dims, num_tokens, window, softcap):
    k_dim, v_dim = head_dims
    caches = [meta(64, 16, num_kv_heads, dim) for dim in head_dims]
    tables, queries = (indices(33, 512), indices(16), indices(16)), (indices(16), indices(16))
    sinks = meta(num_heads)
    q, out = meta(num_tokens, num_heads, k_dim), meta(num_tokens, num_heads, v_dim)
    return compiled(
        extend_triton.extend_kernel,
        lambda: extend_triton.launch_tiles(q, out, *caches, *tables, sinks, 0.1, window, softcap, *queries),
    )


def attend_in_order(kernel, other, num_heads, num_kv_heads, head_dim, window, num_requests=16):
    caches = [meta(64, 16, num_kv_heads, head_dim) for _ in "kv"]
    tables = (indices(num_requests + 1, 512), *(indices(num_requests) for _ in range(2)))
    queries = tuple(indices(num_requests) for _ in range(2))
    scratch = (meta(64, dtype=torch.float32), meta(64, dtype=torch.float32), indices(64))
    q, out = meta(512, num_heads, head_dim), meta(512, num_heads, head_dim)
    call = (q, out, *caches, *tables, None, 0.1, window, None, *queries, *scratch, False)
    return compiled_beside(other, kernel, lambda: ordered_attention_triton.launch_attend_in_order(*call))


def decode_in_order(*shape):
    kernels = (ordered_attention_triton.ordered_decode_kernel, ordered_attention_triton.ordered_tiles_kernel)
    return attend_in_order(*kernels, *shape)


def tiles_in_order(*shape):
    kernels = (ordered_attention_triton.ordered_tiles_kernel, ordered_attention_triton.ordered_decode_kernel)
    return attend_in_order(*kernels, *shape)


def matmul_in_order(num_rows, num_inputs, num_outputs, *, sums_chunks=False):
    """The product, or with `sums_chunks` what adds up the chunks of its long rows."""
    x, weight, out = meta(num_rows, num_inputs), meta(num_outputs, num_inputs), meta(num_rows, num_outputs)
    kernels = (ordered_matmul_triton.sum_chunks_kernel, ordered_matmul_triton.ordered_matmul_kernel)
    other, kernel = reversed(kernels) if sums_chunks else kernels
    call = (x, weight, None, out, 1.0, False)
    return compiled_beside(other, kernel, lambda: ordered_matmul_triton.launch_matmul_in_order(*call))


def gate_in_order(num_rows, num_outputs=13824, num_inputs=1152):
    x, weight = meta(num_rows, num_inputs), meta(num_outputs, num_inputs)
    launch = ordered_projection_triton.launch_gate_in_order
    return compiled(streamed_kernel, lambda: launch(x, weight, None, "gelu_tanh"))


def chunks_in_order(num_rows, num_outputs=1152, num_inputs=6912):
    x, weight = meta(num_rows, num_inputs), meta(num_outputs, num_inputs)
    tiles = ordered_projection_triton.tiles_of_chunks(x, weight)
    sums = meta(tiles.num_splits, num_rows, num_outputs, dtype=torch.float32)
    launch = projection_triton.launch_tiles
    return compiled(streamed_kernel, lambda: launch(tiles, sums, x, weight, None, in_order=True))


def normed_sum(*shape, dtype=torch.float32, in_order=True):
    num_rows = shape[-2]
    outs, norms = (meta(num_rows, 1152), meta(num_rows, 1152)), (meta(1152), meta(1152), 1e-6, True, False)
    launch = norm_triton.launch_add
    return compiled(
        norm_triton.add_norm_kernel,
        lambda: launch(
            *outs, meta(*shape, dtype=dtype), meta(num_rows, 1152), *norms, in_order=in_order, by_rows=not in_order
        ),
    )


def rope(num_heads=4, num_kv_heads=1, head_dim=256, *, num_tokens=8, together=False):
    tokens = (meta(num_tokens, num_heads, head_dim), *(meta(num_tokens, num_kv_heads, head_dim) for _ in "kv"))
    weights = [meta(heads * head_dim if together else head_dim) for heads in (num_heads, num_kv_heads)]
    table = meta(4096, head_dim, dtype=torch.float32)
    caches = [meta(64, 16, num_kv_heads, head_dim) for _ in "kv"]
    return compiled(
        rope_triton.qk_rope_write_kernel,
        lambda: rope_triton.launch_qk_rope_write(
            *tokens, *weights, table, indices(num_tokens), *caches, indices(num_tokens), 1e-6, True, False
        ),
    )


def translate(num_tokens, page_size, window):
    tables, per_token = [indices(33, 512) for _ in range(2)], [indices(num_tokens) for _ in range(3)]
    workspaces, mapping = (indices(2048), tables[0]), indices(65537)
    return compiled(
        translate_triton.translate_kernel,
        lambda: translate_triton.launch_translate(*workspaces, mapping, tables[1], *per_token, page_size, window),
    )


def choose(dtype, draws, least=None):
    per_row = (least, meta(8, dtype=torch.float32), *(meta(8, dtype=torch.int64) for _ in range(3)))
    scratch = (meta(8, 256, dtype=torch.int64), indices(8))
    logits = meta(8, 262144, dtype=dtype)
    return compiled(
        choose_triton.choose_kernel,
        lambda: choose_triton.launch_choose_tokens(logits, *per_row, *scratch, 1e-5, draws),
    )


def choose_keys(draws):
    per_row = (meta(8, dtype=torch.float32), *(meta(8, dtype=torch.int64) for _ in range(3)))
    call = (meta(8, 131072), *per_row, meta(8, 256, dtype=torch.int64), indices(8), 131072, 1e-5, draws)
    return compiled(choose_triton.choose_kernel, lambda: choose_triton.launch_choose_keys(*call))


def head(num_rows, draws):
    per_row = (meta(num_rows, dtype=torch.float32), *(meta(num_rows, dtype=torch.int64) for _ in range(4)))
    call = (meta(num_rows, 1152), meta(262144, 1152), 1.0, math.inf, *per_row, indices(num_rows), 1e-5, draws)
    return compiled(head_triton.head_kernel, lambda: head_triton.launch_head_tokens(*call))


def head_logits(num_rows):
    call = (meta(num_rows, 262144), meta(num_rows, 1152), meta(262144, 1152), 1.0, math.inf)
    return compiled(head_triton.head_kernel, lambda: head_triton.launch_head_logits(*call))


def embed_share():
    call = (indices(8), meta(131072, 1152), 33.75, 131072)
    return compiled(embedding_triton.embed_kernel, lambda: embedding_triton.launch_embed_share(*call))


def kernel_of(tiles):
    return {
        RowTiles: projection_triton.row_kernel,
        HeldTiles: projection_triton.held_kernel,
        StreamedTiles: projection_triton.streamed_kernel,
        RingTiles: projection_triton.ring_kernel,
        FittedTiles: projection_triton.fitted_kernel,
    }[type(tiles)]


def project(num_rows, num_outputs, num_inputs):
    x, out, weight = meta(num_rows, num_inputs), meta(num_rows, num_outputs), meta(num_outputs, num_inputs)
    return compiled(
        kernel_of(tiles_for(x, weight)),
        lambda: projection_triton.launch_project(out, x, weight, meta(num_outputs), 0.5, True),
    )


def project_parts(num_rows, num_outputs, num_inputs):
    x, weight = meta(num_rows, num_inputs), meta(num_outputs, num_inputs)
    tiles = split_tiles(x, weight)
    parts = meta(tiles.num_splits, num_rows, num_outputs, dtype=torch.float32)
    return compiled(kernel_of(tiles), lambda: projection_triton.launch_tiles(tiles, parts, x, weight, None))


def project_gated(num_rows, num_outputs=13824, num_inputs=1152, *, has_bias=True):
    """With a bias no ring is used."""
    x, weight = meta(num_rows, num_inputs), meta(num_outputs, num_inputs)
    bias = meta(num_outputs) if has_bias else None
    return compiled(
        kernel_of(gated_tiles(x, weight, bias)),
        lambda: projection_triton.launch_project_gated(x, weight, bias, "gelu_tanh"),
    )


def without_bias(*shape):
    return project_gated(*shape, has_bias=False)


def project_normed():
    norms = (meta(2048), meta(2048), 1e-6, True, False)
    call = (meta(1, 3072), meta(1, 2048), None, None, 1.0, meta(1, 2048), *norms, meta(3072, 2048), None, None, 0)
    return compiled(projection_triton.row_kernel, lambda: projection_triton.launch_project_normed(*call))


def merge_and_multiply(num_outputs, num_heads, head_dim, num_left):
    left = meta(1, left_width(num_heads, head_dim, num_left), dtype=torch.float32)
    weight = meta(num_outputs, num_heads * head_dim)
    return compiled(
        left_triton.merging_row_kernel, lambda: projection_triton.merge_and_multiply(left, weight, num_left)
    )


def least_keys(dtype):
    numbers = (meta(8, dtype=torch.float32), meta(8, dtype=torch.int64), *(meta(8, dtype=torch.float32) for _ in "pm"))
    return compiled(
        filters_triton.least_keys_kernel,
        lambda: filters_triton.launch_least_keys(meta(8, 151936, dtype=dtype), *numbers, 1e-5),
    )


KERNELS = {
    "keys of a share, greedy": lambda: choose_keys(False),
    "keys of a share, drawn": lambda: choose_keys(True),
    "embedding of a share": embed_share,
    "head 8 rows, greedy": lambda: head(8, False),
    "head 32 rows, drawn": lambda: head(32, True),
    "head 128 rows, drawn": lambda: head(128, True),
    "head 128 rows, logits": lambda: head_logits(128),
    "project 1 row": lambda: project(1, 1536, 1152),
    "project 1 row, many inputs": lambda: project(1, 2560, 10240),
    "project 8 rows": lambda: project(8, 1536, 1152),
    "project 16 rows": lambda: project(16, 20480, 2560),
    "project 1 row gated": lambda: project_gated(1),
    "project 16 rows gated": lambda: project_gated(16),
    "project 128 rows gated": lambda: project_gated(128),
    "two an SM: 8 rows gated": lambda: project_gated(8),
    "two an SM: 8 rows gated, wider": lambda: project_gated(8, 16384, 2048),
    "one an SM: 256 rows gated": lambda: project_gated(256, 16384, 2048),
    "one an SM: 32 rows in halves": lambda: project(32, 1536, 1152),
    "two an SM: 16 rows gated": lambda: project_gated(16, 16384, 2048),
    "three an SM: 8 rows gated": lambda: project_gated(8, 20480, 2560),
    "three an SM: 64 rows gated": lambda: project_gated(64, 20480, 2560),
    "three an SM: 128 rows gated": lambda: project_gated(128, 20480, 2560),
    "one an SM: fitted 128 rows": lambda: without_bias(128, 20480, 2560),
    "two an SM: ring of 1 row": lambda: without_bias(1),
    "two an SM: ring of 8 rows": lambda: without_bias(8, 16384, 2048),
    "two an SM: ring of 16 rows": lambda: without_bias(16),
    "two an SM: ring of 32 rows": lambda: without_bias(32, 16384, 2048),
    "two an SM: ring of 64 rows": lambda: without_bias(64),
    "three an SM: ring of 8 rows": lambda: without_bias(8, 20480, 2560),
    "three an SM: ring of 16 rows": lambda: without_bias(16, 20480, 2560),
    "three an SM: ring of 32 rows": lambda: without_bias(32, 20480, 2560),
    "three an SM: 32 rows in parts": lambda: project_parts(32, 2560, 2048),
    "one an SM: 32 rows in parts": lambda: project_parts(32, 2048, 2048),
    "one an SM: 128 rows in parts": lambda: project_parts(128, 2560, 2048),
    "project 256 rows": lambda: project(256, 1536, 1152),
    "project 256 rows gated": lambda: project_gated(256),
    "project 256 rows in parts": lambda: project_parts(256, 1152, 6912),
    "project 8 rows in parts": lambda: project_parts(8, 1152, 1024),
    "project 32 rows in parts": lambda: project_parts(32, 1152, 6912),
    "project 128 rows in parts": lambda: project_parts(128, 1152, 6912),
    "project 1 row of a normed sum": project_normed,
    "decode 256 full": lambda: decode(4, 1, 256, 16, None),
    "decode 256 window page 1": lambda: decode(8, 4, 256, 1, 1024),
    "whole requests 256, one wave": lambda: decode(4, 1, 256, 16, 512, num_requests=128, num_splits=1),
    "whole requests 256": lambda: decode(4, 1, 256, 16, 512, num_requests=256, num_splits=1),
    "many requests 64": lambda: decode(32, 8, 64, 16, None, num_requests=64, order=indices(64)),
    "many requests 64, 16 heads": lambda: decode(64, 4, 64, 16, 128, num_requests=128, order=indices(128)),
    "many requests 128": lambda: decode(16, 8, 128, 16, None, num_requests=64, order=indices(64)),
    "many requests 256": lambda: decode(8, 4, 256, 16, 1024, num_requests=128, order=indices(128)),
    "longest first": lambda: compiled(
        longest_first_triton.longest_first_kernel, lambda: longest_first_triton.launch_longest_first(indices(256))
    ),
    "decode 128 full": lambda: decode(16, 8, 128, 16, None),
    "decode 64 full": lambda: decode(32, 8, 64, 16, None),
    "decode 256 with the newest key": lambda: write_and_decode(4, 1, 256, 512),
    "decode 64 with the newest key": lambda: write_and_decode(32, 8, 64, None),
    "leave parts 256": lambda: write_and_decode(4, 1, 256, 512, 1, 16),
    "leave parts 64": lambda: write_and_decode(32, 8, 64, None, 1, 4),
    "merge parts 256": lambda: merge_and_multiply(1152, 4, 256, 16),
    "merge parts 64": lambda: merge_and_multiply(2048, 32, 64, 4),
    "decode 256 beside prompts": lambda: decode_rows(8, 4, 256),
    "extend 256": lambda: extend(4, 1, (256, 256), 8192, None, None),
    "extend 256 window small": lambda: extend(4, 1, (256, 256), 1024, 512, 50.0),
    "extend 256 window narrow": lambda: extend(4, 1, (256, 256), 128, 512, None),
    "extend 192/128 window": lambda: extend(64, 8, (192, 128), 8192, 128, None),
    "extend 128 narrow": lambda: extend(16, 8, (128, 128), 128, None, None),
    "extend 64 narrow": lambda: extend(32, 8, (64, 64), 128, None, None),
    "extend 64": lambda: extend(32, 8, (64, 64), 8192, None, None),
    "in order: decode 256 window": lambda: decode_in_order(4, 1, 256, 512),
    "in order: decode 64": lambda: decode_in_order(32, 8, 64, None),
    "in order: whole requests 256, one wave": lambda: decode_in_order(4, 1, 256, 512, 128),
    "in order: whole requests 256": lambda: decode_in_order(4, 1, 256, 512, 256),
    "in order: tiles 256 window": lambda: tiles_in_order(4, 1, 256, 512),
    "in order: tiles 128": lambda: tiles_in_order(16, 8, 128, None),
    "in order: tiles 64": lambda: tiles_in_order(32, 8, 64, None),
    "in order: matmul": lambda: matmul_in_order(8, 1152, 1536),
    "in order: wide matmul": lambda: matmul_in_order(8, 1152, 13824),
    "in order: matmul in chunks": lambda: matmul_in_order(8, 6912, 1152),
    "in order: sums of chunks": lambda: matmul_in_order(8, 6912, 1152, sums_chunks=True),
    "in order: wide matmul 256 rows": lambda: matmul_in_order(256, 1152, 13824),
    "in order: matmul in chunks 2048 rows": lambda: matmul_in_order(2048, 6912, 1152),
    "in order: gated matmul 8 rows": lambda: gate_in_order(8),
    "in order: gated matmul 128 rows": lambda: gate_in_order(128),
    "in order: gated matmul 256 rows": lambda: gate_in_order(256),
    "in order: chunks of a matmul 8 rows": lambda: chunks_in_order(8),
    "in order: chunks of a matmul 256 rows": lambda: chunks_in_order(256),
    "in order: norm": lambda: normed_sum(8, 1152, dtype=torch.bfloat16),
    "in order: norm of chunks": lambda: normed_sum(7, 8, 1152),
    "norm of 128 rows in parts": lambda: normed_sum(7, 128, 1152, in_order=False),
    "norm of 129 rows in parts": lambda: normed_sum(7, 129, 1152, in_order=False),
    "rope 256": rope,
    "rope 256, more kv heads": lambda: rope(8, 4, 256),
    "rope 64": lambda: rope(32, 8, 64),
    "many tokens: rope 256": lambda: rope(num_tokens=512),
    "many tokens: rope 256, more kv heads": lambda: rope(8, 4, 256, num_tokens=512),
    "many tokens: rope 64": lambda: rope(32, 8, 64, num_tokens=512),
    "translate page 16": lambda: translate(128, 16, 1024),
    "translate page 1": lambda: translate(1, 1, 512),
    "choose greedy bf16": lambda: choose(torch.bfloat16, False),
    "choose greedy fp32": lambda: choose(torch.float32, False),
    "choose draw bf16": lambda: choose(torch.bfloat16, True),
    "choose draw fp32": lambda: choose(torch.float32, True),
    "choose filtered bf16": lambda: choose(torch.bfloat16, True, meta(8, dtype=torch.int64)),
    "least_keys bf16": lambda: least_keys(torch.bfloat16),
    "least_keys fp32": lambda: least_keys(torch.float32),
    "rope, heads normed together": lambda: rope(32, 32, 128, together=True),
    "rms_norm": lambda: compiled(
        norm_triton.rms_norm_kernel, lambda: norm_triton.launch_rms_norm(meta(8, 1152), meta(1152), 1e-6, True, False)
    ),
    "add_rms_norm": lambda: compiled(
        norm_triton.add_norm_kernel,
        lambda: norm_triton.launch_add_rms_norm(
            meta(8, 1152), meta(8, 1152), meta(1152), meta(1152), 1e-6, True, False
        ),
    ),
    "norm_add": lambda: compiled(
        norm_triton.add_norm_kernel,
        lambda: norm_triton.launch_norm_add(meta(8, 4096), meta(8, 4096), meta(4096), 1e-6, False, False),
    ),
    "layer_norm": lambda: compiled(
        norm_triton.rms_norm_kernel, lambda: norm_triton.launch_rms_norm(meta(8, 8192), meta(8192), 1e-5, False, True)
    ),
    "gated_activation": lambda: compiled(
        activation_triton.gated_activation_kernel,
        lambda: activation_triton.launch_gated_activation(meta(8, 2048), "gelu_tanh", 1.702, 7.0),
    ),
    "embed": lambda: compiled(
        embedding_triton.embed_kernel,
        lambda: embedding_triton.launch_embed(meta(8, dtype=torch.int64), meta(64, 1152), 34.0),
    ),
    "forbid": lambda: compiled(
        masks_triton.forbid_kernel, lambda: masks_triton.launch_forbid(meta(8, 262144), indices(8, 8192))
    ),
    "softcap": lambda: compiled(
        embedding_triton.softcap_kernel,
        lambda: embedding_triton.launch_softcap(meta(8, 4096, dtype=torch.float32), 30.0),
    ),
}


def main() -> None:
    describe_each_shape_once()
    tell_types_apart_at_once()
    for name, build in KERNELS.items():
        binary, options, num_programs = build()
        row = {"name": name, "num_programs": num_programs, "num_warps": options.get("num_warps", 4), **facts_of(binary)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
