"""What the benches time is what their names say."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product

import pytest
import torch

from bench import fresh_start, measure, sampling
from bench.measured_llm import TimedSet, better
from bench.workload import ID_HIGH
from tests.unit.models.tiny import CONFIG


@pytest.mark.parametrize("num_bytes", [1, 256 << 10, 3 << 20, 64 << 20, 1 << 30])
def test_copies_that_a_graph_goes_round_do_not_fit_the_cache(num_bytes):
    assert measure.cold_copies(num_bytes) * num_bytes >= measure.COLD_BYTES
    assert measure.cold_copies(num_bytes) >= 2


def test_the_fewest_logits_that_are_sampled_from_have_a_thousand_copies():
    cases = product(sampling.BATCHES, sampling.VOCABS, (torch.bfloat16, torch.float32))
    sizes = [rows * vocab * dtype.itemsize for rows, vocab, dtype in cases]
    assert max(map(measure.cold_copies, sizes)) == 1047


def test_a_start_ends_with_its_first_token(tmp_path):
    config = {**CONFIG, "vocab_size": ID_HIGH, "max_position_embeddings": fresh_start.MAX_MODEL_LEN}
    (tmp_path / "config.json").write_text(json.dumps(config))
    llm, found = fresh_start.start(tmp_path)
    try:
        assert len(llm.llm.engine.timeline.newest(8)) == 1
        assert found["ready_s"] <= found["measured"]
    finally:
        llm.close()


def test_a_start_finds_the_modules_that_the_start_before_compiled(monkeypatch, tmp_path):
    """Also on a machine whose Python is told to write none, where every start would compile torch's again."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    source, caches = tmp_path / "module_of_a_start.py", tmp_path / "caches"
    source.write_text("number = 1")
    command = [sys.executable, "-c", f"import sys; sys.path = [{str(tmp_path)!r}, *sys.path]; import module_of_a_start"]
    for environment in (None, fresh_start.installed(caches)):
        subprocess.run(command, env=environment, check=True)
        assert len(list(caches.rglob("module_of_a_start*.pyc"))) == (environment is not None)
    assert not list(source.parent.glob("__pycache__"))


def test_of_two_mixed_sets_the_one_with_most_tokens_per_second_counts():
    """By all tokens, though another set may have more output per second."""
    much_out, much_in = TimedSet(10.0, 10, 100), TimedSet(12.0, 100, 90)
    assert better([much_out, much_in]) == much_in
    assert better([much_out, much_in._replace(seconds=30.0)]) == much_out
