"""The hostile cases of each kind of file: written out where an attack is known, generated where it is not."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from playhead.testing import hostile_base as base
from playhead.testing.hostile_base import Content, Files, Sparse
from playhead.testing.hostile_edits import NASTY, RAW_JSON, damaged, edited_json, with_value
from playhead.testing.hostile_run import HostileCase

Cases = Iterator[HostileCase]


def case(kind: str, name: str, make: Callable[[], Files], **more: Any) -> HostileCase:
    return HostileCase(kind=kind, name=name, make=make, **more)


def replaced(name: str, content: Callable[[], Content], files: Callable[[], Files] = base.base_files) -> Files:
    return files() | {name: content()}


def json_cases(kind: str, name: str, seeds: range, files: Callable[[], Files] = base.base_files) -> Cases:
    """One JSON file of a checkpoint: known attacks on its text, damage to its bytes, edits of its values."""
    for i, raw in enumerate(RAW_JSON):
        yield case(kind, f"raw {i}", partial(replaced, name, partial(bytes, raw), files))
    spaced = partial(_spaced, name, files)
    yield case(kind, "written with indent", partial(replaced, name, spaced, files), is_harmless=True)
    for seed in seeds:
        change = _damaged_file if seed % 4 == 0 else _edited_file
        yield case(kind, f"seed {seed}", partial(change, name, seed, files))


def _spaced(name: str, files: Callable[[], Files]) -> bytes:
    return json.dumps(json.loads(_bytes(files(), name)), indent=3).encode()


def _bytes(files: Files, name: str) -> bytes:
    content = files[name]
    assert isinstance(content, bytes), "sound files are not sparse"
    return content


def _damaged_file(name: str, seed: int, files: Callable[[], Files]) -> Files:
    made = files()
    return made | {name: damaged(_bytes(made, name), random.Random(seed))}


def _edited_file(name: str, seed: int, files: Callable[[], Files]) -> Files:
    made, rng = files(), random.Random(seed)
    return made | {name: edited_json(_bytes(made, name), rng, 1 + seed % 3)}


def safetensors_cases(seeds: range) -> Cases:
    """Header and data of the weights."""
    kind, tensors = "safetensors", base.random_weights(base.CONFIG)
    yield case(kind, "sound", base.base_files, is_harmless=True)
    for name, content in known_headers().items():
        yield case(kind, name, partial(replaced, base.SINGLE, partial(_same, content)))
    header = base.header_of(tensors)
    commented = {"__metadata__": {"format": "pt"}, **header}
    with_remark = partial(base.safetensors, tensors, commented)
    yield case(kind, "with metadata", partial(replaced, base.SINGLE, with_remark), is_harmless=True)
    for seed in seeds:
        edit = _edited_header if seed % 2 else partial(_damaged_file, base.SINGLE, files=base.base_files)
        yield case(kind, f"seed {seed}", partial(edit, seed=seed))


def _same(content: Content) -> Content:
    return content


def _edited_header(seed: int) -> Files:
    tensors, rng = base.random_weights(base.CONFIG), random.Random(seed)
    header = edited_json(base.dumped(base.header_of(tensors)), rng, 1 + seed % 2)
    return base.base_files() | {base.SINGLE: base.safetensors(tensors, header)}


def known_headers() -> dict[str, Content]:
    """Attacks on the format that have been seen or thought of."""

    def framed(raw: bytes, length: int | None = None) -> bytes:
        return struct.pack("<Q", len(raw) if length is None else length) + raw

    def one(**entry: object) -> bytes:
        return framed(base.dumped({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}) + b" " * 7)

    def many(count: int) -> bytes:
        entry = b'"t%d": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'
        return framed(b"{" + b", ".join(entry % i for i in range(count)) + b"}")

    return {
        "empty": b"",
        "length alone": struct.pack("<Q", 0),
        "length past the end": framed(b"{}", 2**63),
        "length of a gigabyte in a sparse file": Sparse(head=framed(b"{}", 1 << 30), num_bytes=1 << 40),
        "a header of zeros": Sparse(head=struct.pack("<Q", 30 << 20), num_bytes=1 << 36),
        "a terabyte of data": Sparse(head=one(shape=[1 << 38], data_offsets=[0, 1 << 40]), num_bytes=1 << 40),
        "32,000 tensors": many(32_000),
        "140,000 tensors": many(140_000),
        "a name of a megabyte": framed(base.dumped({"a" * (1 << 20): {}})),
        "a deep header": framed(b"[" * 200_000),
        "a number of a million digits": framed(b'{"a": 1' + b"0" * 1_000_000 + b"}"),
        "lists": framed(b'{"a": [' + b"[]," * 8_000_000 + b"[]]}"),
        "tables": framed(b'{"a": [' + b"{}," * 8_000_000 + b"{}]}"),
        "overflowing shape": one(shape=[2**62, 2**62]),
        "negative shape": one(shape=[-1, -2]),
        "a shape of a thousand dims": one(shape=[1] * 1000),
        "a fraction for a shape": one(shape=[2.0]),
        "offsets backwards": one(data_offsets=[8, 0]),
        "offsets past the end": one(data_offsets=[0, 2**70]),
        "an unknown type": one(dtype="F7"),
        "a type of a megabyte": one(dtype="F" * (1 << 20)),
        "not UTF-8": framed(b'{"\xff": 1}'),
        "two headers": framed(b"{}{}"),
        "a pickle": b"\x80\x02cos\nsystem\n" + bytes(100),
    }


def index_cases(seeds: range) -> Cases:
    """The index of a checkpoint in shards."""
    files = base.sharded_files
    yield case("index", "sound", files, is_harmless=True)
    yield from json_cases("index", base.INDEX, seeds, files)
    for value in NASTY:
        table = {"weight_map": {"model.norm.weight": value}}
        yield case("index", f"shard {value!r:.40}", partial(_dumped_file, base.INDEX, table, files))


def _dumped_file(name: str, value: object, files: Callable[[], Files]) -> Files:
    return files() | {name: base.dumped(value)}


def config_cases(seeds: range) -> Cases:
    """config.json: text, values, and each key with values that no model has."""
    yield case("config", "sound", base.base_files, is_harmless=True)
    yield from json_cases("config", "config.json", seeds)
    numbers: tuple[object, ...] = (0, -1, 2**40, 0.5, float("nan"), float("inf"), "2", None, [], True)
    for key in base.CONFIG:
        for value in numbers:
            table = {**base.CONFIG, key: value}
            yield case(
                "config", f"{key} = {value!r}", partial(_dumped_file, "config.json", table, files=base.base_files)
            )
    unknown = {**base.CONFIG, "no_such_key": [1, 2], "torch_dtype": "float32"}
    yield case(
        "config", "unknown keys", partial(_dumped_file, "config.json", unknown, base.base_files), is_harmless=True
    )


def generation_cases(seeds: range) -> Cases:
    """generation_config.json and tokenizer_config.json."""
    yield case("generation config", "sound", base.base_files, is_harmless=True)
    yield from json_cases("generation config", "generation_config.json", seeds)
    for key in base.GENERATION:
        for value in NASTY:
            table = with_value(base.GENERATION, [key], value)
            name = f"{key} = {value!r:.40}"
            make = partial(_dumped_file, "generation_config.json", table, base.base_files)
            yield case("generation config", name, make)
    yield case("tokenizer config", "sound", base.base_files, is_harmless=True)
    yield from json_cases("tokenizer config", "tokenizer_config.json", seeds)
    for name, table in tokenizer_configs().items():
        make = partial(_dumped_file, "tokenizer_config.json", table, base.base_files)
        yield case("tokenizer config", name, make)


def tokenizer_configs() -> dict[str, object]:
    """Each key with each value: bare, where a token's text is, and where a template's name is."""
    found: dict[str, object] = {}
    for value in NASTY:
        shapes: tuple[tuple[str, object], ...] = (
            *((key, value) for key in (*base.TOKENIZER_CONFIG, "chat_stop_strings")),
            *((key, {"content": value}) for key in ("bos_token", "eos_token")),
            ("chat_template", [{"name": value, "template": value}]),
            ("chat_stop_strings", [value]),
        )
        for key, changed in shapes:
            found[f"{key} = {changed!r:.60}"] = {**base.TOKENIZER_CONFIG, key: changed}
    return found


def gguf_cases(seeds: range) -> Cases:
    """A GGUF file: counts, lengths, types, metadata values, damage."""
    kind, name = "gguf", "m.gguf"
    metadata, tensors = base.gguf_metadata(), base.gguf_tensors()
    sound = base.gguf_bytes(metadata, tensors)
    yield case(kind, "sound", lambda: {name: sound}, model=name, is_harmless=True)
    for label, content in known_ggufs(sound).items():
        yield case(kind, label, partial(dict, {name: content}), model=name)
    for key, (type_id, _) in metadata.items():
        for value in (0, 1, 2**32 - 1, "", "x" * 1000, "{{ 1 / 0 }}", float("nan")):
            changed = {**metadata, key: _typed(type_id, value)}
            make = partial(_gguf_with, changed)
            yield case(kind, f"{key} = {value!r:.30}", make, model=name)
            make = partial(_gguf_with, changed, without="token_embd.weight")
            yield case(kind, f"{key} = {value!r:.30}, no embedding", make, model=name)
    for seed in seeds:
        yield case(kind, f"seed {seed}", partial(_damaged_gguf, seed), model=name)


def gemma_gguf_cases(seeds: range) -> Cases:
    """A GGUF file of Gemma 3 with a SentencePiece vocabulary: values of its own keys, pieces made to take long."""
    kind, name = "gguf gemma", "m.gguf"
    metadata, tensors = base.gemma_gguf_metadata(), base.gemma_gguf_tensors()
    sound = base.gguf_bytes(metadata, tensors)
    yield case(kind, "sound", lambda: {name: sound}, model=name, is_harmless=True)
    for label, changes in known_pieces().items():
        content = base.gguf_bytes({**metadata, **changes}, tensors)
        yield case(kind, label, partial(dict, {name: content}), model=name)
    for key, (type_id, _) in metadata.items():
        for value in (0, 2**32 - 1, "x" * 1000, float("nan")):
            content = base.gguf_bytes({**metadata, key: _typed(type_id, value)}, tensors)
            yield case(kind, f"{key} = {value!r:.30}", partial(dict, {name: content}), model=name)
    for seed in seeds:
        make = partial(_damaged_bytes, name, sound, seed)
        yield case(kind, f"seed {seed}", make, model=name)


def known_pieces() -> dict[str, dict[str, tuple[int, object]]]:
    """Vocabularies that are slow to cut into merges, and lists that do not fit each other."""

    def vocabulary(tokens: list[str], scores: list[float] | None = None) -> dict[str, tuple[int, object]]:
        return {
            "tokenizer.ggml.tokens": (base.ARRAY, (base.STRING, tokens)),
            "tokenizer.ggml.token_type": (base.ARRAY, (base.U32, [1] * len(tokens))),
            "tokenizer.ggml.scores": (base.ARRAY, (base.F32, scores or [0.0] * len(tokens))),
        }

    return {
        "a piece of a megabyte": vocabulary(["a" * (1 << 20), *"bcd"]),
        "pieces of pieces": vocabulary(["a" * i for i in range(1, 3000)]),
        "200,000 pieces of a hundred": vocabulary([f"{i:06}" + "a" * 94 for i in range(200_000)]),
        "one piece a thousand times": vocabulary(["a"] * 1000),
        "scores without an order": vocabulary(["a", "b", "ab"], [float("nan")] * 3),
        "two scores": vocabulary(["a", "b", "ab"], [1.0, 2.0]),
        "windows for three layers": {
            "gemma3.attention.sliding_window_pattern": (base.ARRAY, (base.BOOL, [True, False, True]))
        },
    }


def _typed(type_id: int, value: object) -> tuple[int, object]:
    """A metadata value of the type its kind calls for: the type in the file is right, the value is not."""
    if isinstance(value, str):
        return base.STRING, value
    if isinstance(value, float):
        return base.F32, value
    return (base.U32, value) if type_id != base.ARRAY else (base.ARRAY, (base.U32, [value] * 3))


def _gguf_with(metadata: dict[str, tuple[int, object]], without: str | None = None) -> Files:
    tensors = {name: tensor for name, tensor in base.gguf_tensors().items() if name != without}
    return {"m.gguf": base.gguf_bytes(metadata, tensors)}


def _damaged_gguf(seed: int) -> Files:
    return _damaged_bytes("m.gguf", base.gguf_bytes(base.gguf_metadata(), base.gguf_tensors()), seed)


def _damaged_bytes(name: str, sound: bytes, seed: int) -> Files:
    return {name: damaged(sound, random.Random(seed))}


def known_ggufs(sound: bytes) -> dict[str, Content]:
    metadata, tensors = base.gguf_metadata(), base.gguf_tensors()
    key = base.text("k")

    def announcing(*parts: bytes) -> Sparse:
        return Sparse(head=b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + b"".join(parts), num_bytes=1 << 40)

    strings = {**metadata, "tokenizer.ggml.tokens": (base.ARRAY, (base.STRING, [""] * 300_000))}
    return {
        "empty": b"",
        "magic alone": b"GGUF",
        "another version": sound[:4] + struct.pack("<I", 99) + sound[8:],
        "big-endian": sound[:4] + struct.pack(">I", 3) + sound[8:],
        "2**63 tensors": base.gguf_bytes(metadata, tensors, counts=(2**63, len(metadata))),
        "2**63 entries": base.gguf_bytes(metadata, tensors, counts=(len(tensors), 2**63)),
        "an array of a billion": announcing(key, struct.pack("<IIQ", 9, 0, 1 << 30)),
        "a billion strings": announcing(key, struct.pack("<IIQ", 9, 8, 1 << 30)),
        "two million strings": announcing(key, struct.pack("<IIQ", 9, 8, 1 << 21)),
        "a string of a gigabyte": announcing(key, struct.pack("<IQ", 8, 1 << 30)),
        "arrays of arrays": announcing(key, struct.pack("<II", 9, 9) + struct.pack("<IQ", 9, 1) * 1000),
        "a type of no kind": announcing(key, struct.pack("<I", 77)),
        "entries of zeros": Sparse(head=b"GGUF" + struct.pack("<IQQ", 3, 0, 60_000), num_bytes=1 << 40),
        "tensors of zeros": Sparse(head=b"GGUF" + struct.pack("<IQQ", 3, 16_000, 0), num_bytes=1 << 40),
        "300,000 empty tokens": base.gguf_bytes(strings, tensors),
        "half": sound[: len(sound) // 2],
        "sparse": Sparse(head=sound, num_bytes=1 << 40),
    }
