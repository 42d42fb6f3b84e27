"""What becomes of a checkpoint when it is loaded, known from its headers: no weight is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from playhead.models.build import family_named
from playhead.models.load import ModelDescription
from playhead.settings import show_size

FLOATS = ("F32", "F16", "BF16")
OTHER_PARTS = {"vision_config": "images", "audio_config": "sound"}


def dequantised_types(description: ModelDescription) -> Mapping[str, int]:
    """Bytes of the file by the type they are packed in, largest first. Empty where all weights are plain numbers."""
    counts: Counter[str] = Counter()
    if description.gguf is None:
        return counts
    for name, tensor in description.gguf.tensors.items():
        if (kind := description.gguf.type_name(name)) not in FLOATS:
            counts[kind] += tensor.num_bytes
    return dict(counts.most_common())


def left_out_parts(description: ModelDescription) -> Mapping[str, str]:
    """Config keys of parts that are not loaded, with what those parts read. Only the text part is loaded."""
    if family_named(description.spec.family).text_key is None:
        return {}
    return {key: reads for key, reads in OTHER_PARTS.items() if isinstance(description.config.get(key), Mapping)}


def load_facts(description: ModelDescription, dtype: torch.dtype) -> tuple[str, ...]:
    """A sentence for each thing that loading changes or leaves out."""
    facts = []
    if packed := dequantised_types(description):
        types = ", ".join(f"{kind} ({show_size(num_bytes)})" for kind, num_bytes in packed.items())
        facts.append(f"Weights in {types} are dequantised to {str(dtype).removeprefix('torch.')} when they are read.")
    facts += [
        f"{key}: the part of the model that reads {what} is left out; prompts are text."
        for key, what in left_out_parts(description).items()
    ]
    return tuple(facts)
