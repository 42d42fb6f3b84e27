"""Frequencies at the sizes of real models, against transformers' own."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from playhead.layers.rope import Rope, inverse_frequencies
from playhead.models.build import spec_from_config

YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
TABLES = {
    "llama-3.2": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "gpt-oss": {**YARN, "rope_theta": 150_000.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    "qwen-long": {**YARN, "rope_theta": 1_000_000.0},
    "mscale": {**YARN, "rope_theta": 10_000.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    "factor-8": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
}


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("name", TABLES)
def test_frequencies_equal_the_references(name, head_dim):
    config = transformers.LlamaConfig(
        head_dim=head_dim, rope_parameters=dict(TABLES[name]), max_position_embeddings=131_072
    )
    wanted, attention_factor = ROPE_INIT_FUNCTIONS[TABLES[name]["rope_type"]](config, torch.device("cpu"))
    rope_spec = spec_from_config(config.to_dict()).layers[0].attention.rope
    torch.testing.assert_close(inverse_frequencies(rope_spec), wanted, rtol=1e-6, atol=0)
    table_PR = Rope(rope_spec, 300, device=torch.device("cpu")).table_PR
    angles_PF = torch.arange(300)[:, None] * wanted.double()
    wanted_PR = torch.cat((angles_PF.cos(), angles_PF.sin()), dim=1) * attention_factor
    torch.testing.assert_close(table_PR, wanted_PR.float(), rtol=0, atol=1e-4)
