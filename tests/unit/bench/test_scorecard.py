"""The scorecard's arithmetic: floors, peers, ratios, and what a budget leaves out."""

from __future__ import annotations

import json

import pytest

from bench import decode_profile, h200, scorecard
from bench.decode_profile import Span
from bench.measured_llm import workload_a
from bench.scorecard import CELLS, MODELS, Case


def case(cell: str, name: str) -> Case:
    return next(one for one in CELLS[cell] if one.name == name)


@pytest.mark.parametrize(
    ("model", "cell", "floors"),
    [
        ("gemma3-1b", "decode", [0.469, 0.494, 0.582, 0.933]),
        ("gemma3-4b", "decode", [1.838, 2.070, 2.866, 6.050]),
        ("llama3.2-1b", "decode", [0.583, 0.637, 0.825, 1.574]),
        ("gemma3-4b", "context", [1.872, 3.958, 10.42]),
    ],
)
def test_the_floor_of_a_decode_step_is_its_bytes_at_the_memorys_pace(model, cell, floors):
    """Worked out by hand from the shapes: 4.3 TB/s, every weight once, every live key and value once."""
    assert [scorecard.floor_of(model, one) for one in CELLS[cell]] == pytest.approx(floors, abs=2e-3)


def test_a_ratio_above_one_is_ahead_whatever_the_unit():
    fast = scorecard.line("gemma3-1b", case("decode", "batch 1"), 1.022)
    assert (fast["peer"], fast["ratio"]) == ("vLLM", pytest.approx(2.0, rel=1e-3))
    assert fast["fraction_of_floor"] == pytest.approx(0.459, rel=1e-3)
    slow = scorecard.line("gemma3-1b", case("mixed", "256 requests"), 14039.0)
    assert (slow["peer"], slow["ratio"], slow["floor"]) == ("SGLang", pytest.approx(0.5, rel=1e-3), None)


def test_every_figure_of_a_peer_belongs_to_a_case():
    """A figure under a name that is spelled otherwise would never be compared with anything."""
    known = {name: {one.name for one in cases} for name, cases in CELLS.items()}
    for model, cells in scorecard.record()["peers"].items():
        assert model in MODELS
        for cell, cases in cells.items():
            assert set(cases) <= known[cell]
    for model, cells in list(scorecard.record()["floors"].items())[1:]:
        assert model in MODELS
        assert set(cells.get("prefill", ())) <= known["prefill"]


def test_every_case_can_be_measured():
    assert set(CELLS) == {*h200.MEASURE, "start", "capture"}


def test_workload_a_has_the_tokens_that_its_authors_publish():
    prompts, out_lens = workload_a()
    assert (sum(map(len, prompts)), sum(out_lens)) == (142_827, 133_966)


def test_a_case_that_does_not_fit_the_budget_is_named(capsys):
    run = h200.Run(budget_s=10.0)
    assert run.has_room("gemma3-1b", case("decode", "batch 1"))
    assert not run.has_room("gemma3-4b", case("context", "batch 128"))
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["case"]) == ("gemma3-4b", "batch 128")
    assert told["skipped"].startswith("takes about 45 s")


def test_a_name_that_is_unknown_is_refused_with_the_known_ones(capsys):
    assert h200.options(["--models", "gemma3-4b", "--cells", "decode,mixed"]).cells == ["decode", "mixed"]
    with pytest.raises(SystemExit):
        h200.options(["--cells", "decoding"])
    assert "found decoding; wanted some of decode,prefill" in capsys.readouterr().err


def test_a_profile_gives_each_kernel_its_part_of_a_step():
    # Steps of 6 us. Each b starts 1 us before the a in front of it ends, and ends 2 us after it.
    kernels = [Span(*one) for at in (0.0, 6.0) for one in (("a", at, at + 3.0), ("b", at + 2.0, at + 5.0))]
    found = decode_profile.summed(kernels, num_steps=2, step_us=6.0)
    assert found["kernels"] == [{"kernel": "b", "behind": "a < b < a", "count": 0.5, "own_us": 3.0, "adds_us": 2.0}]
    assert (found["kernels_us"], found["gaps_us"], found["nodes"]) == (6.0, 0.0, 2.0)
