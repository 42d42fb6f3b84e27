"""Parity in bfloat16 on a GPU, at the shapes of real models, against transformers with the same random weights.

Truth is transformers in float32 with the bfloat16 weights widened. Ours may be off by 2e-2 of the logits' norm, and by
no more than transformers' own bfloat16 is.
"""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

from playhead.models.build import spec_from_config  # noqa: E402  after the check that transformers is there
from playhead.models.checkpoint.dummy import dummy_decoder  # noqa: E402
from playhead.models.dense_context import DenseSequence  # noqa: E402
from tests.parity.oracle import ours, step, their_logits  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # What the reference's own modules warn about, on whatever version is installed, is not ours to fix.
    pytest.mark.filterwarnings("ignore:::transformers"),
]

TOLERANCE = 2e-2

GEMMA_3_1B = {
    "vocab_size": 262_144,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
}
# Four of the 24 layers: the float32 reference of all of them would be 84 GB beside the two bfloat16 models.
GPT_OSS_20B = {
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 4,
    "num_local_experts": 32,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
}
# An untrained router has near ties everywhere, and a token sent to another expert is a jump, not a rounding error: the
# reference's own bfloat16 is off by a third. With every expert chosen the same matmuls run and nothing jumps, so that
# case has the bound; with four chosen, being no worse than the reference is what can be asked.
GPT_OSS_ALL_EXPERTS = {**GPT_OSS_20B, "num_experts_per_tok": 32}
CASES = {
    "gemma-3-1b": ("Gemma3TextConfig", GEMMA_3_1B, (700, 37, 513), TOLERANCE),
    "gpt-oss-20b-4-layers, all experts": ("GptOssConfig", GPT_OSS_ALL_EXPERTS, (300, 37, 129), TOLERANCE),
    "gpt-oss-20b-4-layers, top 4": ("GptOssConfig", GPT_OSS_20B, (300, 37, 129), 1.0),
}


def bf16_reference(config_class, options):
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**options)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", dtype=torch.bfloat16
        ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
            if parameter.ndim == 1 and "norm" not in name:
                parameter.normal_(0.0, 0.02)  # biases and sinks of zero would hide a mistake
    return model


def error(found, wanted):
    """Over all positions of all prompts together."""
    return float((torch.cat(found) - torch.cat(wanted)).norm() / torch.cat(wanted).norm())


@pytest.mark.parametrize("name", CASES)
def test_bf16_logits_are_as_close_to_float32_as_the_references(name, capsys):
    config_class, options, lengths, tolerance = CASES[name]
    model = bf16_reference(config_class, options)
    decoder = ours(model)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 50_000, (length,), generator=generator).tolist() for length in lengths]

    sequences = [DenseSequence() for _ in prompts]
    prefilled = step(decoder, sequences, [prompt[:-4] for prompt in prompts])
    decoded = [step(decoder, sequences, [[prompt[i]] for prompt in prompts]) for i in range(-4, 0)]
    found = [torch.cat(parts) for parts in zip(prefilled, *decoded, strict=True)]
    theirs = [their_logits(model, prompt) for prompt in prompts]
    wide = copy.deepcopy(model).float()
    truth = [their_logits(wide, prompt) for prompt in prompts]

    our_error, their_error = error(found, truth), error(theirs, truth)
    with capsys.disabled():
        print(
            f"\n{name}: {torch.cuda.get_device_name()}, {sum(lengths)} positions, relative error of logits against "
            f"float32: ours {our_error:.2e}, transformers' bf16 {their_error:.2e}"
        )
    assert our_error <= tolerance
    assert our_error <= their_error


def test_dummy_weights_of_a_real_model_are_made_on_the_device():
    spec = spec_from_config({"model_type": "gemma3_text", **GEMMA_3_1B})
    decoder = dummy_decoder(spec, dtype=torch.bfloat16, device=torch.device("cuda"))
    (logits,) = step(decoder, [DenseSequence()], [list(range(600))])
    assert bool(torch.isfinite(logits).all())
