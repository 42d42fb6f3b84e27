"""Figures are of what ran: the prompts are the seed's, every token is counted, and the file says how to repeat it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from playhead.cli.main import app
from playhead.cli.options import WorkloadSpec
from playhead.cli.workload import random_workload, run_workload, spread
from playhead.llm import LLM

SPEC = WorkloadSpec(num_prompts=5, input_len=12, output_len=6, random_range_ratio=0.5, seed=3)


def test_a_seed_gives_its_prompts_and_a_variant_their_lengths():
    first, again, other = (random_workload(SPEC, 100, variant=variant) for variant in (0, 0, 1))
    assert first == again
    assert [len(p) for p in first.prompts] == [len(p) for p in other.prompts]
    assert first.prompts != other.prompts
    assert first.params == other.params


def test_lengths_stay_in_their_range():
    spec = WorkloadSpec(num_prompts=300, input_len=10, output_len=1, random_range_ratio=0.5)
    workload = random_workload(spec, 50)
    assert {len(prompt) for prompt in workload.prompts} == set(range(5, 16))
    assert {one.max_tokens for one in workload.params} == {1}
    assert all(0 <= token < 50 for prompt in workload.prompts for token in prompt)


def test_every_token_of_every_prompt_is_timed():
    finished = []
    with LLM("embedded", max_num_seqs=2, max_model_len=64) as llm:
        workload = random_workload(SPEC, llm.engine.reader.vocab_size)
        run = run_workload(llm, workload, finished.append)
        again = run_workload(llm, workload, finished.append)
    assert [len(times) - 1 for times in run.token_times_s] == [one.max_tokens for one in workload.params]
    assert run.num_output_tokens == sum(one.max_tokens for one in workload.params)
    assert run.num_input_tokens == run.stats.num_prompt_tokens == sum(map(len, workload.prompts))
    assert len(run.between_tokens_ms) == run.num_output_tokens - 5
    assert 0 < run.all_begun_s <= run.seconds
    assert sum(run.stats.modes.values()) == run.stats.num_steps
    assert again.stats.num_generated_tokens == run.stats.num_generated_tokens
    assert len(finished) == 10


def test_an_interrupted_run_leaves_nothing_in_the_engine():
    def interrupt(output):
        raise KeyboardInterrupt

    with LLM("embedded", max_num_seqs=2, max_model_len=64) as llm:
        with pytest.raises(KeyboardInterrupt):
            run_workload(llm, random_workload(SPEC, 100), interrupt)
        assert not llm.engine.has_work


def test_spread_of_known_values():
    assert spread([1.0, 2.0, 3.0], (50,)) == {"mean": 2.0, "p50": 2.0}
    assert spread([]) == {}


@pytest.mark.parametrize(
    ("args", "figures"),
    [
        (
            ("throughput", "--num-prompts", "3", "--max-num-seqs", "2"),
            {"requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "tokens_per_step", "preemptions"},
        ),
        (("latency", "--batch-size", "2", "--num-iters", "2"), {"latency_ms", "prefill_ms", "ms_per_output_token"}),
    ],
    ids=["throughput", "latency"],
)
def test_bench_prints_a_table_and_writes_how_to_repeat_it(tmp_path, args, figures):
    path = tmp_path / "bench.json"
    more = ("--input-len", "8", "--output-len", "4", "--load-format", "dummy", "--enforce-eager", "--json", str(path))
    result = CliRunner().invoke(app, ["bench", *args, *more])
    assert result.exit_code == 0, result.output
    assert "eager: graphs are off" in result.stdout
    record = json.loads(path.read_text())
    assert figures | {"steps"} <= set(record["figures"])
    assert set(record) == {"model", "figures", "workload", "engine", "hardware", "versions"}
    assert record["engine"]["load_format"] == "dummy"
    assert record["engine"]["max_num_seqs"] == 2
    assert record["workload"]["input_len"] == 8
    assert {"CPU", "memory", "GPU"} <= set(record["hardware"])
    assert {"playhead", "torch"} <= set(record["versions"])


def test_the_second_pass_finds_no_prompt_of_the_first(tmp_path):
    """The warm-up has the same lengths, so the same steps, but shares no prefix with what is measured."""
    path = tmp_path / "bench.json"
    args = ["--num-prompts", "2", "--input-len", "40", "--output-len", "4", "--json", str(path)]
    assert CliRunner().invoke(app, ["bench", "throughput", *args]).exit_code == 0
    figures = json.loads(path.read_text())["figures"]
    assert figures["cached_share"] == 0
    assert not [mode for mode in figures["steps"] if "first use" in mode]
