"""What an `LLM` is made from: settings by object or keyword, sizes of the device, dummy weights, no tokenizer."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import playhead.sgl as sgl
from playhead.engine import engine as engine_module
from playhead.engine.async_engine import AsyncEngine
from playhead.engine.config import EngineConfig
from playhead.engine.resolve import on_device
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.errors import ConfigError, RequestError
from playhead.llm import LLM
from playhead.models.text.detokenize import TokenBytes
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams
from playhead.testing.mutant import swapped
from playhead.testing.tiny_worker import TINY_GEMMA3
from playhead.types import LoadFormat, Mode
from tests.unit.models.checkpoint.test_gguf import LLAMA, write_gguf
from tests.unit.models.tiny import random_tensors

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def test_keywords_and_an_object_make_the_same_engine():
    by_keyword = LLM("embedded", max_num_seqs=3, max_model_len=64, graph_mode="eager")
    by_object = LLM("embedded", EngineConfig(max_num_seqs=3, max_model_len=64, graph_mode=Mode.EAGER))
    assert by_keyword.config == by_object.config
    assert by_keyword.engine.worker.config == by_object.engine.worker.config
    assert by_keyword.engine.worker.config.limits.max_running == 3


@pytest.mark.parametrize(
    ("config", "settings", "says"),
    [
        (
            None,
            {"max_num_seq": 3},
            "'max_num_seq': found no such setting; wanted one of device.*Did you mean max_num",
        ),
        (None, {"zzz": 3}, "'zzz'.*Remove it"),
        (EngineConfig(), {"max_num_seqs": 3}, "found a config object and max_num_seqs beside it"),
        (None, {"load_format": "pickle"}, "load_format: found 'pickle'; wanted one of auto, safetensors, gguf, dummy"),
        (None, {"graph_mode": "fast"}, "graph_mode: found 'fast'; wanted one of full, breakable"),
        (None, {"max_num_seqs": 0}, "max_num_seqs: found 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(config, settings, says):
    with pytest.raises(ConfigError, match=says):
        LLM("embedded", config, **settings)


def test_sizes_follow_the_device_where_none_were_given():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    on_cpu = EngineConfig(max_num_seqs=16, max_num_batched_tokens=512, graph_mode="breakable", overlap=False)
    on_cuda = EngineConfig(max_num_seqs=256, max_num_batched_tokens=2048, graph_mode="full", overlap=True)
    assert on_device(EngineConfig(), cpu) == on_cpu
    assert on_device(EngineConfig(), cuda) == on_cuda
    assert on_device(EngineConfig(max_num_seqs=5), cuda) == replace(on_cuda, max_num_seqs=5)


def test_the_config_says_what_was_left_open():
    config = LLM("embedded").config
    assert (config.device, config.dtype, config.max_model_len) == ("cpu", "float32", 1024)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.kv_memory_bytes) == (16, 512, 1 << 28)


def test_loading_tells_how_far_it_is():
    reports = []
    LLM("embedded", on_load_progress=reports.append)
    sizes = [report.num_bytes for report in reports]
    assert sizes == sorted(sizes)
    assert sizes[-1] == reports[-1].total_bytes > 0


@pytest.fixture
def bare(tmp_path):
    """A model that is a config.json and nothing else."""
    (tmp_path / "config.json").write_text(json.dumps({**TINY_GEMMA3, "max_position_embeddings": 64}))
    return str(tmp_path)


def test_dummy_weights_need_a_config_alone(bare):
    with LLM(bare, load_format="dummy", max_num_seqs=2) as llm:
        (first,), (again,) = (llm.generate([5, 6, 7], GREEDY) for _ in range(2))
        assert llm.config.load_format is LoadFormat.DUMMY
        assert first.outputs[0].token_ids == again.outputs[0].token_ids
        assert (len(first.outputs[0].token_ids), first.outputs[0].text) == (6, "")


def test_a_kind_of_files_that_was_asked_for_is_what_there_must_be(tmp_path):
    with LLM("embedded", load_format="safetensors") as llm:
        assert llm.config.load_format is LoadFormat.SAFETENSORS
    with pytest.raises(ConfigError, match="load_format: found 'gguf', and embedded is safetensors; wanted auto or saf"):
        LLM("embedded", load_format="gguf")
    path = write_gguf(tmp_path / "model.gguf", random_tensors(LLAMA))
    with LLM(str(path), load_format="gguf", skip_tokenizer_init=True) as llm:
        assert llm.config.load_format is LoadFormat.GGUF
    with pytest.raises(ConfigError, match=r"found 'safetensors', and model\.gguf is gguf"):
        LLM(str(path), load_format="safetensors")


def test_a_model_without_a_tokenizer_refuses_text(bare):
    with LLM(bare, load_format="dummy", max_num_seqs=2) as llm:
        with pytest.raises(RequestError, match="text, for a model without a tokenizer; wanted token ids"):
            llm.generate("The whale", GREEDY)
        with pytest.raises(RequestError, match="chat template"):
            llm.chat([{"role": "user", "content": "hello"}])


def test_skipping_the_tokenizer_changes_no_token():
    whole = LLM("embedded").generate([5, 6, 7], GREEDY)[0].outputs[0]
    ids_only = LLM("embedded", skip_tokenizer_init=True)
    found = ids_only.generate([5, 6, 7], GREEDY)[0].outputs[0]
    assert found.token_ids == whole.token_ids
    assert whole.text
    assert found.text == ""
    assert ids_only.tokenizer.special.eos_ids == {2}


@pytest.mark.parametrize(
    ("field", "value"), [("stop", ["a"]), ("bad_words", ["a"]), ("structured_outputs", {"regex": "a"})]
)
def test_what_is_said_of_a_text_is_refused_where_there_is_none(field, value):
    """A stop string that is never looked for would let an answer run on."""
    with (
        LLM("embedded", skip_tokenizer_init=True, max_num_seqs=2) as llm,
        pytest.raises(RequestError, match=f"{field}.*without a tokenizer"),
    ):
        llm.generate([5, 6, 7], SamplingParams(**{field: value}))


def test_tokens_without_text_are_not_looked_up_one_by_one(monkeypatch):
    """Of a long answer without a tokenizer every token would be asked for, when it ends."""
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=1)
    with LLM("embedded", skip_tokenizer_init=True) as llm:
        asked = []
        monkeypatch.setattr(TokenBytes, "of", lambda self, token, **options: asked.append(token))
        completion = llm.generate([5, 6, 7], params)[0].outputs[0]
    assert asked == []
    assert completion.text == ""
    assert {one.decoded_token for table in completion.logprobs for one in table.values()} == {None}


def test_a_model_may_be_a_path():
    path = Path(resolve_model_name("embedded"))
    with LLM(path, max_num_seqs=2) as llm, LLM(str(path), max_num_seqs=2) as by_name:
        assert repr(llm) == repr(by_name)
        assert llm.generate([5], GREEDY)[0].outputs == by_name.generate([5], GREEDY)[0].outputs


@pytest.mark.parametrize("door", [LLM, AsyncEngine, sgl.Engine])
@pytest.mark.parametrize("model", ["", None, 7])
def test_what_is_no_model_is_refused_by_name(door, model):
    """An empty name would be the working directory: a shell makes one of a variable that is not set."""
    with pytest.raises(ConfigError, match=f"^model: found {model!r}; wanted"):
        door(model)


def test_an_empty_name_of_a_tokenizer_is_refused_by_name():
    with pytest.raises(ConfigError, match="tokenizer: found ''; wanted"):
        LLM("embedded", tokenizer="")


def test_a_lone_sample_is_the_request_itself():
    with LLM("embedded") as llm:
        one, many = llm.generate([[5, 6], [7, 8]], [GREEDY, replace(GREEDY, n=2)])
    assert [output.index for output in many.outputs] == [0, 1]
    assert one.outputs[0].index == 0
    assert one.finished
    assert one.metrics.finished_s >= one.metrics.first_token_s >= one.metrics.arrival_s
    assert "." not in one.request_id + many.request_id


def test_dummy_weights_of_a_whole_model_keep_its_tokenizer():
    with LLM("embedded", load_format="dummy") as llm:
        completion = llm.generate("The whale", GREEDY)[0].outputs[0]
        assert completion.text == llm.tokenizer.decode(completion.token_ids) != ""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_bar_is_shown_to_a_terminal_that_wants_it(monkeypatch, capsys, is_terminal):
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if is_terminal else "0")
    with LLM("embedded", max_num_seqs=2) as llm:
        llm.generate([[5, 6], [7, 8]], GREEDY, use_tqdm=False)
        assert capsys.readouterr().err == ""
        llm.generate([[5, 6], [7, 8]], GREEDY)
        shown = capsys.readouterr().err
    assert ("2/2" in shown and "output" in shown) == is_terminal


def test_closing_ends_an_open_stream_with_what_it_has():
    llm = LLM("embedded", max_num_seqs=2)
    stream = llm.stream("The whale", GREEDY)
    first = next(stream)
    llm.close()
    (end,) = stream
    assert end.finished
    assert end.outputs[0].finish_reason is FinishReason.ABORT
    assert end.outputs[0].token_ids == first.outputs[0].token_ids
    assert not llm.is_busy


SMALLEST = {"max_model_len": 32, "max_num_seqs": 1, "max_num_batched_tokens": 4}


def test_what_a_captured_engine_keeps_is_not_looked_through_again_until_it_is_closed():
    """A collection of all of it takes longer than a step."""
    with LLM("embedded", **SMALLEST) as llm:
        assert gc.get_freeze_count() == 0
        llm.capture_graphs()
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0


def test_what_is_captured_one_by_one_is_left_out_too_where_a_collection_is_longer_than_a_step():
    with swapped(engine_module, "WHERE_PAUSES_SHOW", ("cpu",)), LLM("embedded", **SMALLEST) as llm:
        llm.generate([5] * 3, SamplingParams(max_tokens=3))
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0


def test_objects_stay_left_out_until_the_last_engine_that_captured_is_closed():
    with LLM("embedded", **SMALLEST) as llm:
        llm.capture_graphs()
        with LLM("embedded", **SMALLEST) as other:
            other.capture_graphs()
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0


def test_an_engine_that_is_dropped_without_closing_gives_its_memory_back():
    llm = LLM("embedded", **SMALLEST)
    llm.capture_graphs()
    worker = weakref.ref(llm.engine.worker)
    del llm
    gc.collect()
    assert gc.get_freeze_count() == 0
    assert worker() is None


def test_what_somebody_else_has_frozen_stays_frozen():
    gc.freeze()
    try:
        num_frozen = gc.get_freeze_count()
        with LLM("embedded", **SMALLEST) as llm:
            llm.capture_graphs()
        assert gc.get_freeze_count() > 0.99 * num_frozen  # a few of them have died since
    finally:
        gc.unfreeze()


def test_without_max_tokens_the_default_gives_way_to_the_context():
    with LLM("embedded", **SMALLEST | {"graph_mode": "eager"}) as llm:
        assert len(llm.generate([5] * 20)[0].outputs[0].token_ids) <= 12
        with pytest.raises(RequestError, match="'max_tokens': 16 after a prompt of 20 tokens; wanted at most 12"):
            llm.generate([5] * 20, SamplingParams(max_tokens=16))
