"""Train the embedded model: `python tools/train_embedded.py --corpus DIR --out DIR [--steps 2500]`.

A Gemma-3-shaped hybrid of 4.6 million parameters on public-domain English, in minutes on one GPU. The files it writes
are what `transformers` writes and reads, so the model is its own oracle. The seed is fixed; another GPU or another
version of torch gives other last digits.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

SEED = 20261115
VOCAB, CONTEXT = 4096, 1024
BATCH, PEAK_LR, WARMUP = 64, 3e-3, 150
HELD_OUT = 0.02
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"

CONFIG = {
    "vocab_size": VOCAB,
    "hidden_size": 224,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def read_corpus(folder: Path) -> list[str]:
    """One text per file, in the order of their names."""
    return [gzip.open(path, "rt", errors="replace").read() for path in sorted(folder.glob("*.txt.gz"))]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: every string can be written, and every text comes back as it was."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[PAD, BOS, EOS], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(
        (text[i : i + 10_000] for text in texts for i in range(0, len(text), 10_000)), trainer
    )
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """All texts as token ids, the last part of each held out."""
    kept, held = [], []
    for text in texts:
        ids = torch.tensor([*tokenizer.encode(text, add_special_tokens=False).ids, 2])
        cut = int(len(ids) * (1 - HELD_OUT))
        kept.append(ids[:cut])
        held.append(ids[cut:])
    return torch.cat(kept), torch.cat(held)


def batch_of(ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Windows of the text, each behind the beginning-of-text token."""
    rows = ids[starts[:, None] + torch.arange(CONTEXT - 1, device=ids.device)]
    return torch.cat([torch.ones_like(rows[:, :1]), rows], dim=1)


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < WARMUP:
        return PEAK_LR * (step + 1) / WARMUP
    progress = (step - WARMUP) / max(1, steps - WARMUP)
    return PEAK_LR * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def held_out_loss(model: Gemma3ForCausalLM, ids: torch.Tensor) -> float:
    """Mean loss over the held-out text, in nats per token."""
    starts = torch.arange(0, len(ids) - CONTEXT, CONTEXT, device=ids.device)
    losses = [loss_of(model, batch_of(ids, part)).item() for part in torch.split(starts, 32)]
    return sum(losses) / len(losses)


def loss_of(model: Gemma3ForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def train(model: Gemma3ForCausalLM, ids: torch.Tensor, held: torch.Tensor, steps: int) -> float:
    """AdamW over random windows; prints as it goes and gives the final held-out loss."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95), fused=True)
    generator = torch.Generator(device="cuda").manual_seed(SEED)
    started = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        starts = torch.randint(0, len(ids) - CONTEXT, (BATCH,), device="cuda", generator=generator)
        loss = loss_of(model, batch_of(ids, starts))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 250 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - started:.0f} s", flush=True)
    return held_out_loss(model.eval(), held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2500)
    args = parser.parse_args()
    texts = read_corpus(args.corpus)
    tokenizer = train_tokenizer(texts)
    ids, held = encode(tokenizer, texts)
    print(f"{sum(map(len, texts)):,} characters, {len(ids):,} + {len(held):,} tokens", flush=True)
    torch.manual_seed(SEED)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**CONFIG)).cuda()
    num_parameters = sum(p.numel() for p in model.parameters())
    loss = train(model, ids.cuda(), held.cuda(), args.steps)
    args.out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(args.out, safe_serialization=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "tokenizer_class": "PreTrainedTokenizerFast"}
    (args.out / "tokenizer_config.json").write_text(json.dumps(special, indent=2) + "\n")
    generation = {"bos_token_id": 1, "do_sample": True, "eos_token_id": 2, "pad_token_id": 0, "temperature": 0.8}
    (args.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    facts = {"parameters": num_parameters, "steps": args.steps, "held_out_loss": round(loss, 4), "tokens": len(ids)}
    (args.out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
