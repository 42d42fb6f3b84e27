"""Tiny models of every family in transformers, and the same weights in ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import transformers

from playhead.models.build import spec_from_config
from playhead.models.checkpoint.fill import load_decoder
from playhead.models.checkpoint.sources import InMemoryTensors
from playhead.models.decoder import Decoder
from playhead.models.dense_context import DenseContext, DenseSequence

WINDOW = 6
VOCAB = 96

TINY = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.0625,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
BIASES = {"attention_bias": True, "mlp_bias": True}
S, F = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Case:
    """One configuration of a family, and how far its window reaches (None: nowhere)."""

    name: str
    config_class: str
    options: dict[str, object]

    def config(self) -> transformers.PretrainedConfig:
        return getattr(transformers, self.config_class)(**{**TINY, **self.options})


CASES = [
    Case("gemma3", "Gemma3TextConfig", {"sliding_window": WINDOW, "sliding_window_pattern": 3}),
    Case(
        "gemma3-linear-softcap-untied",
        "Gemma3TextConfig",
        {
            "sliding_window": WINDOW,
            "layer_types": [S, F, S, F],
            "rope_parameters": {
                S: {"rope_type": "default", "rope_theta": 10_000.0},
                F: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            },
            "final_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 24,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    Case("gemma2", "Gemma2Config", {"sliding_window": WINDOW, "attn_logit_softcapping": 2.0}),
    Case("llama", "LlamaConfig", {}),
    Case("llama-biases-tied", "LlamaConfig", {**BIASES, "tie_word_embeddings": True}),
    Case("llama-llama3-rope", "LlamaConfig", {"rope_parameters": LLAMA3}),
    Case("llama-yarn-rope", "LlamaConfig", {"rope_parameters": YARN}),
    Case(
        "llama-linear-rope",
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4}},
    ),
    Case("mistral-windowed", "MistralConfig", {"sliding_window": WINDOW}),
    Case("mistral-full", "MistralConfig", {"sliding_window": None}),
    Case("ministral", "MinistralConfig", {"sliding_window": WINDOW, "layer_types": [S, F, S, S]}),
    Case("qwen2", "Qwen2Config", {"sliding_window": WINDOW, "use_sliding_window": False}),
    Case(
        "qwen2-windowed", "Qwen2Config", {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1}
    ),
    Case("qwen3", "Qwen3Config", {"sliding_window": WINDOW}),
    Case("qwen3-bias", "Qwen3Config", {"attention_bias": True}),
    Case("gpt_oss", "GptOssConfig", {"sliding_window": WINDOW, "num_local_experts": 6, "num_experts_per_tok": 2}),
    Case("olmo3", "Olmo3Config", {"sliding_window": WINDOW}),
    Case(
        "olmo3-yarn",
        "Olmo3Config",
        {"sliding_window": WINDOW, "rope_parameters": {S: {"rope_type": "default", "rope_theta": 5e5}, F: YARN}},
    ),
    Case("exaone4", "Exaone4Config", {"sliding_window": WINDOW}),
    Case("exaone4-full", "Exaone4Config", {"sliding_window": None, "layer_types": [F] * 4}),
    Case("cohere2", "Cohere2Config", {"sliding_window": WINDOW, "head_dim": 12}),
    Case("cohere2-bias", "Cohere2Config", {"sliding_window": WINDOW, "head_dim": 12, "attention_bias": True}),
    Case("cohere", "CohereConfig", {"attention_bias": True, "tie_word_embeddings": False}),
    Case("gemma", "GemmaConfig", {"hidden_act": "gelu", "attention_bias": True}),
    Case("glm4", "Glm4Config", {}),
    Case("glm4-whole-heads", "Glm4Config", {"partial_rotary_factor": 1.0, "attention_bias": False}),
    Case("granite", "GraniteConfig", GRANITE),
    Case("granite-biases-tied", "GraniteConfig", {**GRANITE, **BIASES, "tie_word_embeddings": True}),
    Case("olmo2", "Olmo2Config", {"attention_bias": True}),
    Case("phi3", "Phi3Config", {}),
    Case("phi3-windowed-partial", "Phi3Config", {"sliding_window": WINDOW, "partial_rotary_factor": 0.75}),
    Case("smollm3", "SmolLM3Config", BIASES),
    Case(
        "smollm3-windowed",
        "SmolLM3Config",
        {"use_sliding_window": True, "sliding_window": WINDOW, "no_rope_layers": [0, 1, 1, 0]},
    ),
]


def reference(case: Case) -> transformers.PreTrainedModel:
    """The tiny model, every tensor random: a norm of ones or a bias of zeros would hide a mistake."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(case.config(), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2 if parameter.ndim > 1 else 0.5)
    return model


def ours(model: transformers.PreTrainedModel) -> Decoder:
    """Our decoder with the model's weights, through the same loader that files go through."""
    config = model.config.to_dict()
    return load_decoder(
        spec_from_config(config),
        InMemoryTensors(model.state_dict()),
        dtype=model.dtype,
        device=model.device,
    )


@torch.no_grad()
def their_logits(model: transformers.PreTrainedModel, prompt: Sequence[int]) -> torch.Tensor:
    """Logits of every position, one sequence at a time: no padding, no cache, nothing to get wrong."""
    return model(input_ids=torch.tensor([list(prompt)], device=model.device), use_cache=False).logits[0].float()


@torch.no_grad()
def step(decoder: Decoder, sequences: Sequence[DenseSequence], tokens: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """One packed forward: logits of every new token, per sequence."""
    num_new = [len(new) for new in tokens]
    ctx = DenseContext(decoder, sequences, num_new)
    ids_T = torch.tensor([token for new in tokens for token in new], device=decoder.embedding_VM.device)
    return list(decoder.head(decoder.layers(decoder.embed(ids_T), ctx)).split(num_new))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference of any position, as a part of that position's norm."""
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())
