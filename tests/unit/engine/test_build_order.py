"""What is wrong with a model's small files ends the load of its large ones."""

from __future__ import annotations

import shutil
import threading

import pytest

from playhead.engine.build import build_engine
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.errors import CheckpointError
from playhead.llm import LLM
from playhead.models.checkpoint.fill import LoadProgress
from playhead.sampling_params import SamplingParams
from playhead.structured_outputs import StructuredOutputs

NUM_PIECES = 60_000


@pytest.fixture
def model(tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(resolve_model_name("embedded"), copy)
    (copy / "tokenizer.json").write_text("{}")
    return str(copy)


def test_a_tokenizer_that_cannot_be_used_ends_the_load_of_the_weights(model, monkeypatch):
    """The two are read side by side, and weights may take minutes."""
    pieces: list[int] = []

    def load_slowly(*args, on_progress, **kwargs):
        for piece in range(NUM_PIECES):
            threading.Event().wait(0.001)
            pieces.append(piece)
            on_progress(LoadProgress(num_bytes=piece, total_bytes=NUM_PIECES))

    monkeypatch.setattr("playhead.engine.build.load_weights", load_slowly)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        LLM(model)
    assert len(pieces) < NUM_PIECES


def test_an_engine_that_meets_no_text_reads_the_tokenizer_for_its_first_form(model):
    """The process of a server's engine: the tokenizer cannot be used, and only a form needs it."""
    engine = build_engine(model, reads_text=False, max_model_len=32, max_num_seqs=1)
    engine.add_request("r", [5, 6], SamplingParams(temperature=0, max_tokens=2, detokenize=False))
    while engine.has_work:
        engine.step()
    assert engine.stats.num_generated_tokens == 2
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        engine.reader.grammars.compile(StructuredOutputs(choice=["yes"]))


def test_of_two_broken_files_the_tokenizer_is_named(model, monkeypatch):
    def refuse(*args, **kwargs):
        raise CheckpointError("weights", "none", "some", "Find them.")

    monkeypatch.setattr("playhead.engine.build.load_weights", refuse)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        LLM(model)
