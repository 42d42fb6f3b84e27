"""What is logged, who sees it, and that no prompt and no text is ever in it."""

from __future__ import annotations

import json
import logging

import pytest

from playhead.errors import ConfigError
from playhead.llm import LLM
from playhead.logs import NAME, StderrHandler, event, set_up_logging, shown_words
from playhead.sampling_params import SamplingParams

SMALL = {"max_model_len": 32, "max_num_seqs": 1, "max_num_batched_tokens": 4, "kv_memory_bytes": 1 << 23}
CANARY = "zanzibar"
PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


@pytest.fixture(autouse=True)
def _as_before():
    logger = logging.getLogger(NAME)
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers = propagate, handlers


def run_and_fail(monkeypatch) -> str:
    """A model is loaded and captured; one request is answered, one refused, one fails. Gives all text there was."""

    def broken(*args, **kwargs):
        raise ValueError(f"the text {CANARY} cannot be made")

    with LLM("embedded", **SMALL) as llm:
        llm.capture_graphs()
        answer = llm.generate(CANARY, PARAMS)[0].outputs[0].text
        with pytest.raises(Exception, match="wanted"):
            llm.generate(f"{CANARY} " * 100, PARAMS)
        with monkeypatch.context() as patched:
            patched.setattr("playhead.engine.response.ResponseBuilder.take", broken)
            assert llm.generate(CANARY, PARAMS)[0].error is not None
    return answer


def test_nothing_is_shown_unless_it_is_asked_for(monkeypatch, capsys):
    monkeypatch.delenv("PLAYHEAD_LOG", raising=False)
    run_and_fail(monkeypatch)
    assert capsys.readouterr() == ("", "")


def test_json_lines_say_what_happened_without_a_prompt_or_a_text(monkeypatch, capsys):
    monkeypatch.setenv("PLAYHEAD_LOG", "debug,json")
    answer = run_and_fail(monkeypatch)
    shown = capsys.readouterr().err
    records = [json.loads(line) for line in shown.splitlines()]
    events = [record["event"] for record in records]
    assert events[:2] == ["model loaded", "KV memory planned"]
    assert {"graph captured", "graphs captured", "request failed"} <= set(events)
    (loaded,), (failed,) = ([one for one in records if one["event"] == what] for what in (events[0], "request failed"))
    assert (loaded["model"], loaded["dtype"], loaded["level"]) == ("embedded", "float32", "info")
    assert loaded["weight_bytes"] > 0
    assert (failed["error"], failed["cause"]) == ("RequestFailed", "ValueError")
    assert CANARY not in shown
    assert answer not in shown


def test_a_line_of_text_has_the_facts(monkeypatch, capsys):
    monkeypatch.setenv("PLAYHEAD_LOG", "info")
    set_up_logging()
    set_up_logging()
    event(logging.getLogger("playhead.tests"), logging.INFO, "tea made", cups=2, seconds=1.5)
    event(logging.getLogger("playhead.tests"), logging.DEBUG, "water boiled")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("playhead.tests INFO tea made: cups=2, seconds=1.500")


def test_a_programs_own_handler_gets_the_facts(caplog):
    with caplog.at_level(logging.INFO, logger=NAME):
        event(logging.getLogger("playhead.tests"), logging.INFO, "tea made", cups=2)
    (record,) = caplog.records
    assert record.facts == {"cups": 2}
    assert record.message == "tea made: cups=2"


@pytest.mark.parametrize("words", ["loud", "info,debug", "info,xml"])
def test_a_switch_that_means_nothing_is_refused(monkeypatch, words):
    monkeypatch.setenv("PLAYHEAD_LOG", words)
    with pytest.raises(ConfigError, match=f"PLAYHEAD_LOG: found '{words}'; wanted one of debug, info"):
        set_up_logging()
    assert not any(isinstance(handler, StderrHandler) for handler in logging.getLogger(NAME).handlers)


@pytest.mark.parametrize("words", ["info,json", "debug", "warning"])
def test_what_is_shown_can_be_said_to_another_process(monkeypatch, words):
    assert shown_words() == ""
    monkeypatch.setenv("PLAYHEAD_LOG", words)
    set_up_logging()
    assert shown_words() == words
