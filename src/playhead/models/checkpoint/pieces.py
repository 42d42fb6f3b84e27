"""Which tensors of a checkpoint make up which parameter of the decoder.

A parameter is filled by pieces: q, k and v are rows of one fused matrix, a quantised expert matrix is two tensors. The
names are those of the hub's safetensors files; other formats translate theirs to these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from playhead.layers.spec import MoeSpec, QKNorm
from playhead.models.family import Family
from playhead.models.spec import LayerSpec, ModelSpec, Placement

MXFP4_BLOCK = 32
"""Values that share one scale, stored two to a byte."""


class Conversion(Enum):
    """What is done to a piece on its way in.

    Experts are stored input-major with gate and up interleaved; here they are output-major, gate before up.
    """

    NONE = "none"
    EXPERTS_GATE_UP = "experts_gate_up"
    EXPERTS_GATE_UP_BIAS = "experts_gate_up_bias"
    EXPERTS_DOWN = "experts_down"
    MXFP4_GATE_UP = "mxfp4_gate_up"
    MXFP4_DOWN = "mxfp4_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`sources` are names and shapes in the checkpoint; `rows` of the target they fill, as (first, count), or all."""

    target: str
    sources: tuple[tuple[str, tuple[int, ...]], ...]
    rows: tuple[int, int] | None = None
    conversion: Conversion = Conversion.NONE


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


def pieces_of(spec: ModelSpec, family: Family, names: Collection[str]) -> list[Piece]:
    """Everything the decoder needs. `names` decide only between forms a family is published in."""
    prefix = weight_prefix(family, names)
    vocab_shape = (spec.vocab_size, spec.hidden_size)
    embedding = embedding_name(family, names)
    if spec.is_tied and embedding not in names:
        # A tied checkpoint may hold the one matrix under the head's name alone.
        embedding = next((name for name in family.head_names if name in names), embedding)
    pieces = [
        Piece(target="embedding_VM", sources=((embedding, vocab_shape),)),
        Piece(target="final_norm.weight", sources=((f"{prefix}norm.weight", (spec.hidden_size,)),)),
    ]
    if not spec.is_tied:
        pieces.append(Piece(target="lm_head.weight", sources=((head_name(family, names), vocab_shape),)))
    for i, layer in enumerate(spec.layers):
        source, target = f"{prefix}layers.{i}", f"blocks.{i}"
        pieces += _attention_pieces(layer, spec.hidden_size, source, target)
        pieces += _norm_pieces(layer, spec.hidden_size, source, target)
        if isinstance(layer.mlp, MoeSpec):
            pieces += _expert_pieces(layer.mlp, spec.hidden_size, source, target, names)
        else:
            parts = {"gate_proj": layer.mlp.size, "up_proj": layer.mlp.size}
            fused = f"{target}.mlp.gate_up"
            pieces += _stacked(f"{source}.mlp", fused, parts, spec.hidden_size, has_bias=layer.mlp.has_bias)
            down = {"down_proj": spec.hidden_size}
            pieces += _stacked(f"{source}.mlp", f"{target}.mlp.down", down, layer.mlp.size, has_bias=layer.mlp.has_bias)
    return pieces


def is_ignorable(name: str, spec: ModelSpec, family: Family) -> bool:
    """Tensors a checkpoint may carry and the decoder has no use for."""
    is_other_part = name.startswith(family.ignored_prefixes) if family.ignored_prefixes else False
    is_tied_head = spec.is_tied and name in family.head_names  # the embedding once more; `as_stored` has compared them
    return is_other_part or is_tied_head or name.endswith("rotary_emb.inv_freq")


def _stacked(source: str, target: str, parts: dict[str, int], num_inputs: int, *, has_bias: bool) -> Iterator[Piece]:
    """One linear map whose rows are several tensors', in order."""
    first_row = 0
    for name, num_rows in parts.items():
        rows = (first_row, num_rows)
        weight = (f"{source}.{name}.weight", (num_rows, num_inputs))
        yield Piece(target=f"{target}.weight", sources=(weight,), rows=rows)
        if has_bias:
            yield Piece(target=f"{target}.bias", sources=((f"{source}.{name}.bias", (num_rows,)),), rows=rows)
        first_row += num_rows


def _attention_pieces(layer: LayerSpec, hidden_size: int, source: str, target: str) -> Iterator[Piece]:
    attention = layer.attention
    source, target = f"{source}.self_attn", f"{target}.attention"
    parts = {"q_proj": attention.q_size, "k_proj": attention.k_size, "v_proj": attention.v_size}
    yield from _stacked(source, f"{target}.qkv", parts, hidden_size, has_bias=attention.has_qkv_bias)
    value_size = attention.num_heads * attention.v_head_dim
    out = {"o_proj": hidden_size}
    yield from _stacked(source, f"{target}.out", out, value_size, has_bias=attention.has_output_bias)
    if attention.qk_norm is not QKNorm.NONE:
        is_full = attention.qk_norm is QKNorm.FULL
        for name, full_size in (("q_norm", attention.q_size), ("k_norm", attention.k_size)):
            size = full_size if is_full else attention.k_head_dim
            yield Piece(target=f"{target}.{name}.weight", sources=((f"{source}.{name}.weight", (size,)),))
    if attention.has_sinks:
        yield Piece(target=f"{target}.sinks_H", sources=((f"{source}.sinks", (attention.num_heads,)),))


def _norm_pieces(layer: LayerSpec, hidden_size: int, source: str, target: str) -> Iterator[Piece]:
    # The hub's `post_attention_layernorm` stands before the MLP in old families and after attention in later ones.
    names = {
        Placement.PRE: {"pre_attention_norm": "input_layernorm", "pre_mlp_norm": "post_attention_layernorm"},
        Placement.PARALLEL: {"pre_attention_norm": "input_layernorm"},
        Placement.POST: {
            "post_attention_norm": "post_attention_layernorm",
            "post_mlp_norm": "post_feedforward_layernorm",
        },
        Placement.SANDWICH: {
            "pre_attention_norm": "input_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            "pre_mlp_norm": "pre_feedforward_layernorm",
            "post_mlp_norm": "post_feedforward_layernorm",
        },
    }
    for ours, theirs in names[layer.placement].items():
        yield Piece(target=f"{target}.{ours}.weight", sources=((f"{source}.{theirs}.weight", (hidden_size,)),))


def _expert_pieces(moe: MoeSpec, hidden_size: int, source: str, target: str, names: Collection[str]) -> Iterator[Piece]:
    num_experts, both = moe.num_experts, 2 * moe.size
    source, target = f"{source}.mlp", f"{target}.mlp"
    yield Piece(target=f"{target}.router_XM", sources=((f"{source}.router.weight", (num_experts, hidden_size)),))
    yield Piece(target=f"{target}.router_bias_X", sources=((f"{source}.router.bias", (num_experts,)),))
    gate_up, down = f"{source}.experts.gate_up_proj", f"{source}.experts.down_proj"
    yield Piece(
        target=f"{target}.gate_up_bias_XI",
        sources=((f"{gate_up}_bias", (num_experts, both)),),
        conversion=Conversion.EXPERTS_GATE_UP_BIAS,
    )
    yield Piece(target=f"{target}.down_bias_XM", sources=((f"{down}_bias", (num_experts, hidden_size)),))
    if f"{gate_up}_blocks" in names:
        yield Piece(
            target=f"{target}.gate_up_XIM",
            sources=_mxfp4_sources(gate_up, num_experts, both, hidden_size),
            conversion=Conversion.MXFP4_GATE_UP,
        )
        yield Piece(
            target=f"{target}.down_XMI",
            sources=_mxfp4_sources(down, num_experts, hidden_size, moe.size),
            conversion=Conversion.MXFP4_DOWN,
        )
    else:
        yield Piece(
            target=f"{target}.gate_up_XIM",
            sources=((gate_up, (num_experts, hidden_size, both)),),
            conversion=Conversion.EXPERTS_GATE_UP,
        )
        yield Piece(
            target=f"{target}.down_XMI",
            sources=((down, (num_experts, moe.size, hidden_size)),),
            conversion=Conversion.EXPERTS_DOWN,
        )


def _mxfp4_sources(
    name: str, num_experts: int, num_outputs: int, num_inputs: int
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    num_blocks = num_inputs // MXFP4_BLOCK
    blocks = (num_experts, num_outputs, num_blocks, MXFP4_BLOCK // 2)
    return (f"{name}_blocks", blocks), (f"{name}_scales", blocks[:3])
