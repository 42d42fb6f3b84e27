"""What is done about every metadata key of a GGUF file: read, harmless, taken with some values only, or refused.

A key of the model's own architecture that is not listed here is refused by name: it may change what the model computes,
and llama.cpp may obey it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from playhead.errors import UnsupportedModelError

LOG = logging.getLogger(__name__)

# Keys under the architecture's name, as in "llama.context_length".
READ = frozenset(
    {
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }
)
# `tensor_data_layout` is a remark of old converters, `rope.scaling.finetuned` one about training; pooling is for
# embeddings of whole texts.
HARMLESS = frozenset({"tensor_data_layout", "rope.scaling.finetuned", "pooling_type"})
# Options that these values switch off; any other value asks for arithmetic this decoder does not do.
ONLY: Mapping[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "use_parallel_residual": (False,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "router_logit_softcapping": (0,),
    "attention.causal": (True,),
    "attention.scale": (0,),
    "attention.output_scale": (0, 1),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.temperature_length": (0,),
    "attention.shared_kv_layers": (0,),
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
}

# Keys of the whole file.
FILE_ONLY: Mapping[str, tuple[object, ...]] = {
    "general.type": ("model",),
    "split.count": (0, 1),
}
# Remarks about the file: names, licences, how it was quantised. `tokenizer` is the vocabulary's to check.
REMARKS = ("general", "split", "quantize", "imatrix", "tokenizer")


def check_keys(metadata: Mapping[str, Any], architecture: str, *, also_read: Collection[str] = ()) -> None:
    """Refuse the first key that would change the result and is not obeyed; say which other keys were not understood.

    `also_read` are keys that this architecture obeys and others do not.
    """
    remarks: list[str] = []
    for key, value in metadata.items():
        namespace, _, name = key.partition(".")
        if key in FILE_ONLY:
            require(key, value, FILE_ONLY[key])
        elif namespace == architecture:
            if name in also_read:
                continue
            if name in ONLY:
                require(key, value, ONLY[name])
            elif name not in READ and name not in HARMLESS:
                raise UnsupportedModelError(key, value, ["a file without this key: what it changes is not known here"])
        elif namespace in ("adapter", "clip"):
            raise UnsupportedModelError(key, value, ["a file with a whole language model in it"])
        elif namespace not in REMARKS or key.startswith("general.sampling."):
            remarks.append(key)
    if remarks:
        LOG.warning("GGUF metadata that is not read: %s", ", ".join(f"{key:.80}" for key in remarks[:8]))


def require(key: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise UnsupportedModelError(key, value, allowed)
