"""What loading changes or leaves out is known before any weight is read."""

from __future__ import annotations

import gguf
import torch

from playhead.models.build import spec_from_config
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.facts import dequantised_types, left_out_parts, load_facts
from playhead.models.load import ModelDescription, describe_model
from tests.unit.models.checkpoint.test_gguf import LLAMA, write_gguf
from tests.unit.models.tiny import random_tensors

GEMMA3 = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {"hidden_size": 8}}


def described(config):
    return ModelDescription(path=None, config=config, spec=spec_from_config(config))


def test_packed_weights_are_named_with_their_bytes_and_what_they_become(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA), gguf.GGMLQuantizationType.Q8_0)
    monkeypatch.setattr(GgufFile, "_bytes", None)  # a weight that is read would fail
    description = describe_model(str(path))
    packed = sum(tensor.num_bytes for tensor in GgufFile(path).tensors.values() if len(tensor.shape) == 2)
    assert dequantised_types(description) == {"Q8_0": packed}
    (fact,) = load_facts(description, torch.bfloat16)
    assert fact.startswith("Weights in Q8_0 (")
    assert fact.endswith("are dequantised to bfloat16 when they are read.")


def test_plain_numbers_are_not_dequantised(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA), gguf.GGMLQuantizationType.F16)
    assert load_facts(describe_model(str(path)), torch.float32) == ()
    assert load_facts(described(LLAMA), torch.float32) == ()


def test_a_part_that_sees_is_said_to_be_left_out():
    assert left_out_parts(described(GEMMA3)) == {"vision_config": "images"}
    (fact,) = load_facts(described(GEMMA3), torch.float32)
    assert fact == "vision_config: the part of the model that reads images is left out; prompts are text."
    assert left_out_parts(described({key: GEMMA3[key] for key in ("model_type", "text_config")})) == {}
    assert left_out_parts(described({**LLAMA, "vision_config": {}})) == {}
