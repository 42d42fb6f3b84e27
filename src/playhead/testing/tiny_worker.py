"""A worker over a tiny hybrid model with dummy weights, for tests and checkers that need the whole path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from playhead.graph.shapes import DispatchLimits
from playhead.kv.plan import KVLimits
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.decoder import Decoder
from playhead.models.dense_context import DenseContext, DenseSequence
from playhead.schedule.request import Chunk
from playhead.step.build import build_worker
from playhead.step.worker import Worker, WorkerConfig
from playhead.types import Mode

TINY_GEMMA3: Mapping[str, object] = {
    "model_type": "gemma3_text",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
LIMITS = KVLimits(max_context_tokens=32, max_running=4, chunk_tokens=8)


TINY_GPT_OSS: Mapping[str, object] = {
    "model_type": "gpt_oss",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}


def tiny_worker(
    mode: Mode = Mode.BREAKABLE,
    *,
    model: Mapping[str, object] = TINY_GEMMA3,
    dtype: torch.dtype = torch.float32,
    page_size: int = 1,
    device: torch.device | str = "cpu",
    limits: KVLimits = LIMITS,
    kv_memory_bytes: int = 1 << 20,
    prefix_caching: bool = True,
    strict_ledger: bool = True,
    batch_invariant: bool = False,
) -> Worker:
    """Window layers and a full one; by default four requests of up to 32 tokens."""
    decoder = dummy_decoder(spec_from_config(dict(model)), dtype=dtype, device=torch.device(device))
    spread(decoder)
    config = WorkerConfig(
        kv_memory_bytes=kv_memory_bytes,
        prefix_caching=prefix_caching,
        limits=limits,
        page_size=page_size,
        token_mode=mode,
        dispatch=DispatchLimits(lazy=True, max_padding_ratio=8),
        strict_ledger=strict_ledger,
        batch_invariant=batch_invariant,
    )
    return build_worker(decoder, config)


def spread(decoder: Decoder) -> None:
    """Weights by which a wrong key, place or token changes the next tokens.

    Dummy weights keep logits close together, and a block adds so little to the stream that greedy decoding repeats the
    last token for ever, whatever it attends to.
    """
    for name, parameter in decoder.named_parameters():
        if "post_" in name and name.endswith("norm.weight"):
            parameter.fill_(4)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.fill_(3)
        else:
            parameter.mul_(8)


def last_logits(worker: Worker, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """All prompts in one step, each new: the logits after their last tokens."""
    chunks = []
    for i, prompt in enumerate(prompts):
        seq = worker.kv.admit(f"request {i}", prompt)
        worker.kv.extend(seq, len(prompt) - seq.num_hit_tokens)
        chunks.append(Chunk.newest(seq, prompt[seq.num_hit_tokens :]))
    logits_NV = worker.run(chunks).logits_NV.clone()
    for chunk, prompt in zip(chunks, prompts, strict=True):
        worker.kv.finish(chunk.seq, prompt)
    return logits_NV


def dense_logits(decoder: Decoder, prompt: Sequence[int]) -> torch.Tensor:
    """The same logits without pages, graphs or neighbours: plain attention over the whole prompt."""
    device = decoder.embedding_VM.device
    with torch.no_grad():
        context = DenseContext(decoder, [DenseSequence()], [len(prompt)])
        hidden_TM = decoder.layers(decoder.embed(torch.tensor(list(prompt), device=device)), context)
        return decoder.head(hidden_TM[-1:])


def differences(found: torch.Tensor, wanted: torch.Tensor, what: str) -> list[str]:
    """What is wrong with some logits, in words; nothing where they are equal but for rounding."""
    worst = float((found - wanted).abs().max() / wanted.abs().max())
    return [f"{what}: logits differ by {worst:.1e} of their size"] if not worst < 1e-5 else []
