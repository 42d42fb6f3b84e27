"""A real chat model against transformers on the same CPU, one run: `python -m bench.smollm2 .real/smollm2.gguf`.

Both have the same dequantised float32 weights and the same prompt; rounds alternate, and the middle one counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers

from bench.engine import middle_rates, ours, prompts
from bench.measure import emit
from playhead.engine.config import EngineConfig
from playhead.llm import LLM
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_model import GgufWeights
from playhead.models.load import describe_model


def reference_model(path: Path, attention: str = "sdpa") -> transformers.PreTrainedModel:
    """The file's weights in transformers."""
    config = describe_model(str(path)).config
    weights = GgufWeights(GgufFile(path), config, path.name)
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    theirs = transformers.LlamaConfig(**{**config, "rope_parameters": rope})
    model = transformers.LlamaForCausalLM._from_config(theirs, attn_implementation=attention).eval()
    state = {name: weights.read(name) for name in weights.tensors}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    args = parser.parse_args()
    config = EngineConfig(max_num_seqs=16, max_model_len=256, enable_prefix_caching=False)
    llm = LLM(str(args.path), config=config)
    model = reference_model(args.path)
    for count in args.batches:
        batch = prompts(count)
        ours(llm, batch, 4)  # captures what it needs
        rates = middle_rates(llm, model, batch, args.new_tokens, args.rounds)
        emit("smollm2", batch=count, threads=torch.get_num_threads(), **rates)


if __name__ == "__main__":
    main()
