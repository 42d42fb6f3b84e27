"""Which tensors of a checkpoint make up which parameter of the decoder, as data.

A parameter is filled by pieces: q, k and v are rows of one fused matrix, a quantised expert matrix is two tensors. The
names are those of the hub's safetensors files; other formats translate theirs to these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from playhead.errors import CheckpointError
from playhead.layers.shard import WHOLE, Shard
from playhead.layers.spec import AttentionSpec, MlpSpec, MoeSpec, QKNorm
from playhead.models.checkpoint.sources import Part
from playhead.models.family import Family
from playhead.models.spec import LayerSpec, ModelSpec, Placement

MXFP4_BLOCK = 32
"""Values that share one scale, stored two to a byte."""

Names = Mapping[str, tuple[str, ...]]
Sources = tuple[tuple[str, tuple[int, ...]], ...]

# What checkpoints call the parts of a layer. A part with several names has the rows of the first tensor, then those of
# the second. `Family.names` replaces entries; one name where there are several here means one tensor with all rows.
NAMES: Names = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "attention.q_norm": ("self_attn.q_norm",),
    "attention.k_norm": ("self_attn.k_norm",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
    "pre_attention_norm": ("input_layernorm",),
    "post_attention_norm": ("post_attention_layernorm",),
    "pre_mlp_norm": ("pre_feedforward_layernorm",),
    "post_mlp_norm": ("post_feedforward_layernorm",),
}
# Where no norm follows attention, the one before the MLP has the name that says "after attention".
NAMES_WITHOUT_POST_NORMS: Names = {"pre_mlp_norm": ("post_attention_layernorm",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows of one parameter, and where they come from.

    `sources` are names and whole shapes in the checkpoint, two of them for MXFP4: blocks and scales. `rows` of the
    target are filled, as (first, count); None means all. The source has the same rows and no others, unless it
    `is_fused`: then it has the target's rows, all of them.

    `split_axis` is the axis along which ranks share the parameter: 0 for the outputs of qkv, gate and up, for the
    vocabulary, for experts; for the projections back 1, their inputs, or 0 where ranks are exact. None means that every
    rank has a copy. `num_units` are the heads or experts along that axis, which stay whole.

    gpt-oss stores experts input-major (`is_transposed`) with gate and up interleaved (`is_interleaved`); the decoder
    has them output-major, gate before up.
    """

    target: str
    sources: Sources
    split_axis: int | None
    num_units: int | None = None
    rows: tuple[int, int] | None = None
    is_fused: bool = False
    is_transposed: bool = False
    is_interleaved: bool = False

    @property
    def is_mxfp4(self) -> bool:
        return len(self.sources) == 2

    def span(self, shard: Shard) -> tuple[int, int]:
        """What a rank has of the piece along its axis, counted from the piece's own start."""
        axis = self.split_axis or 0
        count = self.rows[1] if self.is_fused and self.rows else self.sources[0][1][axis]
        return (0, count) if self.split_axis is None else shard.span(count, self.num_units)

    def part(self, shard: Shard = WHOLE) -> Part | None:
        """What a rank reads of the sources; None means everything."""
        if not self.is_fused and (self.split_axis is None or shard.num_ranks == 1):
            return None
        (start, stop), before = self.span(shard), self.rows[0] if self.is_fused and self.rows else 0
        return Part(axis=self.split_axis or 0, start=before + start, stop=before + stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearMap:
    """A linear map of a layer: the output counts of its parts, which lie one after the other.

    `units` are those of each part along the axis that is split; None means that ranks may cut anywhere.
    """

    target: str
    sizes: tuple[int, ...]
    num_inputs: int
    has_bias: bool
    split_axis: int
    units: tuple[int | None, ...]

    def pieces(self, names: tuple[str, ...]) -> Iterator[Piece]:
        is_fused = len(names) < len(self.sizes)
        first_row = 0
        for i, size in enumerate(self.sizes):
            name, outputs = (names[0], sum(self.sizes)) if is_fused else (names[i], size)
            shape, rows = (outputs, self.num_inputs), (first_row, size)
            weight = _plain(f"{self.target}.weight", f"{name}.weight", shape, split_axis=self.split_axis)
            yield replace(weight, rows=rows, num_units=self.units[i], is_fused=is_fused)
            if self.has_bias:
                # The bias of a map that is split by inputs is added once, to the sum over ranks.
                axis = 0 if self.split_axis == 0 else None
                bias = _plain(f"{self.target}.bias", f"{name}.bias", (outputs,), split_axis=axis)
                yield replace(bias, rows=rows, num_units=self.units[i], is_fused=is_fused)
            first_row += size


def weight_prefix(family: Family, names: Collection[str]) -> str:
    """What the decoder's tensor names start with in this checkpoint."""
    for prefix in family.weight_prefixes:
        if f"{prefix}embed_tokens.weight" in names or f"{prefix}norm.weight" in names:
            return prefix
    return family.weight_prefixes[0]


def embedding_name(family: Family, names: Collection[str]) -> str:
    return f"{weight_prefix(family, names)}embed_tokens.weight"


def head_name(family: Family, names: Collection[str]) -> str:
    """What the head's tensor is called in this checkpoint."""
    return next((name for name in family.head_names if name in names), family.head_names[0])


def pieces_of(spec: ModelSpec, family: Family, names: Collection[str], shard: Shard = WHOLE) -> list[Piece]:
    """Everything the decoder needs. `names` decide only between forms a family is published in.

    A `CheckpointError` if a matrix cannot have the form that they decide for.
    """
    prefix = weight_prefix(family, names)
    vocab_shape = (spec.vocab_size, spec.hidden_size)
    embedding = embedding_name(family, names)
    if spec.is_tied and embedding not in names:
        # A tied checkpoint may hold the one matrix under the head's name alone.
        embedding = next((name for name in family.head_names if name in names), embedding)
    pieces = [
        _plain("embedding_VM", embedding, vocab_shape, split_axis=0),
        _plain("final_norm.weight", f"{prefix}norm.weight", (spec.hidden_size,), split_axis=None),
    ]
    if not spec.is_tied:
        pieces.append(_plain("lm_head.weight", head_name(family, names), vocab_shape, split_axis=0))
    called = {**NAMES, **(NAMES_WITHOUT_POST_NORMS if family.placement is Placement.PRE else {}), **family.names}
    is_mxfp4 = any(name.endswith("gate_up_proj_blocks") for name in names)
    for i, layer in enumerate(spec.layers):
        maps = _linear_maps(layer, spec.hidden_size, shard)
        linear = [piece for one in maps for piece in one.pieces(called[one.target])]
        for piece in (*linear, *_other_pieces(layer, spec.hidden_size, called, shard, is_mxfp4=is_mxfp4)):
            sources = tuple((f"{prefix}layers.{i}.{name}", shape) for name, shape in piece.sources)
            pieces.append(replace(piece, target=f"blocks.{i}.{piece.target}", sources=sources))
    return pieces


def is_ignorable(name: str, family: Family) -> bool:
    """Tensors a checkpoint may carry and the decoder has no use for."""
    return name.startswith(family.ignored_prefixes) or name.endswith("rotary_emb.inv_freq")


def _other_pieces(
    layer: LayerSpec, hidden_size: int, called: Names, shard: Shard, *, is_mxfp4: bool
) -> Iterator[Piece]:
    """One layer's norms, sinks and experts, with the names they have inside the layer."""
    attention = layer.attention
    for norm in layer.placement.norms:
        yield _plain(f"{norm}.weight", f"{called[norm][0]}.weight", (hidden_size,), split_axis=None)
    if attention.qk_norm is not QKNorm.NONE:
        q_size, k_size, _ = attention.qkv_sizes
        units = shard.query_units(attention), attention.num_kv_heads
        for norm, full_size, num_units in (
            ("attention.q_norm", q_size, units[0]),
            ("attention.k_norm", k_size, units[1]),
        ):
            size, axis = (full_size, 0) if attention.qk_norm is QKNorm.FULL else (attention.k_head_dim, None)
            piece = _plain(f"{norm}.weight", f"{called[norm][0]}.weight", (size,), split_axis=axis)
            yield replace(piece, num_units=num_units)
    if attention.has_sinks:
        sinks = _plain("attention.sinks_H", "self_attn.sinks", (attention.num_heads,), split_axis=0)
        yield replace(sinks, num_units=shard.query_units(attention))
    if isinstance(layer.mlp, MoeSpec):
        yield from _expert_pieces(layer.mlp, hidden_size, is_mxfp4=is_mxfp4)


def _linear_maps(layer: LayerSpec, hidden_size: int, shard: Shard) -> Iterator[LinearMap]:
    attention, mlp = layer.attention, layer.mlp
    yield from _attention_maps(attention, hidden_size, shard)
    if isinstance(mlp, MlpSpec):
        halves, bias = (mlp.size, mlp.size), mlp.has_bias
        yield LinearMap(
            target="mlp.gate_up",
            sizes=halves,
            num_inputs=hidden_size,
            has_bias=bias,
            split_axis=0,
            units=(None, None),
        )
        yield LinearMap(
            target="mlp.down",
            sizes=(hidden_size,),
            num_inputs=mlp.size,
            has_bias=bias,
            split_axis=0 if shard.is_exact else 1,
            units=(None,),
        )


def _attention_maps(attention: AttentionSpec, hidden_size: int, shard: Shard) -> Iterator[LinearMap]:
    query_units, kv_units = shard.query_units(attention), attention.num_kv_heads
    yield LinearMap(
        target="attention.qkv",
        sizes=tuple(attention.qkv_sizes),
        num_inputs=hidden_size,
        has_bias=attention.has_qkv_bias,
        split_axis=0,
        units=(query_units, kv_units, kv_units),
    )
    yield LinearMap(
        target="attention.out",
        sizes=(hidden_size,),
        num_inputs=attention.output_size,
        has_bias=attention.has_output_bias,
        split_axis=0 if shard.is_exact else 1,
        units=(None if shard.is_exact else query_units,),
    )


def _expert_pieces(moe: MoeSpec, hidden_size: int, *, is_mxfp4: bool) -> Iterator[Piece]:
    """Ranks share experts; the router, which decides among all of them, is everywhere."""
    count, both = moe.num_experts, 2 * moe.size
    gate_up, down = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"

    def matrix(target: str, name: str, num_outputs: int, num_inputs: int) -> Piece:
        sources: Sources = ((name, (count, num_inputs, num_outputs)),)
        if is_mxfp4:
            if num_inputs % MXFP4_BLOCK:
                wanted = f"whole blocks of {MXFP4_BLOCK}"
                raise CheckpointError(
                    f"{name}_blocks", f"rows of {num_inputs} numbers", wanted, "Use another checkpoint."
                )
            blocks = (count, num_outputs, num_inputs // MXFP4_BLOCK, MXFP4_BLOCK // 2)
            sources = (f"{name}_blocks", blocks), (f"{name}_scales", blocks[:3])
        return Piece(target=target, sources=sources, split_axis=0, num_units=count, is_transposed=not is_mxfp4)

    yield _plain("mlp.router_XM", "mlp.router.weight", (count, hidden_size), split_axis=None)
    yield _plain("mlp.router_bias_X", "mlp.router.bias", (count,), split_axis=None)
    yield replace(matrix("mlp.gate_up_XIM", gate_up, both, hidden_size), is_interleaved=True)
    bias = _plain("mlp.gate_up_bias_XI", f"{gate_up}_bias", (count, both), split_axis=0)
    yield replace(bias, num_units=count, is_interleaved=True)
    yield matrix("mlp.down_XMI", down, hidden_size, moe.size)
    bias = _plain("mlp.down_bias_XM", f"{down}_bias", (count, hidden_size), split_axis=0)
    yield replace(bias, num_units=count)


def _plain(target: str, name: str, shape: tuple[int, ...], *, split_axis: int | None) -> Piece:
    """A parameter that is one tensor."""
    return Piece(target=target, sources=((name, shape),), split_axis=split_axis)
