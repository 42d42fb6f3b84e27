"""GGUF files of every architecture: made from a tiny random model, they give transformers' logits."""

from __future__ import annotations

import gguf
import pytest
import torch

from playhead.errors import UnsupportedModelError
from playhead.layers.blocks import BlockLinear
from playhead.llm import LLM
from playhead.models.dense_context import DenseSequence
from playhead.models.load import describe_model, load_weights
from playhead.sampling_params import SamplingParams
from tests.parity.gguf_converter import write_gguf
from tests.parity.oracle import LLAMA3, VOCAB, WINDOW, Case, F, S, reference, relative_error, step, their_logits

LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0}
# llama.cpp scales queries by the head's size, and the converter writes no other scale.
GEMMA = {"sliding_window": WINDOW, "query_pre_attn_scalar": 16}
CASES = [
    Case("llama", "LlamaConfig", {}),
    Case("llama-tied", "LlamaConfig", {"tie_word_embeddings": True}),
    Case("llama-llama3-rope", "LlamaConfig", {"rope_parameters": LLAMA3}),
    Case("qwen2", "Qwen2Config", {}),
    Case("qwen3", "Qwen3Config", {"tie_word_embeddings": True}),
    Case("gemma", "GemmaConfig", {}),
    Case("gemma2", "Gemma2Config", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}),
    Case("gemma3", "Gemma3TextConfig", {**GEMMA, "num_hidden_layers": 7}),
    Case(
        "gemma3-linear-softcap",
        "Gemma3TextConfig",
        {
            **GEMMA,
            "num_hidden_layers": 7,
            "rope_parameters": {S: {"rope_type": "default", "rope_theta": 10_000.0}, F: LINEAR},
            "final_logit_softcapping": 5.0,
        },
    ),
    Case("phi3", "Phi3Config", {}),
    Case("phi3-windowed-partial", "Phi3Config", {"sliding_window": WINDOW, "partial_rotary_factor": 0.75}),
]
PROMPT = [(17 * i + 5) % 96 for i in range(3 * WINDOW)]


# Pieces with a mark for spaces, and bytes for everything else: 96 of them, as the tiny models have.
PIECES = ["<pad>", "<s>", "</s>", "<unk>", "<end_of_turn>", *(f"<0x{byte:02X}>" for byte in range(0x0A, 0x0A + 64))]
PIECES += ["▁", *"abcdehilowr", "he", "ll", "▁he", "llo", "▁hello", "wo", "rl", "▁wo"]
TYPES = [3, 3, 3, 2, 3, *[6] * 64, *[1] * (len(PIECES) - 69)]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}<end_of_turn>{% endfor %}"


def gemma_vocabulary():
    padded = PIECES + [f"<unused{i}>" for i in range(VOCAB - len(PIECES))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": padded,
        "tokenizer.ggml.scores": [-float(i) for i in range(VOCAB)],
        "tokenizer.ggml.token_type": TYPES + [3] * (VOCAB - len(TYPES)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def load(path):
    return load_weights(describe_model(str(path)), dtype=torch.float32, device=torch.device("cpu"))


def logits_of(path):
    return step(load(path), [DenseSequence()], [PROMPT])[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_gives_the_references_logits(tmp_path, case):
    model = reference(case)
    path = write_gguf(model, tmp_path / "m.gguf")
    assert relative_error(logits_of(path), their_logits(model, PROMPT)) < 1e-4


@pytest.mark.parametrize("name", ["gemma3", "phi3"])
def test_a_quantised_file_gives_the_logits_of_its_dequantised_weights(tmp_path, name):
    """Eight bits of noise would hide a mistake, so the reference gets the same noise."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 32}
    case = next(case for case in CASES if case.name == name)
    model = reference(Case(name, case.config_class, {**case.options, **sizes, "query_pre_attn_scalar": 32}))
    kind = gguf.GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                packed = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind)))
    path = write_gguf(model, tmp_path / "m.gguf", quantised=kind)
    assert relative_error(logits_of(path), their_logits(model, PROMPT)) < 1e-4


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
def test_every_map_of_a_quantised_file_has_the_blocks_of_its_own_rows(tmp_path, name):
    """A step of one token multiplies by blocks, a prompt by plain numbers: both are the same matrix in the same order.

    Files of llama have the rows of query and key heads in another order, and those of phi3 have q, k and v in one.
    """
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 32}
    case = next(case for case in CASES if case.name == name)
    model = reference(Case(name, case.config_class, {**case.options, **sizes, "query_pre_attn_scalar": 32}))
    path = write_gguf(model, tmp_path / "m.gguf", quantised=gguf.GGMLQuantizationType.Q4_1)
    decoder = load_weights(describe_model(str(path)), dtype=torch.float32, device=torch.device("cpu"))
    maps = [one for one in decoder.modules() if isinstance(one, BlockLinear)]
    assert sum(one.codes_NBJL is not None for one in maps) >= 4 * len(decoder.spec.layers)
    for one in maps:
        x = torch.randn(1, one.weight.shape[1], generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(one(x), x @ one.weight.T, rtol=1e-4, atol=1e-4)


def test_an_engine_of_a_gemma_3_file_gives_the_references_tokens_and_speaks_its_format(tmp_path):
    """Text in, text out: vocabulary, chat template and weights all come from the one file."""
    model = reference(next(case for case in CASES if case.name == "gemma3"))
    path = write_gguf(model, tmp_path / "m.gguf", metadata=gemma_vocabulary())
    with LLM(str(path), max_model_len=64, kv_memory_bytes=1 << 20) as llm:
        turn = llm.generate(llm.chat_prompt([{"role": "user", "content": "hello"}]), SamplingParams(max_tokens=1))[0]
        assert list(turn.prompt_token_ids) == [1, PIECES.index("he"), PIECES.index("llo"), 4]
        (output,) = llm.generate("hello world", SamplingParams(temperature=0.0))
        ids = list(output.prompt_token_ids)
        assert ids == [1, *(PIECES.index(piece) for piece in ("he", "llo", "▁wo", "rl", "d"))]
        assert llm.tokenizer.special.eos_ids == {2, 4}
        for token in output.outputs[0].token_ids:
            logits = their_logits(model, ids)[-1]
            assert float(logits.max() - logits[token]) < 1e-3
            ids.append(token)


@pytest.mark.parametrize("pattern", [2, [True, False] * 3 + [True]])
def test_a_files_own_pattern_of_windows_is_obeyed(tmp_path, pattern):
    options = {**GEMMA, "num_hidden_layers": 7, "layer_types": [S, F] * 3 + [S]}
    model = reference(Case("gemma3", "Gemma3TextConfig", options))
    metadata = {"gemma3.attention.sliding_window_pattern": pattern}
    path = write_gguf(model, tmp_path / "m.gguf", metadata=metadata)
    assert relative_error(logits_of(path), their_logits(model, PROMPT)) < 1e-4


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gemma3", "attn_logit_softcapping", 50.0),
        ("gemma3", "attention.sliding_window_pattern", 0),
        ("gemma3", "attention.sliding_window_pattern", [True]),
        ("gemma3", "rope.dimension_count", 8),
        ("gemma2", "rope.freq_base_swa", 5.0),
        ("gemma2", "attention.scale", 0.5),
        ("phi3", "rope.scaling.attn_factor", 1.19),
        ("qwen3", "attention.sliding_window", 16),
        ("llama", "attn_logit_softcapping", 50.0),
    ],
)
def test_what_a_file_asks_for_and_we_lack_is_refused_by_key(tmp_path, name, key, value):
    model = reference(next(case for case in CASES if case.name == name))
    path = write_gguf(model, tmp_path / "m.gguf", metadata={f"{name}.{key}": value})
    with pytest.raises(UnsupportedModelError, match=f"{name}.{key}"):
        describe_model(str(path))
