"""What notices a checkpoint that is read differently from its authors, or an engine sized for other memory."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from playhead.engine.config import EngineConfig
from playhead.engine.memory import fit_memory
from playhead.errors import ConfigError, UnsupportedModelError
from playhead.kernels.experts import grouped_matmul
from playhead.kv.plan import KVLimits, plan_kv
from playhead.layers import moe
from playhead.layers.linear import PlainWeights
from playhead.layers.moe import MoeMlp
from playhead.layers.shard import Shard
from playhead.layers.spec import MoeSpec
from playhead.models.build import family_named, spec_from_config
from playhead.models.checkpoint import hub
from playhead.models.checkpoint.directory import SafetensorsDirectory
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.checkpoint.fill import load_decoder
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_model import config_from_gguf
from playhead.models.checkpoint.pieces import pieces_of
from playhead.models.checkpoint.sources import InMemoryTensors
from playhead.models.config import RANGES
from playhead.models.dense_context import DenseContext, DenseSequence
from playhead.models.load import ModelDescription
from playhead.models.text.detokenize import byte_level_table
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from playhead.models.text.tokenizer import WITH_TOOLS
from playhead.step.build import build_worker
from playhead.step.forward import kv_geometry
from playhead.step.worker import WorkerConfig
from playhead.testing.mutant import Checker, swapped

CPU = torch.device("cpu")
SMALL: dict[str, object] = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "sliding_window": 4,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
# Keys that the named families ignore, as transformers does.
IGNORED: tuple[tuple[str, dict[str, object]], ...] = (
    ("llama", {"layer_types": ["sliding_attention"] * 4}),
    ("llama", {"attn_logit_softcapping": 5.0}),
    ("qwen3", {"final_logit_softcapping": 5.0}),
    ("llama", {"partial_rotary_factor": 0.5}),
    ("gemma2", {"sliding_window_pattern": 3}),
    ("gpt_oss", {"sliding_window_pattern": 3}),
    ("mistral", {"use_sliding_window": False}),
    ("gemma3_text", {"rope_parameters": LINEAR}),
)


@contextmanager
def without_logs(name: str) -> Iterator[None]:
    """A logger that says nothing for a while: what it would say is what the checker looks for."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def config_of(model_type: str, **keys: object) -> dict[str, object]:
    return {"model_type": model_type, **SMALL, **keys}


def rope_rules() -> list[str]:
    """Pairs of configs that mean the same rope."""
    outer = {**YARN, "original_max_position_embeddings": 32}
    same = {
        "rope_scaling beside rope_parameters": (
            config_of("llama", rope_scaling=LINEAR, rope_parameters=YARN),
            config_of("llama", rope_scaling=LINEAR),
        ),
        "a trained context outside the table": (
            config_of("llama", rope_scaling=YARN, original_max_position_embeddings=32),
            config_of("llama", rope_scaling=outer),
        ),
    }
    return [name for name, (one, other) in same.items() if spec_from_config(one) != spec_from_config(other)]


def ignored_keys() -> list[str]:
    """Keys that a family does not read change nothing."""
    return [
        f"{model_type} obeys {', '.join(keys)}"
        for model_type, keys in IGNORED
        if spec_from_config(config_of(model_type, **keys)) != spec_from_config(config_of(model_type))
    ]


def senseless_numbers() -> list[str]:
    """NaN, negative numbers and what float32 takes for zero are refused by key, in gemma2 and in a yarn rope."""
    in_rope = ("factor", "beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings")
    in_gemma2 = ("vocab_size", "rms_norm_eps", "query_pre_attn_scalar", "attn_logit_softcapping", "sliding_window")
    found = []
    for key in (*in_rope, *in_gemma2):
        assert key in RANGES, f"{key} is read without a range"
        for value in (float("nan"), -1, 0, 1e-300):
            keys: dict[str, object] = {"rope_scaling": {**YARN, key: value}} if key in in_rope else {key: value}
            try:
                spec_from_config(config_of("gemma2", **keys))
            except UnsupportedModelError:
                continue
            except (ArithmeticError, ValueError) as error:
                found.append(f"{key} = {value}: {error!r}")
            else:
                found.append(f"{key} = {value} was taken")
    return found


def gguf_bytes(entries: Mapping[str, object]) -> bytes:
    """A GGUF file of metadata alone."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def entry(value: object) -> bytes:
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)

    body = b"".join(text(key) + entry(value) for key, value in entries.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + body


LLAMA_FILE: dict[str, object] = {
    "general.architecture": "llama",
    "llama.embedding_length": 16,
    "llama.feed_forward_length": 16,
    "llama.block_count": 1,
    "llama.attention.head_count": 2,
    "llama.context_length": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def gguf_keys() -> list[str]:
    """A key that this decoder does not obey is refused, and a rope factor without a type is obeyed."""

    def config_with(**more: object) -> dict[str, object]:
        with TemporaryDirectory() as directory:
            path = Path(directory) / "m.gguf"
            path.write_bytes(gguf_bytes({**LLAMA_FILE, **more}))
            return config_from_gguf(GgufFile(path))

    found = []
    for key, value in (("llama.logit_scale", 0.5), ("llama.expert_count", 4), ("llama.a_key_of_tomorrow", 1)):
        try:
            config_with(**{key: value})
        except UnsupportedModelError:
            continue
        found.append(f"{key} was not seen")
    if config_with(**{"llama.rope.scaling.factor": 4.0})["rope_scaling"] != LINEAR:
        found.append("a rope factor without a type was ignored")
    return found


def bos_of_a_gguf_file() -> list[str]:
    """A prompt of a Llama 3 vocabulary begins with BOS; one of a file that says no does not."""
    tokens = [*sorted(byte_level_table()), "<bos>"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3],
        "tokenizer.ggml.merges": [f"{tokens[0]} {tokens[1]}"],
        "tokenizer.ggml.bos_token_id": 256,
    }
    metadata["tokenizer.ggml.tokens"] = [*tokens[:-1], tokens[0] + tokens[1], "<bos>"]
    metadata |= {"tokenizer.ggml.token_type": [1] * 257 + [3], "tokenizer.ggml.bos_token_id": 257}
    found = []
    for more, wanted in (({}, True), ({"tokenizer.ggml.add_bos_token": False}, False)):
        ids = tokenizer_from_gguf({**metadata, **more}).encode("a", add_special_tokens=True)
        if (ids[0] == 257) != wanted:
            found.append(f"{more or 'no setting'}: the prompt is {ids}")
    return found


def stale_index() -> list[str]:
    """The single file is read where an index of other files lies beside it."""

    def safetensors(name: str) -> bytes:
        header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        return struct.pack("<Q", len(header)) + header + bytes(4)

    with TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "model.safetensors").write_bytes(safetensors("new"))
        (directory / "model-1.safetensors").write_bytes(safetensors("old"))
        index = {"weight_map": {"old": "model-1.safetensors"}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        tensors = list(SafetensorsDirectory(directory).tensors)
    return [] if tensors == ["new"] else [f"the checkpoint's tensors are {tensors}"]


def head_of_a_tied_checkpoint() -> list[str]:
    """A head that differs from the embedding is used, whatever the config says about tying."""
    config = config_of("llama", tie_word_embeddings=True)
    spec = spec_from_config(config)
    pieces = pieces_of(spec, family_named("llama"), ())
    tensors = {name: torch.ones(shape) for piece in pieces for name, shape in piece.sources}
    source = InMemoryTensors({**tensors, "lm_head.weight": torch.full((16, 16), 2.0)})
    with without_logs("playhead.models.checkpoint.fill"):
        decoder = load_decoder(spec, source, dtype=torch.float32, device=CPU)
    return ["the head in the file was ignored"] if decoder.spec.is_tied else []


def fused_tensors() -> list[str]:
    """A checkpoint with one tensor for q, k and v loads as one with three, and so does each half of it."""
    spec = spec_from_config(config_of("phi3", num_hidden_layers=1))
    pieces = pieces_of(spec, family_named("phi3"), ())
    shapes = {name: shape for piece in pieces for name, shape in piece.sources}
    source = InMemoryTensors({name: torch.randn(shape) for name, shape in shapes.items()})
    fused = source.read("model.layers.0.self_attn.qkv_proj.weight")
    decoder = load_decoder(spec, source, dtype=torch.float32, device=CPU)
    found = []
    if not torch.equal(decoder.get_parameter("blocks.0.attention.qkv.weight"), fused):
        found.append("q, k and v are not the rows of the tensor")
    parts = [piece for piece in pieces if piece.target == "blocks.0.attention.qkv.weight"]
    two = [Shard(rank=rank, num_ranks=2) for rank in range(2)]
    halves = [[fused[part.index] for part in (piece.part(half) for piece in parts) if part] for half in two]
    for whole, first, second in zip(fused.chunk(3), *halves, strict=True):
        if not torch.equal(torch.cat((first, second)), whole):
            found.append("the halves of two ranks are not the whole")
    return found


def residual_factor() -> list[str]:
    """Granite adds a part of what its blocks give: as much as with smaller matrices."""
    config = config_of("granite", num_hidden_layers=1)
    halved = dummy_decoder(spec_from_config(config), dtype=torch.float32, device=CPU)
    scaled = dummy_decoder(spec_from_config({**config, "residual_multiplier": 0.5}), dtype=torch.float32, device=CPU)
    logits = []
    for decoder in (halved, scaled):
        for name, parameter in decoder.named_parameters():
            is_output = name.endswith(("attention.out.weight", "mlp.down.weight"))
            parameter.mul_(0.5 if is_output and decoder is halved else 1.0)
        ctx = DenseContext(decoder, [DenseSequence()], [4])
        logits.append(decoder.head(decoder.layers(decoder.embed(torch.arange(4)), ctx)))
    return [] if torch.allclose(logits[0], logits[1]) else ["the factor on the residual is not the matmul's"]


def layers_without_rope() -> list[str]:
    """The layers that a list names, or every so-many-th, do not rotate."""
    found = []
    for keys, wanted in (({"no_rope_layers": [0, 1, 1, 0]}, [0, 1, 1, 0]), ({"no_rope_layer_interval": 2}, [1, 0] * 2)):
        spec = spec_from_config(config_of("smollm3", **keys))
        rotating = [int(layer.attention.rope is not None) for layer in spec.layers]
        if rotating != wanted:
            found.append(f"{keys}: layers with rope {rotating}")
    return found


def rotary_tables() -> list[str]:
    """A worker's rotary tables have a row for every position of its own context."""
    spec = spec_from_config(config_of("llama"))
    decoder = dummy_decoder(spec, dtype=torch.float32, device=CPU)
    limits = KVLimits(max_context_tokens=32, max_running=2, chunk_tokens=8)
    build_worker(decoder, WorkerConfig(kv_memory_bytes=1 << 18, limits=limits))
    return [f"{len(rows)} rows for 32 positions" for rows in decoder.buffers() if len(rows) != 32]


def long_context() -> list[str]:
    """A model with more context than memory starts, and what it starts with can be planned."""
    config = config_of("llama", max_position_embeddings=1 << 20)
    description = ModelDescription(path=Path("nowhere"), config=config, spec=spec_from_config(config))
    memory = fit_memory(description, EngineConfig(), torch.device("cuda"), 64 << 20)
    geometry = kv_geometry(description.spec, page_size=16, dtype=torch.bfloat16)
    plan_kv(num_bytes=memory.kv_memory_bytes, geometry=geometry, limits=memory.limits)
    return [] if memory.notes else ["the context gave way without a word"]


def settings_made() -> list[str]:
    """A setting that cannot be is refused when it is made."""
    found = []
    for value in (0, -1, True, 1.5):
        try:
            EngineConfig(max_num_seqs=value)  # type: ignore[arg-type]  # the point of this check
        except ConfigError:
            continue
        found.append(f"max_num_seqs={value!r} was taken")
    return found


def traced_experts() -> list[str]:
    """Experts can be traced in every dtype the engine runs in."""
    spec = MoeSpec(num_experts=4, top_k=2, size=16, swiglu_alpha=1.0, swiglu_limit=7.0)
    found = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        moe = MoeMlp(spec, 16, PlainWeights(dtype=dtype, device=CPU))
        trace = make_fx(moe, tracing_mode="symbolic", _allow_non_fake_inputs=True)
        try:
            with torch.no_grad(), without_logs("torch._subclasses.fake_tensor"):
                trace(torch.zeros(5, 16, dtype=dtype))
        except RuntimeError as error:
            found.append(f"{dtype}: {error}")
    return found


def padding_beside_experts() -> list[str]:
    """Of three rows two are tokens, and experts multiply two: a third would change how their products round."""
    rows = []

    def counted(*args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        *_, ends_X = args
        rows.append(int(ends_X[-1]))
        return grouped_matmul(*args, **kwargs)

    spec = MoeSpec(num_experts=2, top_k=1, size=8, swiglu_alpha=1.0, swiglu_limit=7.0)
    experts = MoeMlp(spec, 8, PlainWeights(dtype=torch.float32, device=CPU))
    for parameter in experts.parameters():
        parameter.fill_(0.1)
    with swapped(moe, "grouped_matmul", counted):
        experts(torch.ones(3, 8), torch.tensor([True, False, True]))
    return [f"experts were given {max(rows)} rows; wanted 2"] if rows != [2, 2] else []


def files_of_a_hub_model() -> list[str]:
    """What is read of a model is what comes from the hub."""
    read = {"config.json", "model-00001-of-00002.safetensors", "chat_template.jinja"}
    read.add(f"additional_chat_templates/{WITH_TOOLS}.jinja")
    others = {"original/params.json", "onnx/model.safetensors", "consolidated.safetensors", "pytorch_model.bin"}
    fetched = {
        file for file in read | others if any(fnmatch(file, one) for one in hub.PATTERNS) and not hub.is_ignored(file)
    }
    missing = [f"{file} is read and not fetched" for file in sorted(read - fetched)]
    return missing + [f"{file} is fetched and not read" for file in sorted(fetched & others)]


MODEL_CHECKERS: tuple[Checker, ...] = (
    Checker(name="files of a hub model", run=files_of_a_hub_model),
    Checker(name="padding beside experts", run=padding_beside_experts),
    Checker(name="rope rules", run=rope_rules),
    Checker(name="keys a family ignores", run=ignored_keys),
    Checker(name="senseless numbers", run=senseless_numbers),
    Checker(name="GGUF keys", run=gguf_keys),
    Checker(name="BOS of a GGUF file", run=bos_of_a_gguf_file),
    Checker(name="a stale index", run=stale_index),
    Checker(name="the head of a tied checkpoint", run=head_of_a_tied_checkpoint),
    Checker(name="fused tensors", run=fused_tensors),
    Checker(name="the factor on the residual", run=residual_factor),
    Checker(name="layers without rope", run=layers_without_rope),
    Checker(name="rotary tables", run=rotary_tables),
    Checker(name="a long context", run=long_context, raises=(ConfigError,)),
    Checker(name="settings as they are made", run=settings_made),
    Checker(name="traced experts", run=traced_experts),
)
