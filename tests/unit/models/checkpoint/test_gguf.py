"""GGUF files: dequantised under the hub's names, or refused."""

from __future__ import annotations

import os
import re
import struct

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.engine.build import load_tokenizer
from playhead.engine.config import EngineConfig
from playhead.engine.memory import fit_beside_weights
from playhead.errors import CheckpointError, UnsupportedModelError
from playhead.layers import blocks as blocks_module
from playhead.layers.blocks import BlockLinear
from playhead.layers.spec import LinearScaling
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.gguf_architectures import LAYER_NAMES
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_keys import HARMLESS, READ, check_keys
from playhead.models.checkpoint.gguf_model import config_from_gguf, hub_name, neighbours_to_halves
from playhead.models.load import describe_model, load_weights
from tests.unit.models.tiny import random_tensors

LLAMA = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 2.0**-16,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}


def halves_to_neighbours(rows, num_heads):
    """What the converter does to q and k; written out on its own so that the loader is not its own judge."""
    head_dim = rows.shape[0] // num_heads
    order = [
        h * head_dim + half * head_dim // 2 + i
        for h in range(num_heads)
        for i in range(head_dim // 2)
        for half in (0, 1)
    ]
    return rows[order]


def write_gguf(path, tensors, quantised=None, plain=(), **more):
    """The tensors as a converter would have written them, under llama.cpp's names. `more` is further metadata.

    With `quantised` matrices are packed so, except those that `plain` names.
    """
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in more.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds[type(value)](key, value)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(2.0**-16)
    writer.add_rope_freq_base(10_000.0)
    names = {hub_name(name, LAYER_NAMES): name for name in gguf_names()}
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            tensor = halves_to_neighbours(tensor, 4 if "q_proj" in name else 2)
        data = tensor.numpy()
        if quantised is not None and data.ndim == 2 and name not in plain:
            writer.add_tensor(names[name], gguf.quants.quantize(data, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(names[name], data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_names():
    parts = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    return ["token_embd.weight", "output_norm.weight", *[f"blk.{i}.{part}.weight" for i in range(2) for part in parts]]


def load(path):
    return load_weights(describe_model(str(path)), dtype=torch.float32, device=torch.device("cpu"))


def test_a_file_in_full_precision_gives_the_hubs_weights_back(tmp_path):
    tensors = random_tensors(LLAMA)
    decoder = load(write_gguf(tmp_path / "m.gguf", tensors))
    parameters = dict(decoder.named_parameters())
    qkv = torch.cat([tensors[f"model.layers.1.self_attn.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(parameters["blocks.1.attention.qkv.weight"], qkv)
    assert torch.equal(parameters["embedding_VM"], tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16"])
def test_a_quantised_file_is_close_to_what_it_was_made_from(tmp_path, kind):
    tensors = random_tensors(LLAMA)
    decoder = load(write_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType[kind]))
    wanted = torch.cat([tensors[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up")])
    found = dict(decoder.named_parameters())["blocks.0.mlp.gate_up.weight"]
    # Four bits over a range of about 8 sigma leave steps of half a sigma.
    tolerance = {"Q8_0": 1e-2, "Q4_1": 0.15, "F16": 1e-3}[kind]
    assert float((found - wanted).norm() / wanted.norm()) < tolerance


class Reads:
    """Counts the bytes that are read of each tensor."""

    def __init__(self, monkeypatch):
        self.num_bytes, read = {}, GgufFile._bytes

        def counted(file, name, start, num_bytes):
            self.num_bytes[name] = self.num_bytes.get(name, 0) + num_bytes
            return read(file, name, start, num_bytes)

        monkeypatch.setattr(GgufFile, "_bytes", counted)


def num_block_maps(decoder):
    return sum(isinstance(module, BlockLinear) and module.codes_NBJL is not None for module in decoder.modules())


def test_a_load_reads_and_unpacks_every_tensor_once(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA), gguf.GGMLQuantizationType.Q4_0)
    reads = Reads(monkeypatch)
    decoder = load(path)
    assert num_block_maps(decoder) == 8  # the head, of 40 outputs, makes no whole groups
    assert reads.num_bytes == {name: tensor.num_bytes for name, tensor in GgufFile(path).tensors.items()}


def test_a_matrix_of_which_some_rows_have_no_blocks_is_plain_and_read_once(tmp_path, monkeypatch):
    """Files often hold v in another type than q and k."""
    tensors = random_tensors(LLAMA)
    values = "model.layers.0.self_attn.v_proj.weight"
    path = write_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.Q8_0, plain=[values])
    reads = Reads(monkeypatch)
    decoder = load(path)
    assert num_block_maps(decoder) == 7
    assert torch.equal(dict(decoder.named_parameters())["blocks.0.attention.qkv.weight"][-32:], tensors[values])
    assert reads.num_bytes == {name: tensor.num_bytes for name, tensor in GgufFile(path).tensors.items()}


@pytest.mark.parametrize("plain", [(), ("model.layers.0.self_attn.v_proj.weight",)])
@pytest.mark.parametrize("vocab_size", [40, 64])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16"])
def test_the_memory_plan_counts_blocks_that_a_cpu_keeps(tmp_path, kind, vocab_size, plain):
    """A head of 40 outputs makes no whole groups, and a matrix with plain rows is plain: both have no blocks."""
    tensors = random_tensors({**LLAMA, "vocab_size": vocab_size})
    path = write_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType[kind], plain=plain)
    decoder, description = load(path), describe_model(str(path))
    maps = [module for module in decoder.modules() if isinstance(module, BlockLinear)]
    kept = [getattr(one, name) for one in maps for name in ("codes_NBJL", "scales_NBL", "offsets_NBL")]
    num_bytes = sum(part.nbytes for part in (*decoder.parameters(), *kept) if part is not None)
    cpu = torch.device("cpu")
    assert fit_beside_weights(description, EngineConfig(), cpu, 1 << 30).weight_bytes == num_bytes
    dummy = fit_beside_weights(description, EngineConfig(load_format="dummy"), cpu, 1 << 30)
    assert dummy.weight_bytes == sum(parameter.nbytes for parameter in decoder.parameters())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_load_with_blocks_has_the_numbers_of_a_load_without(tmp_path, monkeypatch, kind):
    path = write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA), gguf.GGMLQuantizationType[kind])
    with_blocks = dict(load(path).named_parameters())
    monkeypatch.setattr(blocks_module, "find_spec", lambda name: None)  # as without numba
    decoder = load(path)
    assert num_block_maps(decoder) == 0
    assert all(torch.equal(with_blocks[name], parameter) for name, parameter in decoder.named_parameters())


PACKED = (
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M IQ4_NL IQ4_XS"
)


@pytest.mark.parametrize("name", [*PACKED.split(), "TQ1_0", "TQ2_0", "MXFP4", "BF16"])
def test_every_type_that_the_package_unpacks_is_read_whole_and_in_rows(tmp_path, monkeypatch, name):
    """Blocks of random bytes: whatever they mean, the package's answer is ours, a few rows at a time too."""
    kind = gguf.GGMLQuantizationType[name]
    values, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    packed = np.random.default_rng(0).integers(0, 64, (5, 2 * num_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", packed, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    file = GgufFile(tmp_path / "m.gguf")
    wanted = torch.from_numpy(gguf.quants.dequantize(packed, kind)).float()
    assert file.type_name("t") == name
    assert tuple(wanted.shape) == (5, 2 * values)
    monkeypatch.setattr("playhead.models.checkpoint.gguf_file.PIECE_BYTES", 3 * num_bytes)
    assert torch.equal(torch.from_numpy(file.read("t")), wanted)
    assert torch.equal(torch.from_numpy(file.read("t", slice(1, 4))), wanted[1:4])


def test_a_type_that_nobody_unpacks_is_refused_by_name(tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_K
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(CheckpointError, match="tensor 't' of type Q8_K"):
        GgufFile(tmp_path / "m.gguf")


def test_metadata_is_the_config(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA))
    assert spec_from_config(config_from_gguf(GgufFile(path))) == spec_from_config(LLAMA)


def test_rows_of_a_head_go_back_to_halves():
    rows = torch.arange(8)
    assert neighbours_to_halves(rows, 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert torch.equal(neighbours_to_halves(halves_to_neighbours(rows, 2), 2), rows)


def write_metadata(path, entries, tensors=b"", num_tensors=0):
    data = b"GGUF" + struct.pack("<IQQ", 3, num_tensors, len(entries)) + b"".join(entries) + tensors
    path.write_bytes(data)
    return path


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def test_an_unknown_architecture_is_refused_with_the_supported_ones(tmp_path):
    path = write_metadata(tmp_path / "m.gguf", [text("general.architecture") + struct.pack("<I", 8) + text("rwkv")])
    with pytest.raises(UnsupportedModelError, match=r"rwkv.*llama, qwen2, qwen3, gemma, gemma2, gemma3, phi3"):
        describe_model(str(path))


def config_with(tmp_path, **more):
    """What a file with this further metadata of its architecture becomes."""
    more = {f"llama.{key.replace('__', '.')}": value for key, value in more.items()}
    return config_from_gguf(GgufFile(write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA), **more)))


def rope_with(tmp_path, **more):
    return spec_from_config(config_with(tmp_path, **more)).layers[0].attention.rope


def test_linear_rope_scaling_is_obeyed_with_and_without_its_type(tmp_path):
    """llama.cpp takes a factor for a linear one if no type says otherwise, and knows an older key for it."""
    linear = LinearScaling(factor=4.0)
    assert rope_with(tmp_path, rope__scaling__factor=4.0).scaling == linear
    assert rope_with(tmp_path, rope__scaling__factor=4.0, rope__scaling__type="linear").scaling == linear
    assert rope_with(tmp_path, rope__scale_linear=4.0).scaling == linear
    assert rope_with(tmp_path, rope__scaling__factor=4.0, rope__scaling__type="none").scaling is None
    assert rope_with(tmp_path, rope__scaling__factor=1.0).scaling is None


def test_yarn_is_obeyed(tmp_path):
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 16}
    hub = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    wanted = spec_from_config({**LLAMA, "rope_scaling": hub}).layers[0].attention.rope
    assert rope_with(tmp_path, **yarn) == wanted
    assert rope_with(tmp_path, **yarn, rope__scaling__yarn_beta_fast=8.0).scaling.beta_fast == 8.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope__scaling__type", "longrope"),
        ("rope__scaling__type", "surprise"),
        ("rope__scaling__attn_factor", 2.0),
        ("rope__scaling__yarn_log_multiplier", 0.1),
        ("rope__dimension_count", 8),
        ("rope__dimension_sections", 3),
        ("attention__sliding_window", 16),
        ("attention__value_length", 32),
        ("attention__causal", False),
        ("attention__scale", 0.5),
        ("attention__clamp_kqv", 8.0),
        ("logit_scale", 0.5),
        ("residual_scale", 0.25),
        ("embedding_scale", 12.0),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("final_logit_softcapping", 30.0),
        ("attn_logit_softcapping", 50.0),
        ("vocab_size", 41),
        ("use_parallel_residual", True),
        ("a_key_of_tomorrow", 1),
    ],
)
def test_a_key_that_cannot_be_obeyed_is_refused_by_name(tmp_path, key, value):
    with pytest.raises(UnsupportedModelError, match="llama." + key.replace("__", ".")):
        config_with(tmp_path, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope__dimension_count", 16),
        ("attention__key_length", 16),
        ("attention__value_length", 16),
        ("attention__sliding_window", 0),
        ("attention__sliding_window", 64),
        ("attention__causal", True),
        ("expert_count", 0),
        ("logit_scale", 1.0),
        ("vocab_size", 40),
        ("tensor_data_layout", "Meta AI original pth"),
    ],
)
def test_a_key_that_asks_for_nothing_changes_nothing(tmp_path, key, value):
    assert spec_from_config(config_with(tmp_path, **{key: value})) == spec_from_config(LLAMA)


def test_every_key_the_format_names_for_a_model_is_obeyed_harmless_or_refused(tmp_path):
    """Whatever the gguf package can write under an architecture's name: none of it passes unseen."""
    names = [
        value.removeprefix("{arch}.")
        for group in (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope, gguf.Keys.SSM)
        for name, value in vars(group).items()
        if isinstance(value, str) and value.startswith("{arch}.") and not name.startswith("_")
    ]
    assert len(names) > 60
    for name in names:
        if name in READ | HARMLESS:
            continue
        with pytest.raises(UnsupportedModelError, match=f"llama.{re.escape(name)}"):
            check_keys({f"llama.{name}": 77}, "llama")


@pytest.mark.parametrize(
    ("key", "value"), [("general.type", "adapter"), ("split.count", 3), ("adapter.lora.alpha", 1.0)]
)
def test_a_file_that_is_no_whole_model_is_refused(tmp_path, key, value):
    path = write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA), **{key: value})
    with pytest.raises(UnsupportedModelError, match=key):
        describe_model(str(path))


def test_metadata_that_is_not_read_is_named(tmp_path, caplog):
    more = {"general.sampling.temp": 0.5, "somebody.elses": 1, "general.name": "m", "quantize.imatrix.file": "x"}
    describe_model(str(write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA), **more)))
    assert "not read: general.sampling.temp, somebody.elses" in caplog.text


@pytest.mark.parametrize("key", ["embedding_length", "context_length", "attention.layer_norm_rms_epsilon"])
def test_a_file_without_a_required_key_is_refused(tmp_path, key):
    file = GgufFile(write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA)))
    del file.metadata[f"llama.{key}"]
    with pytest.raises(UnsupportedModelError, match=f"llama.{key}"):
        config_from_gguf(file)


@pytest.mark.parametrize("tokens", [7, 0.5, True, "abc"])
def test_a_file_without_an_embedding_is_refused_whatever_its_tokens_are(tmp_path, tokens):
    tensors = random_tensors(LLAMA)
    del tensors["model.embed_tokens.weight"]
    path = write_gguf(tmp_path / "m.gguf", tensors, **{"tokenizer.ggml.tokens": tokens})
    with pytest.raises(UnsupportedModelError, match="vocab_size"):
        describe_model(str(path))


def test_a_qwen3_file_without_a_head_size_does_not_get_the_hubs_default(tmp_path):
    """llama.cpp divides the width by the heads; the hub's Qwen 3 has 128 dims whatever its width."""
    file = GgufFile(write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA)))
    renamed = {key.replace("llama.", "qwen3."): value for key, value in file.metadata.items()}
    file.metadata = {**renamed, "general.architecture": "qwen3"}
    attention = spec_from_config(config_from_gguf(file)).layers[0].attention
    assert (attention.k_head_dim, attention.num_kv_heads) == (16, 2)


def test_a_load_opens_the_file_once(tmp_path, monkeypatch):
    """Config, weights and tokenizer come from the same file, whatever takes its place meanwhile."""
    path = write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA))
    opened, really_open = [], os.open
    monkeypatch.setattr(os, "open", lambda name, *rest: opened.append(str(name)) or really_open(name, *rest))
    description = describe_model(str(path))
    path.unlink()
    decoder = load_weights(description, dtype=torch.float32, device=torch.device("cpu"))
    load_tokenizer(description, EngineConfig(skip_tokenizer_init=True))
    assert torch.equal(decoder.embedding_VM, random_tensors(LLAMA)["model.embed_tokens.weight"])
    assert opened.count(str(path)) == 1


def test_a_file_that_shrinks_after_it_was_opened_is_noticed(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA))
    file = GgufFile(path)
    with path.open("r+b") as handle:
        handle.truncate(2000)
    last = max(file.tensors, key=lambda name: file.tensors[name].start)
    with pytest.raises(CheckpointError, match="ends inside"):
        file.read(last)


HUGE = 2**64 - 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"NOPE" + bytes(40),
        b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", HUGE) + bytes(20),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 99) + bytes(20),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, HUGE) + bytes(20),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(20),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (text("k") + struct.pack("<II", 4, 1)) * 2,
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 900, 1, 0, 0) + bytes(64),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 4, 77, 0) + bytes(64),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQQIQ", 2, 32, 0, 0, 0) + bytes(64),
        b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + (text("t") + struct.pack("<IQIQ", 1, 4, 0, 0)) * 2 + bytes(64),
    ],
)
def test_a_hostile_file_is_refused(tmp_path, content):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        GgufFile(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", random_tensors(LLAMA))
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(CheckpointError, match="complete file"):
        GgufFile(path)


@settings(max_examples=60)
@given(flips=st.lists(st.tuples(st.integers(4, 2000), st.integers(1, 255)), min_size=1, max_size=4))
def test_a_damaged_file_is_refused_or_reads_within_bounds(tmp_path_factory, flips):
    path = write_gguf(tmp_path_factory.mktemp("damaged") / "m.gguf", random_tensors(LLAMA))
    data = bytearray(path.read_bytes())
    for place, bits in flips:
        data[place % len(data)] ^= bits
    path.write_bytes(bytes(data))
    try:
        file = GgufFile(path)
    except CheckpointError:
        return
    for name, tensor in file.tensors.items():
        with np.errstate(all="ignore"):
            assert tuple(file.read(name).shape) == tensor.shape


def announcing(path, *parts):
    """A header of one metadata entry, in a file that claims to be a terabyte long and has no room on a disk."""
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + b"".join(parts))
    os.truncate(path, 1 << 40)
    return path


KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([KEY, struct.pack("<IIQ", 9, 0, 1 << 30)], r"1073741824 items announced at byte \d+; wanted at most \d+"),
        ([KEY, struct.pack("<IIQ", 9, 8, 1 << 30)], r"1073741824 items announced at byte \d+; wanted at most \d+"),
        ([KEY, struct.pack("<IQ", 8, 1 << 30)], r"1073741824 items announced at byte \d+; wanted at most \d+"),
        ([KEY, struct.pack("<IIQQ", 9, 8, 2, 1 << 39)], "a string that ends at byte"),
        ([struct.pack("<Q", 600) + b"k" * 600, struct.pack("<II", 4, 1)], "a name of 600 characters"),
    ],
)
def test_metadata_larger_than_any_models_is_refused_before_it_is_read(tmp_path, parts, says):
    with pytest.raises(CheckpointError, match=says):
        GgufFile(announcing(tmp_path / "x.gguf", *parts))


def test_the_items_of_all_arrays_are_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr("playhead.models.checkpoint.gguf_file.MAX_ARRAY_ITEMS", 5)
    arrays = [struct.pack("<Q", 1) + name + struct.pack("<IIQ", 9, 0, 3) + b"abc" for name in (b"a", b"b")]
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + b"".join(arrays))
    with pytest.raises(CheckpointError, match=r"3 items announced.*wanted at most 2"):
        GgufFile(path)
