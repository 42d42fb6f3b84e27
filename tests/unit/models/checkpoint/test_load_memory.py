"""Loading takes the memory of the model and of one matrix, not of the checkpoint once more: its files are mapped."""

from __future__ import annotations

import tracemalloc

import pytest
import torch

from playhead.models.load import describe_model, load_weights
from tests.counting import LiveTensors
from tests.unit.models.tiny import CONFIG, random_tensors, write_checkpoint

PYTHON_BYTES = 1 << 19  # headers, names, the modules' own objects: far less than the tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_more_is_alive_than_the_model_and_one_matrix(tmp_path, dtype):
    config = {**CONFIG, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "vocab_size": 2048}
    config["layer_types"] = ["sliding_attention"] * 6
    write_checkpoint(tmp_path, config, random_tensors(config), num_shards=4)
    smallest_shard = min(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert smallest_shard > 4 * PYTHON_BYTES, "too small to tell"
    description = describe_model(str(tmp_path))
    load_weights(description, dtype=dtype, device=torch.device("cpu"))  # what a first use imports is not the loader's

    with LiveTensors() as live:
        decoder = load_weights(description, dtype=dtype, device=torch.device("cpu"))
    tracemalloc.start()
    load_weights(description, dtype=dtype, device=torch.device("cpu"))
    _, peak_python_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    kept = {x.data_ptr(): x.untyped_storage().nbytes() for x in (*decoder.parameters(), *decoder.buffers())}
    small = 1 << 12  # scalars, such as the embedding's scale
    assert live.peak_bytes >= sum(kept.values()), "the peak was not measured"
    # Matrices are stored anew, one after the other, in the order the device reads them.
    assert live.peak_bytes - sum(kept.values()) <= max(kept.values()) + small
    assert peak_python_bytes <= PYTHON_BYTES
