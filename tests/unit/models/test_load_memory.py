"""Loading takes the memory of the model and of one tensor, not of the checkpoint once more."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.unit.models.tiny import CONFIG, random_tensors, write_checkpoint

MIB = 1 << 20

# A process of its own: the peak is the process's, and must not be another test's. It is read from the kernel's VmHWM,
# because getrusage's ru_maxrss survives fork and exec: a child of a large parent would seem to take nothing.
CHILD = """
import json, re, sys
import torch
from playhead.models.load import describe_model, load_weights

def peak_bytes():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read()).group(1)) * 1024

description = describe_model(sys.argv[1])
torch.ones(1000, 1000) @ torch.ones(1000, 1000)  # the matmul library's own memory is not the loader's
before = peak_bytes()
decoder = load_weights(description, dtype=getattr(torch, sys.argv[2]), device=torch.device("cpu"))
model_bytes = sum(p.numel() * p.element_size() for p in decoder.parameters())
print(json.dumps({"growth": peak_bytes() - before, "model": model_bytes}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's own account of the peak")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_host_memory_is_the_model_and_a_tensor(tmp_path, dtype):
    """On the CPU the device's memory is the host's, so the model itself is taken off what was measured."""
    config = {**CONFIG, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "vocab_size": 8192}
    config["layer_types"] = ["sliding_attention"] * 6
    write_checkpoint(tmp_path, config, random_tensors(config), num_shards=4)
    result = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), dtype], capture_output=True, text=True, check=True
    )
    measured = json.loads(result.stdout)
    largest_shard = max(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert measured["model"] > 150 * MIB, "too small to tell"
    assert measured["growth"] >= 0.9 * measured["model"], "the peak was not measured"
    assert measured["growth"] - measured["model"] <= 32 * MIB, "more than two parts of a tensor in flight"
    assert measured["growth"] - measured["model"] <= 1.3 * largest_shard
