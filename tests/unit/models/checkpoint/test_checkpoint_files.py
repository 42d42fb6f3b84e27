"""Weights from directories: complete and right, or refused with the reason and nothing half-loaded."""

from __future__ import annotations

import json
import re
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.errors import CheckpointError, UnsupportedModelError
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.directory import SafetensorsDirectory
from playhead.models.checkpoint.fill import load_decoder
from playhead.models.checkpoint.safetensors_file import SafetensorsFile
from playhead.models.checkpoint.sources import InMemoryTensors, Part
from playhead.models.checkup import Checkup
from playhead.models.load import describe_model, load_weights
from tests.counting import LiveTensors
from tests.unit.models.tiny import CONFIG, random_tensors, write_checkpoint

CPU = torch.device("cpu")


def load(directory, **kwargs):
    return load_weights(describe_model(str(directory)), dtype=torch.float32, device=CPU, **kwargs)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_fused_parameters_are_the_files_tensors_in_order(tmp_path, num_shards):
    tensors = random_tensors(CONFIG)
    decoder = load(write_checkpoint(tmp_path, CONFIG, tensors, num_shards))
    attention = "model.layers.1.self_attn."
    qkv = torch.cat([tensors[f"{attention}{name}_proj.weight"] for name in "qkv"])
    gate_up = torch.cat([tensors[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up")])
    parameters = dict(decoder.named_parameters())
    assert torch.equal(parameters["blocks.1.attention.qkv.weight"], qkv)
    assert torch.equal(parameters["blocks.1.mlp.gate_up.weight"], gate_up)


def test_a_tensor_that_changes_dtype_arrives_whole(tmp_path):
    tensors = random_tensors(CONFIG)
    description = describe_model(str(write_checkpoint(tmp_path, CONFIG, tensors, 2)))
    decoder = load_weights(description, dtype=torch.float64, device=CPU)
    assert torch.equal(decoder.embedding_VM, tensors["model.embed_tokens.weight"].double())
    down = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(dict(decoder.named_parameters())["blocks.1.mlp.down.weight"], tensors[down].double())


@pytest.mark.parametrize("part", [Part(axis=0, start=3, stop=7), Part(axis=1, start=0, stop=2)], ids=str)
def test_a_part_of_a_tensor_is_read_from_every_source(tmp_path, part):
    tensors = random_tensors(CONFIG)
    name = "model.layers.1.mlp.down_proj.weight"
    directory = SafetensorsDirectory(write_checkpoint(tmp_path, CONFIG, tensors, 2))
    wanted = tensors[name].narrow(part.axis, part.start, part.stop - part.start)
    for source in (directory, InMemoryTensors(tensors)):
        assert torch.equal(source.read(name, part), wanted)


def test_a_part_of_a_file_is_a_view_of_it(tmp_path):
    """A rank that holds half of a matrix must not read the other half."""
    source = SafetensorsDirectory(write_checkpoint(tmp_path, CONFIG, random_tensors(CONFIG)))
    name = "model.layers.1.mlp.down_proj.weight"
    with LiveTensors() as live:
        part = source.read(name, Part(axis=0, start=0, stop=8))
    assert part.shape == (8, 24)
    assert live.peak_bytes == 0


def test_every_parameter_is_written(monkeypatch):
    """Fresh memory is poisoned, so a parameter no piece covers would show."""
    empty, source = torch.empty, InMemoryTensors(random_tensors(CONFIG))
    monkeypatch.setattr(torch, "empty", lambda *size, **kwargs: empty(*size, **kwargs).fill_(float("nan")))
    decoder = load_decoder(spec_from_config(CONFIG), source, dtype=torch.float32, device=CPU)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in decoder.parameters())


def test_progress_counts_every_byte_once(tmp_path):
    tensors, seen = random_tensors(CONFIG), []
    load(write_checkpoint(tmp_path, CONFIG, tensors, 2), on_progress=seen.append)
    total = sum(tensor.numel() * 4 for tensor in tensors.values())
    assert seen[-1].num_bytes == seen[-1].total_bytes == total
    assert [step.num_bytes for step in seen] == sorted(step.num_bytes for step in seen)


def test_a_tied_head_in_the_file_is_ignored(tmp_path):
    tensors = random_tensors(CONFIG)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    assert load(write_checkpoint(tmp_path, CONFIG, tensors)).spec.is_tied


def test_a_head_that_differs_from_a_tied_embedding_is_used(tmp_path, caplog):
    """transformers believes the files before the config."""
    tensors = random_tensors(CONFIG)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    decoder = load(write_checkpoint(tmp_path, CONFIG, tensors))
    assert torch.equal(decoder.lm_head.weight, tensors["lm_head.weight"])
    assert "lm_head.weight differs from model.embed_tokens.weight" in caplog.text


@pytest.mark.parametrize(
    ("head", "match"),
    [
        (torch.zeros(41, 16), r"lm_head\.weight is \[41, 16\], not \[40, 16\]"),
        (torch.zeros(40, 16, dtype=torch.int8), r"lm_head\.weight is torch\.int8, not a float"),
    ],
)
def test_a_head_beside_a_tied_embedding_is_checked_before_it_is_read(tmp_path, head, match):
    directory = write_checkpoint(tmp_path, CONFIG, {**random_tensors(CONFIG), "lm_head.weight": head})
    with pytest.raises(CheckpointError, match=match):
        load(directory)
    assert any(re.search(match, problem) for problem in Checkup(directory).run())


def test_a_tied_head_of_a_type_that_cannot_be_compared_is_refused(tmp_path):
    """torch has no comparison of float8, so the types are looked at before the numbers."""
    tensors = random_tensors(CONFIG)
    tensors["model.embed_tokens.weight"] = torch.zeros(40, 16, dtype=torch.float8_e4m3fn)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    with pytest.raises(CheckpointError, match=r"2 of another shape or type: .*float8_e4m3fn"):
        load(write_checkpoint(tmp_path, CONFIG, tensors))


def test_a_tied_checkpoint_may_hold_its_one_matrix_as_the_head(tmp_path):
    tensors = random_tensors(CONFIG)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    decoder = load(write_checkpoint(tmp_path, CONFIG, tensors))
    assert decoder.lm_head.weight is decoder.embedding_VM
    assert torch.equal(decoder.embedding_VM, tensors["lm_head.weight"])


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_decoder_that_was_saved_without_its_head_loads(tmp_path, num_shards):
    tensors = random_tensors(CONFIG)
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    found = load(write_checkpoint(tmp_path, CONFIG, bare, num_shards=num_shards))
    assert torch.equal(found.embedding_VM, tensors["model.embed_tokens.weight"])
    assert torch.equal(found.blocks[1].mlp.down.weight, tensors["model.layers.1.mlp.down_proj.weight"])


def test_the_head_of_an_untied_multimodal_checkpoint_loads_by_either_name(tmp_path):
    text = {key: value for key, value in CONFIG.items() if key not in ("model_type", "architectures")}
    config = {
        "model_type": "gemma3",
        "text_config": {**text, "tie_word_embeddings": True},
        "tie_word_embeddings": False,
    }
    plain, head = random_tensors(CONFIG), torch.randn(40, 16)
    names = (("model.language_model.", "lm_head.weight"), ("language_model.model.", "language_model.lm_head.weight"))
    for prefix, head_name in names:
        tensors = {prefix + name.removeprefix("model."): tensor for name, tensor in plain.items()}
        directory = tmp_path / head_name
        directory.mkdir()
        decoder = load(write_checkpoint(directory, config, {**tensors, head_name: head}))
        assert torch.equal(decoder.lm_head.weight, head)


def test_the_single_file_is_read_where_a_stale_index_lies_beside_it(tmp_path):
    stale, tensors = random_tensors(CONFIG, seed=1), random_tensors(CONFIG)
    write_checkpoint(tmp_path, CONFIG, stale, num_shards=2)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    decoder = load(write_checkpoint(tmp_path, CONFIG, tensors))
    assert torch.equal(decoder.embedding_VM, tensors["model.embed_tokens.weight"])


def test_the_decoder_of_a_multimodal_checkpoint_loads_from_every_prefix(tmp_path):
    text = {key: value for key, value in CONFIG.items() if key not in ("model_type", "architectures")}
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    plain = random_tensors(CONFIG)
    for i, prefix in enumerate(("model.language_model.", "language_model.model.", "language_model.")):
        tensors = {prefix + name.removeprefix("model."): tensor for name, tensor in plain.items()}
        tensors["vision_tower.patch.weight"] = torch.zeros(3)
        directory = tmp_path / str(i)
        directory.mkdir()
        decoder = load(write_checkpoint(directory, config, tensors))
        assert torch.equal(decoder.embedding_VM, plain["model.embed_tokens.weight"])


def test_all_disagreements_are_listed_at_once(tmp_path):
    tensors = random_tensors(CONFIG)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 3)
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.zeros(8, dtype=torch.int64)
    tensors["surprise"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as caught:
        load(write_checkpoint(tmp_path, CONFIG, tensors))
    message = str(caught.value)
    assert "1 missing: model.norm.weight" in message
    assert "1 unexpected: surprise" in message
    assert "up_proj.weight is [3, 3], not [24, 16]" in message
    assert "q_norm.weight is torch.int64" in message


def test_nothing_is_allocated_for_a_wrong_checkpoint(tmp_path, monkeypatch):
    tensors = random_tensors(CONFIG)
    del tensors["model.norm.weight"]
    description = describe_model(str(write_checkpoint(tmp_path, CONFIG, tensors)))

    def refuse(*args, **kwargs):
        raise AssertionError("a decoder was built")

    monkeypatch.setattr("playhead.models.checkpoint.fill.Decoder", refuse)
    with pytest.raises(CheckpointError, match="missing"):
        load_weights(description, dtype=torch.float32, device=CPU)


def test_a_directory_without_safetensors_says_that_pickles_are_not_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match="never read"):
        load(tmp_path)


@pytest.mark.parametrize(
    "content", ["[1]", "{", "[" * 100_000, '{"a":' * 100 + "1" + "}" * 100, '{"a": 1' + "0" * 5000 + "}"]
)
def test_a_config_that_is_no_object_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        describe_model(str(tmp_path))


def test_a_config_without_a_type_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match="model_type"):
        describe_model(str(tmp_path))


@pytest.mark.parametrize("file_name", ["../model.safetensors", "/etc/passwd", "model.bin", "gone.safetensors"])
def test_an_index_that_points_elsewhere_is_refused(tmp_path, file_name):
    write_checkpoint(tmp_path, CONFIG, random_tensors(CONFIG), 2)
    index = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {**weight_map, "model.norm.weight": file_name}}))
    with pytest.raises(CheckpointError):
        load(tmp_path)


def test_an_index_that_disagrees_with_its_shards_is_refused(tmp_path):
    write_checkpoint(tmp_path, CONFIG, random_tensors(CONFIG), 2)
    index = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    del weight_map["model.norm.weight"]
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"disagree about model\.norm\.weight"):
        load(tmp_path)


def write_raw(path, header, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(shape, start, stop, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("header", "data", "found"),
    [
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12), "invalid offset for tensor `b`"),
        ({"a": entry([2], 0, 8), "b": entry([2], 12, 20)}, bytes(20), "invalid offset for tensor `b`"),
        ({"a": entry([2], 0, 8)}, bytes(4), "file not fully covered"),
        ({"a": entry([2], 0, 8)}, bytes(12), "file not fully covered"),
        ({"a": entry([3], 0, 8)}, bytes(8), "invalid shape"),
        ({"a": entry([2**63, 2**63], 0, 0)}, b"", "overflow"),
        ({"a": entry([-1, -2], 0, 8)}, bytes(8), "expected usize"),
        ({"a": entry([True, 2], 0, 8)}, bytes(8), "expected usize"),
        ({"a": entry([1] * 2000, 0, 4)}, bytes(4), "a shape of 2000 dims"),
        ({"a": entry([2], 0, 8, "F99")}, bytes(8), "unknown variant `F99`"),
        ({"a": entry([4], 0, 3, "F6_E2M3")}, bytes(3), "dtype 'F6_E2M3'"),
        ({"a": {"dtype": "F32"}}, b"", "missing field `shape`"),
        ({"a": 3}, b"", "expected struct TensorInfo"),
        (b'{"a": %s, "a": %s}' % ((json.dumps(entry([1], 0, 4)).encode(),) * 2), bytes(4), "twice"),
        (b"[]", b"", "invalid type: sequence"),
        ({"a" * 513: entry([2], 0, 8)}, bytes(8), "name of 513 characters"),
        ({"": entry([2], 0, 8)}, bytes(8), "name of 0 characters"),
        ({"a": entry([10**130], 0, 8)}, bytes(8), "131 digits"),
        (b'{"a": {"dtype": "F32", "shape": [1' + b"0" * 10_000 + b"]}}", b"", "10001 digits"),
        (b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}", b"", "nested deeper than 64"),
        (b'{"a": [' + b"[]," * (1 << 21) + b"[]]}", b"", "values"),
        ({"__metadata__": {"format": 7}}, b"", "expected a string"),
        ({"__metadata__": [1]}, b"", "expected a map"),
        (b"{" * 20_000, b"", "JSON"),
    ],
)
def test_a_hostile_header_is_refused(tmp_path, header, data, found):
    with pytest.raises(CheckpointError, match=found):
        SafetensorsFile(write_raw(tmp_path / "x.safetensors", header, data))


def test_more_tensors_than_a_file_may_have_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("playhead.models.checkpoint.safetensors_file.MAX_TENSORS", 3)
    header = {str(i): entry([1], 4 * i, 4 * i + 4) for i in range(5)}
    with pytest.raises(CheckpointError, match="4 tensors or more; wanted at most 3"):
        SafetensorsFile(write_raw(tmp_path / "x.safetensors", header, bytes(20)))


@pytest.mark.parametrize("content", [b"", b"\x01", struct.pack("<Q", 2**63), struct.pack("<Q", 9) + b"{}"])
def test_a_header_length_outside_the_file_is_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        SafetensorsFile(path)


@settings(max_examples=60)
@given(cut=st.integers(0, 10_000), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=4))
def test_a_damaged_file_is_refused_or_reads_within_bounds(tmp_path_factory, cut, flips):
    directory = tmp_path_factory.mktemp("damaged")
    write_checkpoint(directory, CONFIG, {"a": torch.ones(4, 5), "b": torch.ones(3)})
    path = directory / "model.safetensors"
    data = bytearray(path.read_bytes())
    for place, bits in flips:
        data[place % len(data)] ^= bits
    path.write_bytes(bytes(data[: len(data) - cut % len(data)]))
    try:
        file = SafetensorsFile(path)
    except CheckpointError:
        return
    for name, info in file.tensors.items():
        assert tuple(file.read(name).shape) == info.shape


def test_a_file_that_shrinks_after_it_was_opened_is_noticed(tmp_path):
    write_checkpoint(tmp_path, CONFIG, {"a": torch.ones(4, 5)})
    path = tmp_path / "model.safetensors"
    file = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="had when it was opened"):
        file.read("a")
