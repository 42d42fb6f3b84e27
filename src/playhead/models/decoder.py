"""The decoder: every family is this class with another spec.

Shapes: T tokens, N rows whose logits are wanted, M hidden, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from playhead.attention.base import QKTransform
from playhead.kernels.elementwise import softcap_
from playhead.kernels.head import NO_CAP, can_choose, head_logits, head_tokens
from playhead.layers.attention import AttentionBlock
from playhead.layers.linear import GatedMlp, Linear, PlainLinear, Product, WeightFormat, normed_end, product_of_stream
from playhead.layers.moe import MoeMlp
from playhead.layers.norm import Norm, Stream, are_one_kernel
from playhead.layers.rope import Rope
from playhead.layers.spec import MoeSpec, QKNorm, RopeSpec
from playhead.models.context import ForwardContext, RowsRead
from playhead.models.spec import LayerSpec, ModelSpec, Placement


class DecoderLayer(nn.Module):
    """One layer. Norms that its placement does not have are None."""

    mlp: GatedMlp | MoeMlp
    pre_attention_norm: Norm | None
    post_attention_norm: Norm | None
    pre_mlp_norm: Norm | None
    post_mlp_norm: Norm | None

    def __init__(self, index: int, spec: LayerSpec, hidden_size: int, weights: WeightFormat) -> None:
        super().__init__()
        dtype, device = weights.dtype, weights.device

        def norm(name: str) -> Norm | None:
            has_it = name in spec.placement.norms
            return Norm(spec.norm, hidden_size, dtype=dtype, device=device) if has_it else None

        self.index, self.spec = index, spec
        self.attention = AttentionBlock(spec.attention, hidden_size, spec.norm, weights)
        if isinstance(spec.mlp, MoeSpec):
            self.mlp = MoeMlp(spec.mlp, hidden_size, weights)
        else:
            self.mlp = GatedMlp(spec.mlp, hidden_size, weights)
        self.pre_attention_norm = norm("pre_attention_norm")
        self.pre_mlp_norm = norm("pre_mlp_norm")
        self.post_attention_norm = norm("post_attention_norm")
        self.post_mlp_norm = norm("post_mlp_norm")

    def forward(self, stream: Stream, ctx: ForwardContext, read: RowsRead | None = None) -> Stream:
        """The stream behind this layer: of all tokens, or of the rows that are read."""
        room_TX = ctx.room(self.index, stream.residual_TM)
        if self.spec.placement is Placement.PARALLEL:
            return self._side_by_side(stream, ctx, room_TX, read)
        residual_TM, qkv_TX = product_of_stream(self.attention.qkv, stream, self.pre_attention_norm, room_TX)
        attended_TY, live_T = ctx.attend(self.index, qkv_TX), ctx.live_rows()
        if read is not None:
            residual_TM, attended_TY = read.of(residual_TM), read.of(attended_TY)
            live_T = None if live_T is None else read.live()
        attended = Product(linear=self.attention.out, x_TI=attended_TY, num_left=ctx.parts_left(self.index))
        stream = Stream(residual_TM=residual_TM, output=attended, output_norm=self.post_attention_norm)
        residual_TM, fed = self.mlp.of_stream(stream, self.pre_mlp_norm, live_T)
        return Stream(residual_TM=residual_TM, output=fed, output_norm=self.post_mlp_norm)

    @property
    def can_merge_attention(self) -> bool:
        """Whether attention may leave its output in parts: the product that reads it is one op with what follows."""
        out, behind = self.attention.out, self.pre_mlp_norm
        if behind is None or self.spec.placement is Placement.PARALLEL or not isinstance(self.mlp, GatedMlp):
            return False
        is_one_op = isinstance(out, PlainLinear) and out.can_merge and are_one_kernel(self.post_attention_norm, behind)
        return is_one_op and self.spec.attention.qk_norm is not QKNorm.FULL

    def _side_by_side(
        self, stream: Stream, ctx: ForwardContext, room_TX: torch.Tensor, read: RowsRead | None
    ) -> Stream:
        """Attention and MLP of the same input; the output is their sum."""
        assert isinstance(self.mlp, GatedMlp), "no family runs experts beside attention"
        residual_TM, h_TM = stream.normed(self.pre_attention_norm)
        attended_TY = ctx.attend(self.index, self.attention.qkv(h_TM, room_TX))
        if read is not None:
            residual_TM, h_TM, attended_TY = read.of(residual_TM), read.of(h_TM), read.of(attended_TY)
        return Stream(residual_TM=residual_TM, output=partial(self.mlp, h_TM, self.attention.out(attended_TY)))


class Decoder(nn.Module):
    """`embed`, `layers` and `head` over packed tokens; the three are separate so that each can be captured alone.

    Memory is taken but not written: a loader fills it.
    """

    lm_head: Linear

    def __init__(self, spec: ModelSpec, weights: WeightFormat) -> None:
        super().__init__()
        dtype, device = weights.dtype, weights.device
        self.shard, self.dtype = weights.shard, dtype
        self.spec = spec.share(self.shard)
        self.vocabulary = weights.vocabulary(spec.vocab_size)
        embedding_VM = torch.empty(self.vocabulary.num_ids, spec.hidden_size, dtype=dtype, device=device)
        self.embedding_VM = nn.Parameter(embedding_VM, requires_grad=False)
        self.embed_scale = spec.embed_scale
        if spec.has_rounded_embed_scale:  # Gemma was trained with sqrt(hidden) as its embeddings' dtype can say it
            self.embed_scale = float(torch.tensor(spec.embed_scale, dtype=dtype))
        self._ropes: dict[RopeSpec, Rope] = {}
        self.num_positions = 0
        self._stack = tuple(DecoderLayer(i, layer, spec.hidden_size, weights) for i, layer in enumerate(spec.layers))
        # Registered beside the typed collections, so that `to`, `buffers` and `named_parameters` find them.
        self.ropes = nn.ModuleList()
        self.blocks = nn.ModuleList(self._stack)
        self.final_norm = Norm(spec.final_norm, spec.hidden_size, dtype=dtype, device=device)
        if spec.is_tied:
            self.lm_head = weights.linear_over(self.embedding_VM)
        else:
            self.lm_head = weights.linear(spec.hidden_size, self.vocabulary.num_ids, has_bias=False)

    def reach(self, num_positions: int) -> None:
        """Make the rotary tables for positions below this, unless they are there. `transforms` needs them.

        A table has a row for every position, so it is made for the context that is used and not for the one the model
        could have: 2**24 positions of 64 pairs take 8 GiB.
        """
        if num_positions <= self.num_positions:
            return
        specs = dict.fromkeys(layer.attention.rope for layer in self.spec.layers)
        device = self.embedding_VM.device
        self._ropes = {spec: Rope(spec, num_positions, device=device) for spec in specs if spec is not None}
        self.ropes = nn.ModuleList(self._ropes.values())
        self.num_positions = num_positions

    @property
    def sinks(self) -> tuple[torch.Tensor | None, ...]:
        """Each layer's sink logits, which its attention needs; None for layers without sinks."""
        return tuple(block.attention.sinks_H for block in self._stack)

    @property
    def can_merge_attention(self) -> tuple[bool, ...]:
        """For each layer, whether attention may leave its output in parts."""
        return tuple(block.can_merge_attention for block in self._stack)

    @property
    def transforms(self) -> tuple[QKTransform, ...]:
        """Each layer's norms and rotation of queries and keys, for positions below `num_positions`."""
        assert self.num_positions, "no table of positions: call `reach` first"
        ropes = [None if spec is None else self._ropes[spec] for spec in (b.spec.attention.rope for b in self._stack)]
        return tuple(block.attention.transform(rope) for block, rope in zip(self._stack, ropes, strict=True))

    def embed(self, ids_T: torch.Tensor) -> torch.Tensor:
        return self.vocabulary.embed(ids_T, self.embedding_VM, self.embed_scale)

    def layers(self, residual_TM: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """The final norm's output, which `head` reads: of all tokens, or of `ctx.rows_read`. The layers may add to
        `residual_TM` in place: it is used up.
        """
        stream, last = Stream(residual_TM=residual_TM), self._stack[-1]
        for block in self._stack:
            stream = block(stream, ctx, ctx.rows_read() if block is last else None)
        return normed_end(stream, self.final_norm)

    @contextmanager
    def few_layers_of_each_kind(self) -> Iterator[None]:
        """In here `layers` runs the first two layers of each spec alone: together they launch the kernels of all
        layers. The second ones have a layer in front, whose last product and norm may be one op with their first.
        """
        whole, of_spec = self._stack, Counter[LayerSpec]()
        kept = []
        for block in whole:
            of_spec[block.spec] += 1
            if of_spec[block.spec] <= 2:
                kept.append(block)
        self._stack = tuple(kept)
        try:
            yield
        finally:
            self._stack = whole

    @property
    def logits_dtype(self) -> torch.dtype:
        """The weights' dtype, to which the projection rounds; float32 where a scale or a cap would round once more."""
        is_bent = self.spec.logit_scale != 1.0 or self.spec.final_softcap is not None
        return torch.float32 if is_bent else self.dtype

    def head(self, h_NM: torch.Tensor, out_NV: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of rows that came out of `layers`, of the ids that this rank has, in `out_NV` if it is given."""
        logits_NV = out_NV
        if logits_NV is None:
            shape = (h_NM.shape[0], self.vocabulary.num_ids)
            logits_NV = torch.empty(shape, dtype=self.logits_dtype, device=h_NM.device)
        weight_VM = self._weight_to_choose_by(h_NM)
        if weight_VM is not None:
            head_logits(logits_NV, h_NM, weight_VM, *self._logit_numbers)
            return logits_NV
        if logits_NV.dtype is h_NM.dtype:
            self.lm_head(h_NM, logits_NV)
        else:
            logits_NV.copy_(self.lm_head(h_NM))
        if self.spec.logit_scale != 1.0:
            logits_NV.mul_(self.spec.logit_scale)
        if self.spec.final_softcap is not None:
            softcap_(logits_NV, self.spec.final_softcap)
        return logits_NV

    def choose(self, h_NM: torch.Tensor, *choice: Any) -> bool:
        """Chooses tokens of rows that came out of `layers`, without logits, where one kernel can do that; else False.

        `choice` are the arguments of `head_tokens` behind the head's own. The tokens are those that would be chosen
        from the logits of `head`.
        """
        weight_VM = self._weight_to_choose_by(h_NM)
        if weight_VM is None:
            return False
        head_tokens(h_NM, weight_VM, *self._logit_numbers, *choice)
        return True

    @property
    def _logit_numbers(self) -> tuple[float, float]:
        cap = self.spec.final_softcap
        return self.spec.logit_scale, NO_CAP if cap is None else cap

    def _weight_to_choose_by(self, h_NM: torch.Tensor) -> torch.Tensor | None:
        """The head's matrix, where logits and choice of such rows are made by the same kernel."""
        head = self.lm_head
        if isinstance(head, PlainLinear) and can_choose(h_NM, head.weight, in_order=head.is_ordered):
            return head.weight
        return None
