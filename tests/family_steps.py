"""A tiny model of every family, and a few steps of it whose logits are known."""

from __future__ import annotations

from playhead.kv.plan import KVLimits
from playhead.schedule.request import Chunk
from playhead.testing.tiny_worker import dense_logits
from tests.unit.attention.scenes import relative_error

SLIDING, FULL = "sliding_attention", "full_attention"
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 4,
    "max_position_embeddings": 64,
}
BOTH = {"layer_types": [SLIDING, FULL]}
OTHERS = {
    "cohere2": BOTH,
    "exaone4": BOTH,
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"sliding_window_pattern": 2},
    "gemma3_text": {"sliding_window_pattern": 2},
    "gpt_oss": {**BOTH, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {"residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 4.0},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "ministral": BOTH,
    "olmo3": BOTH,
    "smollm3": {"no_rope_layers": [1, 0]},
}
LIMITS = KVLimits(max_context_tokens=32, max_running=4, chunk_tokens=16)
PROMPTS = ((5, 6, 7, 8, 9, 10), (40, 41), (21, 22, 23))


def config_of(model_type):
    config = {"model_type": model_type, **SIZES, **OTHERS.get(model_type, {})}
    if model_type != "gemma3":
        return config
    return {"model_type": model_type, "text_config": config | {"model_type": "gemma3_text"}, "vision_config": {}}


class Requests:
    """Requests of one worker, and what each step gave."""

    def __init__(self, worker):
        self.worker, self.texts, self.seqs, self.given, self.chosen = worker, [], [], [], []

    def take_steps(self):
        """A prompt, a decode step of one request, two prompts beside it, a decode step of three."""
        self.step(PROMPTS[0])
        self.step()
        self.step(*PROMPTS[1:])
        self.step()

    def step(self, *prompts):
        """One step: a token of every request so far, and new requests with these prompts."""
        chunks = []
        for i, text in enumerate(self.texts):
            text.append((7 * len(text) + 5 * i) % SIZES["vocab_size"])
            self.worker.kv.extend(self.seqs[i], 1)
            chunks.append(Chunk.newest(self.seqs[i], text[-1:]))
        for prompt in prompts:
            seq = self.worker.kv.admit(f"request {len(self.seqs)}", prompt)
            self.worker.kv.extend(seq, len(prompt))
            chunks.append(Chunk.newest(seq, prompt))
            self.texts.append(list(prompt))
            self.seqs.append(seq)
        launched = self.worker.run(chunks)
        texts, logits_NV = [tuple(text) for text in self.texts], launched.logits_NV.clone()
        self.given += zip(texts, logits_NV.split(1), strict=True)
        self.chosen += zip(texts, self.worker.collect(launched).sampled.tokens, strict=True)

    def differs(self, tolerance):
        """The steps whose logits are not those of attention without pages, graphs or neighbours."""
        decoder = self.worker.model.decoder
        errors = [(text, relative_error(found, dense_logits(decoder, text))) for text, found in self.given]
        return [f"{text}: {error:.1e}" for text, error in errors if not error < tolerance]

    def chosen_otherwise(self):
        """The steps that chose another token than the best of those logits."""
        decoder = self.worker.model.decoder
        return [text for text, token in self.chosen if token != int(dense_logits(decoder, text).argmax())]
