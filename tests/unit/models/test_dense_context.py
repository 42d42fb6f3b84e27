"""The reference attention against torch's own and against its definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from playhead.layers.spec import AttentionSpec
from playhead.models.dense_context import dense_attention, visible

SPEC = AttentionSpec(window=None, num_heads=6, num_kv_heads=2, k_head_dim=8, v_head_dim=5, scale=0.3, rope=None)
NUM_KEYS, NUM_QUERIES = 9, 4


@pytest.fixture
def qkv():
    generator = torch.Generator().manual_seed(0)
    shapes = (NUM_QUERIES, 6, 8), (NUM_KEYS, 2, 8), (NUM_KEYS, 2, 5)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def sees(window):
    """Queries are the last tokens of the sequence, the keys before them a cached prefix."""
    return visible(torch.arange(NUM_KEYS - NUM_QUERIES, NUM_KEYS), torch.arange(NUM_KEYS), window)


@pytest.mark.parametrize("window", [None, 3])
def test_it_is_torchs_attention_with_grouped_heads_and_narrower_values(qkv, window):
    q, k, v = (x.transpose(0, 1)[None] for x in qkv)
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=sees(window), scale=SPEC.scale, enable_gqa=True)
    found = dense_attention(*qkv, sees(window), spec=SPEC, sinks_H=None)
    torch.testing.assert_close(found, wanted[0].transpose(0, 1))


def test_a_window_of_one_sees_itself_alone(qkv):
    found = dense_attention(*qkv, sees(1), spec=SPEC, sinks_H=None)
    own = qkv[2][-NUM_QUERIES:].repeat_interleave(3, dim=1)
    torch.testing.assert_close(found, own)


def test_a_sink_is_a_key_of_that_logit_with_a_value_of_zero(qkv):
    q, k, v = qkv
    sinks_H = torch.linspace(-1, 1, 6)
    found = dense_attention(q, k, v, sees(None), spec=SPEC, sinks_H=sinks_H)
    plain = dense_attention(q, k, v, sees(None), spec=SPEC, sinks_H=None)
    logits_HQS = torch.einsum("qhd,shd->hqs", q, k.repeat_interleave(3, dim=1)) * SPEC.scale
    total_HQ = logits_HQS.masked_fill(~sees(None), float("-inf")).logsumexp(-1)
    kept_HQ = torch.sigmoid(total_HQ - sinks_H[:, None])
    torch.testing.assert_close(found, plain * kept_HQ.T[..., None])


def test_a_softcap_bounds_the_logits(qkv):
    q, k, v = qkv
    loose = dense_attention(q, k, v, sees(None), spec=replace(SPEC, softcap=1e6), sinks_H=None)
    torch.testing.assert_close(
        loose, dense_attention(q, k, v, sees(None), spec=SPEC, sinks_H=None), rtol=1e-3, atol=1e-3
    )
    tight = dense_attention(q * 1e4, k, v, sees(None), spec=replace(SPEC, softcap=1e-4), sinks_H=None)
    counts = sees(None).sum(-1)
    means = torch.stack([v[: int(count)].mean(0).repeat_interleave(3, dim=0) for count in counts])
    torch.testing.assert_close(tight, means, rtol=1e-3, atol=1e-3)
