"""A real chat model against transformers on the same CPU, one run: `python -m bench.smollm2 .real/smollm2.gguf`.

Both have the same dequantised float32 weights and the same prompt; rounds alternate, and the middle one counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers

from bench.engine import ours, prompts, theirs
from bench.measure import emit
from playhead.engine.config import EngineConfig
from playhead.llm import LLM
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_model import GgufWeights
from playhead.models.load import describe_model


def reference_model(path: Path) -> transformers.PreTrainedModel:
    """The file's weights in transformers."""
    config = describe_model(str(path)).config
    weights = GgufWeights(GgufFile(path), config, path.name)
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**config, "rope_parameters": rope})).eval()
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
        rounds = [
            (ours(llm, batch, args.new_tokens), theirs(model, batch, args.new_tokens)) for _ in range(args.rounds)
        ]
        found, reference = (sorted(column)[args.rounds // 2] for column in zip(*rounds, strict=True))
        emit(
            "smollm2",
            batch=count,
            threads=torch.get_num_threads(),
            ours_tok_s=found,
            transformers_tok_s=reference,
            ratio=found / reference,
        )


if __name__ == "__main__":
    main()
