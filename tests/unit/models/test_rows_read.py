"""The last layer may be computed for the rows that are read alone: the same rows, and the same keys for later steps."""

from __future__ import annotations

import pytest
import torch

from playhead.layers.spec import MoeSpec
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.context import RowsRead
from playhead.models.dense_context import DenseContext, DenseSequence
from playhead.testing.tiny_worker import spread
from tests.unit.models.test_decoder_capture import EXPERTS, SIZES

HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
DENSE = ("llama", "gemma3_text", "olmo3", "cohere2")  # norms in front, on both sides and behind; side by side
MODELS = {name: {"model_type": name, **SIZES, **HEADS, "sliding_window": 3} for name in DENSE} | {
    "gpt_oss": {**EXPERTS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3}
}
LENGTHS = (5, 1, 7)
READ = (4, 5, 12, 0)  # the last token of each, and padding


class ReadsRows(DenseContext):
    def rows_read(self):
        index_T = torch.zeros(sum(LENGTHS), dtype=torch.int32)
        index_T[: len(READ)] = torch.tensor(READ)
        return RowsRead(index_T=index_T, most=len(READ))


def hidden_and_next(decoder, context, ids_T, next_N):
    """A step over several prompts, and what each one's next token makes of the keys that the step kept."""
    sequences = [DenseSequence() for _ in LENGTHS]
    with torch.no_grad():
        hidden = decoder.layers(decoder.embed(ids_T), context(decoder, sequences, LENGTHS))
        after = decoder.layers(decoder.embed(next_N), DenseContext(decoder, sequences, [1] * len(LENGTHS)))
    return hidden, after


@pytest.mark.parametrize("model", MODELS)
def test_rows_that_are_read_are_those_of_a_step_that_computes_all(model):
    decoder = dummy_decoder(spec_from_config(MODELS[model]), dtype=torch.float32, device=torch.device("cpu"))
    spread(decoder)
    assert decoder.spec.has_experts is isinstance(decoder.spec.layers[0].mlp, MoeSpec) is (model == "gpt_oss")
    generator = torch.Generator().manual_seed(3)
    ids_T = torch.randint(0, decoder.spec.vocab_size, (sum(LENGTHS),), generator=generator)
    next_N = torch.tensor([3, 1, 2])
    all_TM, after_NM = hidden_and_next(decoder, DenseContext, ids_T, next_N)
    read_NM, after_read_NM = hidden_and_next(decoder, ReadsRows, ids_T, next_N)
    assert read_NM.shape == (len(READ), decoder.spec.hidden_size)
    num_read = len(LENGTHS)
    torch.testing.assert_close(read_NM[:num_read], all_TM[list(READ)][:num_read])
    torch.testing.assert_close(after_read_NM, after_NM)


def test_padding_among_the_rows_that_are_read_goes_to_no_expert():
    """A first prompt of one token is read at zero, and zeros behind it are padding."""
    for index, wanted in (((0, 4, 0, 0), [1, 1, 0, 0]), ((3, 0), [1, 0]), ((0,), [1])):
        for most in (2, 9):
            read = RowsRead(index_T=torch.tensor(index, dtype=torch.int32), most=most)
            assert read.live().tolist() == [bool(one) for one in wanted[:most]]
