"""Checkpoints small enough to be damaged a thousand times: the files of a directory, and a GGUF file, as bytes."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from playhead.models.build import family_named, spec_from_config
from playhead.models.checkpoint.gguf_architectures import LAYER_NAMES, SANDWICH_NAMES
from playhead.models.checkpoint.gguf_model import NAMES
from playhead.models.checkpoint.pieces import pieces_of
from playhead.models.text.detokenize import byte_level_table

CONFIG: Mapping[str, object] = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 264,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 258,
}
GENERATION = {"do_sample": True, "temperature": 0.7, "top_k": 8, "top_p": 0.9, "eos_token_id": [258, 259]}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
TOKENIZER_CONFIG = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": TEMPLATE}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """A file that begins with `head` and claims to be `num_bytes` long; it takes no room on a disk."""

    head: bytes
    num_bytes: int


Content = bytes | Sparse
Files = dict[str, Content]


def write_files(directory: Path, files: Mapping[str, Content]) -> None:
    for name, content in files.items():
        with (directory / name).open("wb") as file:
            file.write(content.head if isinstance(content, Sparse) else content)
            if isinstance(content, Sparse):
                file.truncate(content.num_bytes)


def base_files() -> Files:
    """A whole checkpoint: weights in one file, tokenizer, template, generation config."""
    tensors = random_weights(CONFIG)
    return {
        "config.json": dumped(CONFIG),
        SINGLE: safetensors(tensors),
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": dumped(TOKENIZER_CONFIG),
        "generation_config.json": dumped(GENERATION),
    }


def sharded_files() -> Files:
    """The same checkpoint in two shards with an index."""
    files, tensors = base_files(), random_weights(CONFIG)
    del files[SINGLE]
    names = sorted(tensors)
    shards = {f"model-{i + 1:05}-of-00002.safetensors": names[i::2] for i in range(2)}
    files |= {shard: safetensors({name: tensors[name] for name in held}) for shard, held in shards.items()}
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    return files | {INDEX: dumped({"metadata": {"total_size": 1}, "weight_map": weight_map})}


def dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def random_weights(config: Mapping[str, object]) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Shape and float32 bytes of each tensor the config asks for."""
    rng = random.Random(0)
    pieces = pieces_of(spec_from_config(config), family_named(config["model_type"]), ())
    shapes = {name: shape for piece in pieces for name, shape in piece.sources}
    return {name: (shape, floats(rng, math.prod(shape))) for name, shape in shapes.items()}


def floats(rng: random.Random, count: int) -> bytes:
    return struct.pack(f"<{count}f", *(rng.gauss(0, 0.1) for _ in range(count)))


def header_of(tensors: Mapping[str, tuple[tuple[int, ...], bytes]]) -> dict[str, object]:
    header, end = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    return dict(header)


def safetensors(tensors: Mapping[str, tuple[tuple[int, ...], bytes]], header: object = None) -> bytes:
    """The file, with another header than its own if one is given: as a value, or as bytes."""
    raw = header if isinstance(header, bytes) else dumped(header_of(tensors) if header is None else header)
    return struct.pack("<Q", len(raw)) + raw + b"".join(data for _, data in tensors.values())


def tokenizer_json() -> bytes:
    """Byte-level BPE: 256 bytes, two merges, and tokens for the start and the ends of a text."""
    chars = {byte: char for char, byte in byte_level_table().items()}
    vocab = {chars[byte]: byte for byte in range(256)} | {"he": 256, "ll": 257}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[("h", "e"), ("l", "l")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<eos>", "<|end|>", "<bos>", "<|start|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return tokenizer.to_str().encode()


# GGUF: numbers of the format's types.
U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10
LLAMA: Mapping[str, object] = {
    "model_type": "llama",
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def gguf_metadata() -> dict[str, tuple[int, object]]:
    """Type and value of each entry; arrays as (type of their items, items)."""
    table = json.loads(tokenizer_json())
    tokens = sorted(table["model"]["vocab"], key=table["model"]["vocab"].get)
    tokens += [added["content"] for added in table["added_tokens"]] + ["<pad0>", "<pad1>"]
    return {
        "general.architecture": (STRING, "llama"),
        "llama.embedding_length": (U32, 32),
        "llama.feed_forward_length": (U32, 32),
        "llama.block_count": (U32, 1),
        "llama.attention.head_count": (U32, 2),
        "llama.attention.head_count_kv": (U32, 1),
        "llama.context_length": (U32, 64),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.freq_base": (F32, 10000.0),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "gpt-2"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (U32, [1] * 258 + [3] * 6)),
        "tokenizer.ggml.merges": (ARRAY, (STRING, ["h e", "l l"])),
        "tokenizer.ggml.bos_token_id": (U32, 260),
        "tokenizer.ggml.eos_token_id": (U32, 258),
        "tokenizer.chat_template": (STRING, TEMPLATE),
    }


def gguf_tensors() -> dict[str, tuple[tuple[int, ...], bytes]]:
    """The tensors under llama.cpp's names."""
    return renamed_tensors(LLAMA, LAYER_NAMES)


def gemma_gguf_tensors() -> dict[str, tuple[tuple[int, ...], bytes]]:
    return renamed_tensors(CONFIG, SANDWICH_NAMES)


def renamed_tensors(
    config: Mapping[str, object], layer_names: Mapping[str, str]
) -> dict[str, tuple[tuple[int, ...], bytes]]:
    back = {hub: own for own, hub in {**NAMES, **layer_names}.items()}
    tensors = {}
    for name, tensor in random_weights(config).items():
        stem, _, kind = name.rpartition(".")
        if stem not in back:
            _, _, index, part = stem.split(".", 3)
            tensors[f"blk.{index}.{back[part]}.{kind}"] = tensor
        else:
            tensors[f"{back[stem]}.{kind}"] = tensor
    return tensors


def gemma_gguf_metadata() -> dict[str, tuple[int, object]]:
    """A Gemma 3 file with a SentencePiece vocabulary: special tokens, all bytes, and a few pieces."""
    bytes_in_order = [f"<0x{byte:02X}>" for byte in range(256)]
    return {
        "general.architecture": (STRING, "gemma3"),
        "gemma3.embedding_length": (U32, 16),
        "gemma3.feed_forward_length": (U32, 24),
        "gemma3.block_count": (U32, 2),
        "gemma3.attention.head_count": (U32, 2),
        "gemma3.attention.head_count_kv": (U32, 1),
        "gemma3.attention.key_length": (U32, 8),
        "gemma3.attention.value_length": (U32, 8),
        "gemma3.context_length": (U32, 64),
        "gemma3.attention.layer_norm_rms_epsilon": (F32, 1e-6),
        "gemma3.attention.sliding_window": (U32, 4),
        "gemma3.attention.sliding_window_pattern": (U32, 2),
        "gemma3.rope.freq_base": (F32, 10000.0),
        "gemma3.rope.freq_base_swa": (F32, 10000.0),
        "gemma3.final_logit_softcapping": (F32, 30.0),
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<unk>", "<bos>", "<eos>", *bytes_in_order, *"▁hel", "he"])),
        "tokenizer.ggml.token_type": (ARRAY, (U32, [2, 3, 3, *[6] * 256, *[1] * 5])),
        "tokenizer.ggml.scores": (ARRAY, (F32, [-float(i) for i in range(264)])),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
        "tokenizer.ggml.unknown_token_id": (U32, 0),
        "tokenizer.ggml.add_space_prefix": (BOOL, False),
        "tokenizer.chat_template": (STRING, TEMPLATE),
    }


def gguf_bytes(
    metadata: Mapping[str, tuple[int, object]],
    tensors: Mapping[str, tuple[tuple[int, ...], bytes]],
    *,
    counts: tuple[int, int] | None = None,
    types: Mapping[str, int] | None = None,
) -> bytes:
    """The file; `counts` of tensors and metadata entries may be other than there are. `types` are 0, float32, if not
    given."""
    num_tensors, num_entries = counts or (len(tensors), len(metadata))
    head = b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_entries)
    for key, (kind, value) in metadata.items():
        head += text(key) + struct.pack("<I", kind) + packed(kind, value)
    offset = 0
    for name, (shape, data) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", (types or {}).get(name, 0), offset)
        offset += -(-len(data) // 32) * 32
    body = b"".join(data + bytes(-len(data) % 32) for _, data in tensors.values())
    return head + bytes(-len(head) % 32) + body


def text(value: str) -> bytes:
    raw = value.encode(errors="surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def packed(kind: int, value: object) -> bytes:
    """One metadata value. What does not fit its type is cut to it: the file is hostile, the writer must not fail."""
    if kind == STRING:
        return text(str(value))
    if kind == ARRAY and isinstance(value, tuple):
        item_kind, items = value
        return struct.pack("<IQ", item_kind, len(items)) + joined(item_kind, items)
    if kind == F32:
        return struct.pack("<f", value)
    if kind == BOOL:
        return struct.pack("<?", value)
    mask, code = (2**32 - 1, "<I") if kind == U32 else (2**64 - 1, "<Q")
    return struct.pack(code, value & mask if isinstance(value, int) else 0)


def joined(kind: int, items: Iterable[object]) -> bytes:
    return b"".join(packed(kind, item) for item in items)
