"""`playhead plan`: every number follows from the others."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from playhead.cli.main import app
from tests.unit.models.text.embedded_copy import checkpoint

GEMMA_27B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "vision_config": {"model_type": "siglip_vision_model"},
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
        "vocab_size": 262208,
    },
}


def plan(*args: str) -> dict:
    result = CliRunner().invoke(app, ["plan", *args, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def gemma(tmp_path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_27B))
    return str(tmp_path)


def check_sums(made: dict) -> None:
    """What a reader can add up, adds up."""
    assert made["weight_bytes"] + made["kv_bytes"] + made["rest_bytes"] == made["memory_bytes"]
    together = made["slabs"].pop("together")
    assert sum(made["slabs"].values()) == together
    assert together * made["slab_bytes"] == made["kv_bytes"]
    assert min(made["slabs"].values()) >= 0
    assert made["fits"][-1]["context_tokens"] == made["max_model_len"]
    for fits in made["fits"]:
        whole = fits["num_requests"] * fits["context_tokens"]
        assert whole + fits["one_more_tokens"] == fits["num_tokens"]
        assert fits["one_more_tokens"] < fits["context_tokens"]


def test_the_sums_of_a_large_model_add_up(gemma):
    """One request of 131,072 tokens fits, and one more, shorter one: the tokens are those of both."""
    made = plan(gemma, "--gpu-memory", "80GB", "--max-num-seqs", "16")
    at_most = made["fits"][-1]
    assert (at_most["context_tokens"], at_most["num_requests"]) == (131072, 1)
    assert at_most["one_more_tokens"] > 0
    assert made["notes"][0].startswith("vision_config: the part of the model that reads images is left out")
    check_sums(made)


@pytest.mark.parametrize("args", [(), ("--gpu-memory", "11MiB"), ("--gpu-memory", "1GiB", "--max-num-seqs", "4")])
def test_the_sums_of_a_small_model_add_up(args):
    check_sums(plan("embedded", *args))


def test_without_a_gpu_the_plan_is_for_this_machine(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("playhead.cli.plan.free_host_bytes", lambda: 3 << 30)
    made = plan("embedded")
    assert (made["device"], made["dtype"], made["memory_bytes"]) == ("cpu", "float32", 3 << 30)
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["plan", "embedded"]).stdout
    assert "embedded on this machine's CPU, 3.00 GiB free" in shown
    assert "There is no GPU here: the plan is for the CPU." in shown


def test_the_tables_name_weights_groups_and_what_fits():
    args = ["plan", "embedded", "--gpu-memory", "1GiB", "--max-num-seqs", "4"]
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(app, args).stdout
    for part in ("weights", "KV arena", "together", "full", "window128", "sink", "1,024", "hybrid bound"):
        assert part in shown


def test_what_gave_way_is_said_in_flags():
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["plan", "embedded", "--gpu-memory", "11MiB"]).stdout
    assert "Set --max-model-len or --kv-memory-bytes to choose." in shown
    assert "max_model_len" not in shown


def test_the_tokenizer_is_looked_at_before_the_weights(tmp_path, gemma):
    assert plan(gemma, "--gpu-memory", "90GiB")["tokenizer"].startswith("not checked")
    assert plan("embedded")["tokenizer"].startswith("it can be read")
    (tmp_path / "bad").mkdir()
    bad = checkpoint(tmp_path / "bad", tokenizer={})
    assert "tokenizer.json" in plan(bad)["tokenizer"]
