"""Messages between the processes: everything arrives as it was sent, and bytes that are none of ours are refused."""

from __future__ import annotations

import socket
from array import array
from dataclasses import fields, replace

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import playhead
from playhead.engine.config import EngineConfig
from playhead.engine.snapshot import take_snapshot
from playhead.errors import (
    CheckpointError,
    ConfigError,
    NoTokenLeft,
    OutOfPages,
    PagesLost,
    QueueFull,
    RequestError,
    RequestFailed,
    StepFailed,
)
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.serve import engine_process, wire
from playhead.serve.engine_process import EngineLoop, Inbox, Outbox
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.tiny_engine import small_llm
from playhead.types import LoadFormat, Mode

OTHERS = {
    "n": 3,
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "min_p": 0.25,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {7: 1.5, 9: -2},
    "seed": 2**63 - 1,
    "logprobs": 2,
    "prompt_logprobs": 0,
    "stop": ("a", "é\n"),
    "stop_token_ids": (7, 8),
    "include_stop_str_in_output": True,
    "bad_words": ("b",),
    "allowed_token_ids": (3, 4),
    "min_tokens": 2,
    "max_tokens": None,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "detokenize": False,
    "truncate_prompt_tokens": 9,
    "output_kind": RequestOutputKind.DELTA,
    "structured_outputs": StructuredOutputs(json={"type": "array", "items": {"enum": ["a", 1]}}),
}
"""A value of every sampling parameter that is not its default."""


def through(fields):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("name", [one.name for one in fields(SamplingParams)])
def test_every_sampling_parameter_travels(name):
    params = SamplingParams(**{name: OTHERS[name]})
    assert wire.params_of(through(wire.params_fields(params))) == params
    assert params != SamplingParams()


def test_parameters_at_their_defaults_cost_nothing():
    assert set(wire.params_fields(SamplingParams(temperature=0))) <= {"temperature", "logit_bias"}


def test_an_engines_settings_travel():
    config = EngineConfig(device="cpu", graph_mode=Mode.EAGER, load_format=LoadFormat.DUMMY, seed=-5, page_size=8)
    assert wire.config_of(through(wire.config_fields(config))) == config


words = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(words, st.lists(words, max_size=4), st.sampled_from(range(5)), words), max_size=6), st.data())
def test_a_step_travels_in_any_pieces(rows, data):
    step = wire.StepTokens(
        num_steps=2**40,
        numbers=[row[0] for row in rows],
        counts=[len(row[1]) for row in rows],
        ends=[row[2] for row in rows],
        cached=[row[3] for row in rows],
        tokens=[token for row in rows for token in row[1]],
    )
    sent = wire.framed_step(step) + wire.framed(wire.Abort((1, 2))) + wire.framed_step(step)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=5)))
    frames, found = wire.Frames(), []
    for start, stop in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += frames.feed(sent[start:stop])
    assert [kind for kind, _ in found] == [wire.Kind.STEP, wire.Kind.MESSAGE, wire.Kind.STEP]
    assert wire.read_order(found[1][1]) == wire.Abort((1, 2))
    for _, payload in found[::2]:
        got = wire.read_step(payload)
        assert [list(got.numbers), list(got.counts), list(got.ends), list(got.cached), list(got.tokens)] == [
            step.numbers,
            step.counts,
            step.ends,
            step.cached,
            step.tokens,
        ]
        assert got.num_steps == step.num_steps


@pytest.mark.parametrize(
    "read",
    [
        lambda: list(wire.Frames().feed(b"\xff\xff\xff\xff\x01")),
        lambda: wire.read_news(b"\xc1"),
        lambda: wire.read_news(msgspec.msgpack.encode({"type": "run", "code": "1"})),
        lambda: wire.read_order(msgspec.msgpack.encode({"type": "abort", "numbers": ["1"]})),
        lambda: wire.read_step(b"\0" * 8),
        lambda: wire.read_step(wire.STEP_HEAD.pack(1, 2, 3) + b"\0" * 8),
        lambda: wire.read_step(wire.STEP_HEAD.pack(1, 1, 1) + array("I", [7, 2, 0, 0, 5]).tobytes()),
        lambda: wire.read_step(wire.STEP_HEAD.pack(1, 1, 1) + array("I", [7, 1, 99, 0, 5]).tobytes()),
        lambda: wire.words_of(b"\0" * 7),
    ],
)
def test_bytes_of_nobody_are_refused(read):
    with pytest.raises(wire.FrameError):
        read()


@pytest.mark.parametrize(
    ("error", "arrived"),
    [
        (RequestError("a", "b", "c", "d"), RequestError("a", "b", "c", "d")),
        (QueueFull("a", "b", "c", "d"), QueueFull("a", "b", "c", "d")),
        (PagesLost("7", "page 3 twice"), PagesLost("mine", "page 3 twice")),
        (NoTokenLeft("7", 5), NoTokenLeft("mine", 5)),
        (StepFailed("request '7'"), StepFailed("request 'mine'")),
        (RequestFailed("7"), RequestFailed("mine")),
        (OutOfPages("full", 2, 1), RequestFailed("mine")),
    ],
)
def test_a_requests_error_arrives_with_its_kind_and_its_own_id(error, arrived):
    found = wire.request_error(wire.note_of(error), "mine")
    assert (type(found), str(found)) == (type(arrived), str(arrived))


@pytest.mark.parametrize("error", [ConfigError("max_num_seqs: found 0."), CheckpointError("a", "b", "c", "d")])
def test_what_an_engine_was_refused_for_arrives(error):
    found = wire.start_error(wire.note_of(error))
    assert (type(found), str(found)) == (type(error), str(error))


def news_from(connection):
    """Messages and steps until this side has read everything there is."""
    frames, found = wire.Frames(), []
    connection.setblocking(False)
    while True:
        try:
            data = connection.recv(1 << 20)
        except BlockingIOError:
            return found
        for kind, payload in frames.feed(data):
            found.append(wire.read_step(payload) if kind == wire.Kind.STEP else wire.read_news(payload))


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_an_outbox_never_waits_for_its_reader_and_keeps_the_order(pair):
    ours, theirs = pair
    outbox = Outbox(theirs)
    for i in range(300):
        outbox.send(wire.framed(wire.Failed(i, wire.ErrorNote("x" * 10_000))))
    assert outbox.is_behind
    frames, numbers = wire.Frames(), []
    while len(numbers) < 300:
        numbers += [wire.read_news(payload).number for _, payload in frames.feed(ours.recv(1 << 16))]
    assert numbers == list(range(300))


def submit(number, params):
    sent = array(wire.WORD, [5, 6, 7]).tobytes()
    return wire.framed(wire.Submit(number, sent, wire.params_fields(params), max_new_tokens=4))


def turns(loop, llm):
    while True:
        loop.turn()
        if not llm.engine.has_work:
            return


def test_a_step_that_raises_ends_its_requests_and_the_next_ones_are_served(pair, monkeypatch):
    ours, theirs = pair
    llm, params = small_llm(), SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    loop = EngineLoop(llm.engine, Inbox(theirs, on_end=lambda: None), Outbox(theirs))
    with monkeypatch.context() as broken:
        broken.setattr(llm.engine.worker, "launch", lambda chunks: 1 / 0)
        ours.sendall(submit(1, params))
        turns(loop, llm)
    failed = [news for news in news_from(ours) if isinstance(news, wire.Failed)]
    assert [(one.number, one.error.name) for one in failed] == [(1, "StepFailed")]
    ours.setblocking(True)
    ours.sendall(submit(2, params) + submit(3, replace(params, max_tokens=2, logprobs=1)))
    turns(loop, llm)
    steps = [news for news in news_from(ours) if isinstance(news, wire.StepTokens)]
    rows = [row for step in steps for row in zip(step.numbers, step.counts, step.ends, strict=True)]
    assert sum(count for number, count, _ in rows if number == 2) == 4
    assert {number for number, _, end in rows if end} == {2, 3}


def test_a_snapshot_travels():
    llm = small_llm()
    llm.generate([5, 6, 7], SamplingParams(max_tokens=2))
    shown = wire.Shown(take_snapshot(llm.engine))
    ((_, payload),) = wire.Frames().feed(wire.framed(shown))
    assert wire.read_news(payload) == shown


def test_logprobs_of_a_long_prompt_come_in_messages_of_a_bounded_size(pair, monkeypatch):
    """All in one could be larger than a frame may be, and the engine would die of the request that asked for them."""
    monkeypatch.setattr(engine_process, "REPORTS_PER_FRAME", 12)
    ours, theirs = pair
    llm = small_llm()
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=2, logprobs=1)
    wanted = llm.generate([5, 6, 7, 8, 9, 10, 11, 12], params)[0]
    loop = EngineLoop(llm.engine, Inbox(theirs, on_end=lambda: None), Outbox(theirs))
    ids = array("I", [5, 6, 7, 8, 9, 10, 11, 12]).tobytes()
    order = wire.Submit(number=1, ids=ids, params=wire.params_fields(params), max_new_tokens=2)
    ours.sendall(wire.framed(order))
    turns(loop, llm)
    reports = [news for news in news_from(ours) if isinstance(news, wire.Reports)]
    assert max(sum(map(len, one.prompt)) for one in reports) <= 12
    prompt = [position for one in reports for position in one.prompt]
    assert [[entry[0] for entry in position] for position in prompt] == [[*one] for one in wanted.prompt_logprobs[1:]]
    tokens = [position[0][0] for one in reports for position in one.tokens]
    assert tokens == wanted.outputs[0].token_ids


@pytest.mark.parametrize("version", ["0.0.0", ""])
def test_an_engine_of_another_version_than_its_front_is_refused_in_words(version):
    """Its messages may mean something else. Nodes of a cluster can have different packages."""
    with pytest.raises(ConfigError, match=f"and its front has {version}. Install the same on every node"):
        engine_process.check_version(version)
    assert wire.read_order(wire.ENCODER.encode(wire.Begin("m", {}, None))).version == playhead.__version__


def test_an_engine_whose_device_is_lost_ends_and_tells_its_requests_nothing(pair, monkeypatch):
    """Its process ends, and its requests go on elsewhere. It would fail everything that it is sent from then on."""
    ours, theirs = pair
    llm = small_llm()
    loop = EngineLoop(llm.engine, Inbox(theirs, on_end=lambda: None), Outbox(theirs))
    ours.sendall(submit(1, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)))
    monkeypatch.setattr(llm.engine.worker, "launch", lambda chunks: 1 / 0)
    monkeypatch.setattr(engine_process, "device_is_lost", lambda device: True)
    with pytest.raises(ZeroDivisionError):
        turns(loop, llm)
    assert not [news for news in news_from(ours) if isinstance(news, wire.Failed)]
    llm.engine.abort("1")


def test_a_cpu_is_never_lost():
    assert not engine_process.device_is_lost(torch.device("cpu"))
