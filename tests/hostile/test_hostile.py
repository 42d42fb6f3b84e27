"""Hostile checkpoints load right or end in a typed error: no raw exception, no hang, no abort.

A slice by default; all of them with PLAYHEAD_HOSTILE=full.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from playhead.testing.hostile import all_cases

KINDS = (
    "safetensors",
    "index",
    "config",
    "generation config",
    "tokenizer config",
    "tokenizer",
    "template",
    "gguf",
    "gguf gemma",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "outcomes.json"
    every = "1" if os.environ.get("PLAYHEAD_HOSTILE") == "full" else "11"
    command = [sys.executable, "-m", "playhead.testing.hostile", "--every", every, "--json", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    print(ran.stdout[-20_000:])
    assert path.is_file(), ran.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_file_loads_right_or_ends_in_a_typed_error(outcomes, kind):
    mine = [outcome for outcome in outcomes if outcome["kind"] == kind]
    wrong = [outcome for outcome in mine if outcome["verdict"] not in ("loaded", "refused")]
    assert len(mine) > 8
    assert wrong == []
    assert {"loaded", "refused"} <= {outcome["verdict"] for outcome in mine}, (
        "some of each: the cases are not all alike"
    )


def test_there_are_enough_cases_and_they_are_the_same_each_time():
    first, again = all_cases(), all_cases()
    assert len(first) >= 800
    assert {case.kind for case in first} == set(KINDS)
    names = [(case.kind, case.name) for case in first]
    assert len(set(names)) == len(names)
    assert [case.make() for case in first[::97]] == [case.make() for case in again[::97]]


def test_the_runner_notices_every_way_to_end_wrongly():
    ran = subprocess.run([sys.executable, "-m", "tests.hostile.canaries"], capture_output=True, text=True, check=True)
    assert dict(line.split(": ") for line in ran.stdout.splitlines()) == {
        "fine": "loaded",
        "refuse": "refused",
        "hang": "over the CPU limit",
        "raise raw": "raw exception",
        "take too much": "raw exception",
        "abort": "ended by a signal",
        "panic": "raw exception",
        "leave": "ended by a signal",
        "wait a little": "loaded",
    }


def test_the_doctor_finds_something_wrong_with_whatever_cannot_be_loaded():
    command = [sys.executable, "-m", "playhead.testing.hostile", "--every", "67", "--doctor"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
