"""Requests through the engine on the embedded model: how they end, what they report, what is refused."""

from __future__ import annotations

import itertools
import json

import pytest

from playhead.engine.front import split_n
from playhead.engine.response import num_held_back
from playhead.engine.timeline import EngineStats, StepRecord, Timeline
from playhead.errors import ConfigError, RequestError
from playhead.inputs import as_prompts
from playhead.kv.ledger import Ledger
from playhead.llm import LLM, EngineConfig
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    with LLM(config=EngineConfig(max_model_len=96, max_num_seqs=4, max_num_batched_tokens=32)) as made:
        yield made


def test_text_is_the_tokens_decoded(llm):
    (output,) = llm.generate("The whale", GREEDY)
    completion = output.outputs[0]
    assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert (len(completion.token_ids), completion.finish_reason) == (12, FinishReason.LENGTH)
    assert output.prompt == "The whale"


def test_a_stop_string_ends_the_text_before_it_and_is_never_shown(llm):
    text = llm.generate("The whale", GREEDY)[0].outputs[0].text
    stop = text[10:14]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[stop])
    shown = [output.outputs[0].text for output in llm.stream("The whale", params)]
    assert shown[-1] == text[: text.index(stop)]
    assert all(after.startswith(before) for before, after in itertools.pairwise(shown))
    completion = llm.generate("The whale", params)[0].outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, stop)


def test_a_stop_token_ends_the_request(llm):
    ids = llm.generate("The whale", GREEDY)[0].outputs[0].token_ids
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[ids[3]])
    completion = llm.generate("The whale", params)[0].outputs[0]
    assert completion.token_ids == ids[: ids.index(ids[3]) + 1]
    assert completion.stop_reason == ids[3]
    assert completion.text == llm.tokenizer.decode(completion.token_ids[:-1]) != ""


def test_held_back_text_is_what_may_become_a_stop_string():
    assert num_held_back("the en", ["end", "x"]) == 2
    assert num_held_back("the end of", ["end"]) == 0


def test_several_samples_have_seeds_of_their_own(llm):
    params = SamplingParams(n=3, seed=5, max_tokens=8, temperature=1.0)
    (output,) = llm.generate("The whale", params)
    alone = [llm.generate("The whale", SamplingParams(seed=5 + i, max_tokens=8))[0].outputs[0] for i in range(3)]
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert [c.token_ids for c in output.outputs] == [c.token_ids for c in alone]


def test_logprobs_come_with_the_best_candidates(llm):
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2)
    completion = llm.generate("The whale", params)[0].outputs[0]
    total = 0.0
    for token, entries in zip(completion.token_ids, completion.logprobs, strict=True):
        (chosen_id, best), (_, second) = entries.items()
        assert chosen_id == token
        assert 0 >= best.logprob >= second.logprob
        assert [best.rank, second.rank] == [1, 2]
        total += best.logprob
    assert completion.cumulative_logprob == pytest.approx(total)
    assert "".join(entries[i].decoded_token for i, entries in decoded(completion)) == completion.text


def test_a_token_that_is_not_among_the_best_is_reported_before_them(llm):
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=2, logit_bias={77: 100})
    (entries,) = llm.generate("The whale", params)[0].outputs[0].logprobs
    assert (next(iter(entries)), [entry.rank for entry in entries.values()][1:]) == (77, [1, 2])
    assert entries[77].rank > 2


def decoded(completion):
    return zip(completion.token_ids, completion.logprobs, strict=True)


def test_outputs_have_a_short_repr(llm):
    (output,) = llm.generate([5] * 40, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=1))
    assert "prompt_token_ids=[5, 5, 5, 5, 5, 5, 5, 5, ... <40 ids>]" in repr(output)
    assert "logprobs=<30 tables>" in repr(output)
    assert "finish_reason='length'" in repr(output)
    assert len(repr(output)) < 600


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "at least 1"),
        ([1, 4096], r"ids in \[0, 4096\)"),
        ([1, -1], "ids in"),
        ([1, True], "token ids"),
        ([1, 2.0], "token ids"),
        ([1] * 96, "at most 95"),
    ],
)
def test_bad_prompts_are_refused_and_others_go_on(llm, prompt, says):
    wanted = llm.generate("The whale", GREEDY)[0].outputs[0].token_ids
    stream = llm.stream("The whale", GREEDY)
    outputs = [next(stream)]
    with pytest.raises(RequestError, match=says):
        llm.engine.add_request("bad", prompt, GREEDY)
    outputs += list(stream)
    assert outputs[-1].outputs[0].token_ids == wanted


def test_a_stream_that_is_left_is_aborted(llm):
    stream = llm.stream("The whale", GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.has_work


def test_an_abort_answers_once(llm):
    llm.engine.add_request("gone", "The whale", GREEDY)
    llm.engine.step()
    output = llm.engine.abort("gone")
    assert output.outputs[0].finish_reason is FinishReason.ABORT
    assert llm.engine.abort("gone") is None


def test_prompts_may_be_one_or_many_text_or_ids():
    assert as_prompts("a") == ["a"]
    assert as_prompts(["a", "b"]) == ["a", "b"]
    assert as_prompts([1, 2]) == [[1, 2]]
    assert as_prompts([[1], [2]]) == [[1], [2]]


def test_chat_needs_a_template(llm, monkeypatch):
    monkeypatch.setattr(llm.engine.tokenizer, "chat_template", None)
    with pytest.raises(RequestError, match="chat template"):
        llm.chat([{"role": "user", "content": "hello"}])


def test_the_timeline_has_every_step_and_opens_as_a_trace(llm, tmp_path):
    before, num_prompt_tokens = len(llm.engine.timeline), llm.stats.num_prompt_tokens
    llm.generate(list(range(1, 41)), GREEDY)
    assert llm.stats.num_prompt_tokens == num_prompt_tokens + 40
    steps = list(llm.engine.timeline)[before:]
    assert [step.raw for step in steps] == [32, 8] + [1] * 11
    assert all(step.padded >= step.raw and step.launch_us > 0 and step.device_us > 0 for step in steps)
    assert [step.mode for step in steps[:3]] == ["breakable", "breakable", "full"]
    assert steps[0].pages.keys() == {"full", "window128"}
    path = tmp_path / "trace.json"
    llm.engine.timeline.write(path)
    events = json.loads(path.read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert len(bars) == len(llm.engine.timeline)
    assert bars[-1]["args"]["reason"] == "a captured size fits"


def test_the_timeline_forgets_the_oldest():
    timeline = Timeline(max_steps=2)
    for number in range(3):
        timeline.add(
            StepRecord(
                number=number,
                mode="full",
                reason="",
                raw=1,
                padded=1,
                num_requests=1,
                started_us=0.0,
                plan_us=1.0,
                launch_us=2.0,
                read_us=9.0,
                wait_us=3.0,
                commit_us=4.0,
                device_us=8.0,
                pages={},
            )
        )
    assert [step.number for step in timeline] == [1, 2]
    assert [start for _, start, _ in next(iter(timeline)).phases] == [0.0, 1.0, 9.0, 12.0]


def test_two_streams_at_once_each_get_all_of_their_own(llm):
    alone = [llm.generate(prompt, GREEDY)[0].outputs[0].token_ids for prompt in ("The whale", "My lord")]
    streams = [llm.stream(prompt, GREEDY) for prompt in ("The whale", "My lord")]
    outputs = [[next(stream)] for stream in streams]
    for seen, stream in zip(outputs, streams, strict=True):
        seen += list(stream)
    assert [seen[-1].outputs[0].token_ids for seen in outputs] == alone
    assert [len(seen) for seen in outputs] == [12, 12]


def test_stop_strings_are_in_force_from_min_tokens_on(llm):
    """What was shown before stays, though it has the stop string in it."""
    text = llm.generate("The whale", GREEDY)[0].outputs[0].text
    params = SamplingParams(temperature=0, max_tokens=12, min_tokens=8, ignore_eos=True, stop=[text[0]])
    shown = [output.outputs[0].text for output in llm.stream("The whale", params)]
    assert all(after.startswith(before) for before, after in itertools.pairwise(shown))
    assert len(shown) >= 8


def test_a_failed_step_leaves_the_engine_and_the_prefix_cache_sound(llm):
    """The launch had offered the prompt's pages; nobody may be given KV that was never computed."""
    prompt = [1, *range(100, 150)]
    wanted = LLM(config=EngineConfig(max_model_len=96)).generate([prompt], GREEDY)[0].outputs[0].token_ids
    run, llm.engine.worker.prefill.run = llm.engine.worker.prefill.run, broken
    with pytest.raises(MemoryError):
        llm.generate([prompt], GREEDY)
    llm.engine.worker.prefill.run = run
    output = llm.generate([prompt], GREEDY)[0]
    assert output.outputs[0].token_ids == wanted
    assert Ledger(llm.engine.worker.kv).audit() == []


def broken(*args, **kwargs):
    raise MemoryError("as a late capture may")


def test_a_failed_step_is_computed_again_for_those_who_stay(llm):
    wanted = llm.generate("The whale", GREEDY)[0].outputs[0].token_ids
    llm.engine.add_request("stays", "The whale", GREEDY)
    llm.engine.step()
    run, llm.engine.worker.decode.run = llm.engine.worker.decode.run, broken
    with pytest.raises(MemoryError):
        llm.engine.step()
    llm.engine.worker.decode.run = run
    outputs = []
    while llm.engine.has_work:
        outputs += llm.engine.step()
    assert outputs[-1].outputs[0].token_ids == wanted


@pytest.mark.parametrize("prompts", [[1, "a"], b"abc", ["a", "\ud800"]])
def test_bad_lists_of_prompts_are_refused_before_anything_runs(llm, prompts):
    with pytest.raises(RequestError):
        llm.generate(prompts, GREEDY)
    assert not llm.engine.has_work


def test_seeds_of_samples_wrap_around():
    assert [one.seed for one in split_n(SamplingParams(n=2, seed=2**63 - 1))] == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_model_len": 0}, "max_model_len: found 0"),
        ({"max_model_len": 10**6}, "wanted 1 to 1024"),
        ({"device": "banana"}, "device: found 'banana'"),
        ({"dtype": "int3"}, "dtype: found 'int3'"),
        ({"kv_memory_bytes": 0}, "kv_memory_bytes: found 0"),
    ],
)
def test_bad_settings_are_refused_with_their_names(settings, says):
    with pytest.raises(ConfigError, match=says):
        LLM(**settings)


def test_stats_since_a_copy_count_everything_and_leave_the_copy_alone():
    stats = EngineStats(num_steps=5, num_wasted_rows=2, modes={"full": 3, "eager": 2})
    before = stats.copy()
    stats.num_steps, stats.num_wasted_rows, stats.modes["full"] = 9, 3, 7
    assert stats.since(before) == EngineStats(num_steps=4, num_wasted_rows=1, modes={"full": 4})
    assert before == EngineStats(num_steps=5, num_wasted_rows=2, modes={"full": 3, "eager": 2})
