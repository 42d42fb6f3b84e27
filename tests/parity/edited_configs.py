"""Configs of every family with keys dropped, replaced and added: what checkpoints on the hub look like.

An edit is one key with one value, or its absence. Which edits there are follows from what configs may hold, not from
what any family reads: a key that a family ignores is as good an edit as one it obeys.
"""

from __future__ import annotations

import json
import logging
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from playhead.errors import UnsupportedModelError
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.fill import load_decoder
from playhead.models.checkpoint.sources import InMemoryTensors
from playhead.models.decoder import Decoder
from playhead.models.dense_context import DenseSequence
from tests.parity.oracle import F, S, relative_error, step

ABSENT = object()
VOCAB, CONTEXT, NUM_LAYERS = 48, 128, 4
PROMPT = [3 + (7 * i * i + i) % (VOCAB - 3) for i in range(21)]
TOLERANCE = 1e-4

BASE: dict[str, object] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "sliding_window": 5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, object] = {"num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA: dict[str, object] = {"query_pre_attn_scalar": 8}
PATTERN: dict[str, object] = {"sliding_window_pattern": 3}
BASES: dict[str, dict[str, object]] = {
    "cohere": BASE,
    "cohere2": BASE,
    "exaone4": BASE,
    "gemma": BASE,
    "gemma2": BASE | GEMMA,
    "gemma3": BASE | GEMMA | PATTERN,
    "gemma3_text": BASE | GEMMA | PATTERN,
    "glm4": BASE,
    "gpt_oss": BASE | EXPERTS,
    "granite": BASE,
    "llama": BASE,
    "ministral": BASE,
    "mistral": BASE,
    "olmo2": BASE,
    "olmo3": BASE,
    "phi3": BASE,
    "qwen2": BASE,
    "qwen3": BASE,
    "smollm3": BASE,
}
VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 8,
    "patch_size": 4,
}

LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
TABLES: tuple[dict[str, object], ...] = (
    {},
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    LINEAR,
    {"type": "linear", "factor": 3.0, "rope_theta": 700.0},
    {"rope_type": "linear"},
    {**LINEAR, "partial_rotary_factor": 0.5},
    {"rope_type": "dynamic", "factor": 4.0},
    YARN,
    {**YARN, "rope_theta": 900.0, "truncate": False},
    {**YARN, "beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.3},
    {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    {**YARN, "factor": None},
    {"rope_type": "yarn", "factor": 2.0},
    {**YARN, "original_max_position_embeddings": 4, "truncate": False},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    LLAMA3,
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {**LONG, "original_max_position_embeddings": 16},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    {"rope_type": "surprise"},
    {S: {"rope_type": "default", "rope_theta": 300.0}, F: LINEAR},
    {S: {"rope_type": "default"}, F: {**YARN, "truncate": False}},
    {S: LLAMA3, F: {"type": "linear", "factor": 2.0}, "truncate": False},
    {S: None, F: YARN},
    {F: {"rope_type": "default", "rope_theta": 300.0}},
)
ALTERNATES: dict[str, tuple[object, ...]] = {
    "rope_parameters": (None, *TABLES),
    "rope_scaling": (None, *TABLES),
    "rope_theta": (200.0, 1_000_000),
    "rope_local_base_freq": (50.0,),
    "partial_rotary_factor": (0.5, 1.0),
    "original_max_position_embeddings": (32,),
    "max_position_embeddings": (64,),
    "layer_types": ([S] * 4, [F] * 4, [F, S, F, S], [S, F], ["linear_attention"] * 4),
    "sliding_window_pattern": (1, 2, 3, "LG", None),
    "sliding_window": (None, 3, 1000),
    "use_sliding_window": (True, False),
    "max_window_layers": (0, 1, 9),
    "num_key_value_heads": (4, 1, None, 3),
    "num_attention_heads": (2, 8),
    "head_dim": (4, 16, None, 7),
    "hidden_act": ("gelu_pytorch_tanh", "gelu_new", "swish", "gelu", "relu"),
    "hidden_activation": ("silu", "gelu_new", "gelu"),
    "attention_bias": (True, False),
    "mlp_bias": (True,),
    "tie_word_embeddings": (True, False),
    "rms_norm_eps": (1e-2,),
    "layer_norm_eps": (1e-2,),
    "query_pre_attn_scalar": (3, 24),
    "attn_logit_softcapping": (1.5, None),
    "final_logit_softcapping": (2.0, None),
    "logit_scale": (0.5,),
    "use_bidirectional_attention": (True, False),
    "is_causal": (False,),
    "use_qk_norm": (True, False),
    "num_experts": (3,),
    "num_local_experts": (2,),
    "num_experts_per_tok": (1,),
    "swiglu_limit": (0.5,),
    "swiglu_alpha": (1.0,),
    "attention_chunk_size": (4,),
    "attention_dropout": (0.5,),
    "embedding_multiplier": (2.0,),
    "attention_multiplier": (0.3,),
    "residual_multiplier": (0.5,),
    "logits_scaling": (4.0,),
    "no_rope_layers": ([1, 1, 0, 1], [0] * 6, [0, 1], None),
    "no_rope_layer_interval": (2, 9),
    "rotary_pct": (0.5,),
}
BESIDE_ROPE_TABLES = ("original_max_position_embeddings", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")
DROPPABLE = ("num_key_value_heads", "head_dim", "sliding_window", "num_experts_per_tok", "query_pre_attn_scalar")
EDITS: tuple[tuple[str, object], ...] = (
    *((key, value) for key, values in ALTERNATES.items() for value in values),
    *((key, ABSENT) for key in DROPPABLE),
)
# Keys that stand at the top of a config with a text part too, and there mean something else or nothing.
OUTER_EDITS: tuple[tuple[str, object], ...] = tuple(
    (f"outer:{key}", value) for key in ("tie_word_embeddings", "final_logit_softcapping") for value in ALTERNATES[key]
)


@dataclass(frozen=True)
class Edited:
    """One family's config with some edits."""

    model_type: str
    edits: tuple[tuple[str, object], ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={'absent' if value is ABSENT else value}" for key, value in self.edits)
        return f"{self.model_type}: {shown}"

    def config(self) -> dict[str, object]:
        text, outer = dict(BASES[self.model_type]), {}
        for key, value in self.edits:
            level, name = (outer, key.removeprefix("outer:")) if key.startswith("outer:") else (text, key)
            if value is ABSENT:
                level.pop(name, None)
            else:
                level[name] = json.loads(json.dumps(value))
        if self.model_type == "gemma3":
            return {"model_type": "gemma3", "text_config": text, "vision_config": dict(VISION), **outer}
        return {"model_type": self.model_type, **text}


def edited_configs(model_type: str, count: int, seed: int) -> list[Edited]:
    """`count` configs: every single edit in a shuffled order first, then edits by twos, threes and fours."""
    rng = random.Random(f"{model_type} {seed}")
    edits = EDITS + (OUTER_EDITS if model_type == "gemma3" else ())
    tables = [edit for edit in edits if edit[0] in ("rope_parameters", "rope_scaling")]
    beside = [edit for edit in edits if edit[0] in BESIDE_ROPE_TABLES]
    singles = [Edited(model_type, (edit,)) for edit in rng.sample(edits, len(edits))]
    if count <= len(edits):
        # Few examples: half of them single, half with several edits at once.
        singles = singles[: (count + 1) // 2]
    several = []
    while len(singles) + len(several) < count:
        # Rope has the most keys that depend on each other.
        chosen = rng.sample(tables, rng.randint(0, 2)) + rng.sample(beside, rng.randint(0, 2))
        chosen += rng.sample(edits, rng.randint(0 if chosen else 1, 2))
        several.append(Edited(model_type, tuple(dict(chosen).items())))
    return singles + several


def tensor_of(name: str, shape: torch.Size) -> torch.Tensor:
    """The same random numbers for the same name and shape, whatever else a config has."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    std = 0.25 if len(shape) > 1 else 0.5
    return torch.randn(shape, generator=generator) * std


def reference_model(config: Mapping[str, object], directory: Path) -> transformers.PreTrainedModel:
    """What transformers makes of this config.json, every tensor random."""
    (directory / "config.json").write_text(json.dumps(config))
    read = transformers.AutoConfig.from_pretrained(directory)
    if config["model_type"] == "gemma3":
        model = transformers.Gemma3ForConditionalGeneration._from_config(read, attn_implementation="eager")
    else:
        model = transformers.AutoModelForCausalLM.from_config(read, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensor_of(name, parameter.shape))
    return model.eval()


@torch.no_grad()
def reference_logits(model: transformers.PreTrainedModel) -> torch.Tensor:
    return model(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0].float()


def our_logits(config: Mapping[str, object], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    decoder: Decoder = load_decoder(
        spec_from_config(config), InMemoryTensors(tensors), dtype=torch.float32, device=torch.device("cpu")
    )
    (logits,) = step(decoder, [DenseSequence()], [PROMPT])
    return logits


@dataclass(frozen=True)
class Outcome:
    """How one config went. `word` is equal, refused (by us), or unreadable (by transformers)."""

    word: str
    complaint: str | None = None


def compare(case: Edited, directory: Path) -> Outcome:
    """Equal logits, or an error that names an edited key. What transformers cannot run has no right answer."""
    config = case.config()
    names = {key.removeprefix("outer:") for key, _ in case.edits}
    try:
        model = reference_model(config, directory)
        wanted = reference_logits(model)
        tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    except Exception as error:  # noqa: BLE001  whatever it raises, it does not run this config
        return Outcome("unreadable", _unreadable(config, error))
    try:
        found = our_logits(config, tensors)
    except UnsupportedModelError as error:
        parts = set(error.key.split("."))
        return Outcome("refused", None if parts & names else f"{case}: refused by another key: {error}")
    error = relative_error(found, wanted)
    # NaN is not less than anything.
    return Outcome("equal", None if error < TOLERANCE else f"{case}: logits differ by {error:.2g}")


def _unreadable(config: Mapping[str, object], error: Exception) -> str | None:
    """Our part in a config transformers cannot run: a spec or a typed error, never another exception."""
    try:
        spec_from_config(config)
    except UnsupportedModelError:
        return None
    except Exception as ours:  # noqa: BLE001  the point of this check
        return f"{type(ours).__name__}: {ours} (transformers: {error})"
    return None


def quiet_transformers() -> None:
    """Edited configs make it warn about every other key."""
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
