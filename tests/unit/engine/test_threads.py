"""Threads on one LLM: their calls are served together, and whatever one of them does, the others get their own tokens.

No test sleeps: threads meet at barriers, in the middle of a step, and in the line for the next turn.
"""

from __future__ import annotations

import threading

import pytest

from playhead.engine.turns import Turns
from playhead.errors import MisuseError
from playhead.llm import LLM
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams
from playhead.testing.fault_runs import leftovers
from playhead.testing.threads import HANGS_S, Beside, in_a_step, in_line

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SMALL = {"max_model_len": 96, "max_num_seqs": 2, "kv_memory_bytes": 1 << 23, "graph_mode": "eager"}


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", **SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def wanted(llm):
    return tokens(llm.generate("The whale", GREEDY))


@pytest.fixture(autouse=True)
def _idle_afterwards(request):
    yield
    if "llm" in request.fixturenames:
        llm = request.getfixturevalue("llm")
        assert leftovers(llm.engine) == []
        assert not llm.is_busy
        assert not llm.engine.has_work


def tokens(outputs) -> list[tuple[int, ...]]:
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def generating(llm, prompt="The whale") -> Beside:
    return Beside(lambda: tokens(llm.generate(prompt, GREEDY)))


def beside_a_step(llm, thread) -> None:
    """The thread comes while this one is in the middle of a step."""
    with in_a_step(llm, lambda: in_line(thread, llm._calls._turns)):
        llm.generate("Call me", GREEDY)


def test_four_threads_with_several_batches_each_get_the_tokens_they_get_alone(llm):
    """Ten prompts of a thread are more than the queue has room for: threads share the room that comes free."""
    batches = [[[5 + 40 * t + i, 6, 7] for i in range(10)] for t in range(4)]
    params = SamplingParams(seed=3, max_tokens=3)
    alone = [tokens(llm.generate(batch, params)) for batch in batches]
    together = threading.Barrier(4)

    def several(batch) -> list[list[tuple[int, ...]]]:
        together.wait(HANGS_S)
        return [tokens(llm.generate(batch, params)) for _ in range(2)]

    threads = [Beside(lambda batch=batch: several(batch)) for batch in batches]
    for thread in threads:
        thread.start()
    assert [thread.result() for thread in threads] == [[wanted, wanted] for wanted in alone]


def test_a_call_that_comes_in_the_middle_of_a_step_is_served_with_the_others(llm, wanted):
    thread, before = generating(llm), llm.stats.num_steps
    beside_a_step(llm, thread)
    assert thread.result() == wanted
    assert llm.stats.num_steps - before < 2 * GREEDY.max_tokens  # one after the other takes as many


def test_streams_of_two_threads_go_on_side_by_side(llm):
    alone = [list(llm.stream(prompt, GREEDY)) for prompt in ("The whale", "Call me")]
    turn = threading.Barrier(2)

    def in_step_with_the_other(prompt):
        outputs = []
        for output in llm.stream(prompt, GREEDY):
            outputs.append(output)
            turn.wait(HANGS_S)  # both have as many
        return outputs

    threads = [Beside(lambda prompt=prompt: in_step_with_the_other(prompt)) for prompt in ("The whale", "Call me")]
    for thread in threads:
        thread.start()
    assert [tokens(thread.result()) for thread in threads] == [tokens(outputs) for outputs in alone]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_step_that_raises_ends_the_call_of_its_own_thread_alone(llm, wanted, error):
    def fail() -> None:
        raise error("as a late capture may, or Ctrl-C")

    stream = llm.stream("The whale", GREEDY)
    outputs = [next(stream)]
    with in_a_step(llm, fail):
        thread = generating(llm, "Call me")
        thread.start()
        with pytest.raises(error):
            thread.result()
    outputs += list(stream)
    assert tokens(outputs[-1:]) == wanted


def test_an_interrupt_right_after_a_step_loses_nobodys_last_output(llm, wanted, monkeypatch):
    stream, advance = llm.stream("The whale", GREEDY), llm.engine.advance
    outputs = [next(stream) for _ in range(GREEDY.max_tokens - 1)]

    def interrupted() -> None:
        advance()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("Call me", GREEDY)
    outputs += list(stream)
    assert tokens(outputs[-1:]) == wanted


class Interrupted:
    """The lock of the thread before, when Ctrl-C comes while it is waited for."""

    def __enter__(self):
        raise KeyboardInterrupt

    def __exit__(self, *raised):
        raise AssertionError("it was never entered")


def test_a_thread_that_is_interrupted_in_line_leaves_the_others_one_turn_after_the_other():
    turns, order = Turns(), []
    second = Beside(lambda: turns.take(lambda: order.append("second")))

    def be_interrupted() -> None:
        turns._last = Interrupted()
        turns.take(lambda: order.append("never"))

    def first() -> None:
        interrupted = Beside(be_interrupted)
        interrupted.start()
        with pytest.raises(KeyboardInterrupt):
            interrupted.result()
        in_line(second, turns)
        order.append("first is done")

    turns.take(first)
    second.result()
    assert order == ["first is done", "second"]


class Before:
    """The lock of the thread before, which tells when it has been waited for."""

    def __init__(self, order) -> None:
        self._order = order

    def __enter__(self):
        self._order.append("the one before is done")

    def __exit__(self, *raised):
        return None


def test_a_thread_waits_for_the_one_before_it_and_the_next_one_waits_for_this():
    turns, order = Turns(), []
    turns._last = Before(order)
    turns.take(lambda: order.append("next waits" if turns._last.locked() else "next goes ahead"))
    assert order == ["the one before is done", "next waits"]
    assert not turns._last.locked()


def test_turns_go_to_those_who_came_first_and_a_thread_that_comes_back_stands_at_the_end():
    turns, order = Turns(), []

    def named(name) -> Beside:
        return Beside(lambda: turns.take(lambda: order.append(name)), name=name)

    threads = [named(name) for name in ("first", "second", "third")]
    turns.take(lambda: [in_line(thread, turns) for thread in threads])
    turns.take(lambda: order.append("back again"))
    for thread in threads:
        thread.result()
    assert order == ["first", "second", "third", "back again"]


def test_a_turn_within_a_turn_is_refused():
    turns = Turns()
    with pytest.raises(MisuseError, match="from within its own step"):
        turns.take(lambda: turns.take(lambda: None))
    assert turns.take(lambda: "free again") == "free again"


def test_closing_in_another_thread_ends_open_calls_in_words():
    llm = LLM("embedded", **SMALL)
    stream = llm.stream("The whale", GREEDY)
    first = next(stream)
    closing = Beside(llm.close)
    with pytest.raises(MisuseError, match="close"):
        beside_a_step(llm, closing)
    closing.result()
    end = list(stream)[-1]
    assert end.outputs[0].finish_reason is FinishReason.ABORT
    assert end.outputs[0].text.startswith(first.outputs[0].text)
    assert not llm.is_busy


def test_a_stream_that_waits_while_the_llm_is_closed_gets_its_last_output():
    llm = LLM("embedded", **SMALL)
    stream = llm.stream("The whale", GREEDY)
    list(zip(range(3), stream, strict=False))  # its inbox is empty now
    closing, reading = Beside(llm.close), Beside(lambda: list(stream))

    def both_come() -> None:
        in_line(closing, llm._calls._turns)
        in_line(reading, llm._calls._turns)

    with in_a_step(llm, both_come), pytest.raises(MisuseError, match="close"):
        llm.generate("Call me", GREEDY)
    closing.result()
    assert reading.result()[-1].outputs[0].finish_reason is FinishReason.ABORT


def test_a_generate_that_is_closed_between_two_outputs_gives_no_half_answers():
    llm = LLM("embedded", **SMALL)

    class ClosingBar:
        """Closes the LLM when the first prompt is done."""

        def update(self, count: int) -> None:
            llm.close()

        def close(self) -> None:
            return None

    with pytest.raises(MisuseError, match="close"):
        llm.generate(["The whale"] * 3, GREEDY, use_tqdm=lambda **options: ClosingBar())


def test_a_call_that_waits_while_the_llm_is_closed_is_told():
    llm = LLM("embedded", **SMALL)
    closing, waiting = Beside(llm.close), generating(llm)

    def both_come() -> None:
        in_line(closing, llm._calls._turns)
        in_line(waiting, llm._calls._turns)

    with in_a_step(llm, both_come), pytest.raises(MisuseError, match="close"):
        llm.generate("Call me", GREEDY)
    closing.result()
    with pytest.raises(MisuseError, match="closed while this call waited"):
        waiting.result()


def test_a_stream_that_another_thread_drops_in_the_middle_of_a_step_waits_for_nobody(llm, wanted):
    """The garbage collector may do so: waiting for the step could be a deadlock."""
    stream = llm.stream("Call me", GREEDY)
    next(stream)

    def drop_elsewhere() -> None:
        closing = Beside(stream.close)
        closing.start()
        closing.result()

    with in_a_step(llm, drop_elsewhere):
        assert tokens(llm.generate("The whale", GREEDY)) == wanted


def test_a_stream_that_is_dropped_within_the_step_of_its_own_thread_is_aborted_after_it(llm, wanted):
    streams = [llm.stream("Call me", GREEDY)]
    next(streams[0])
    with in_a_step(llm, streams.clear):
        assert tokens(llm.generate("The whale", GREEDY)) == wanted


@pytest.mark.parametrize("use", [lambda llm: llm.kv_report(), lambda llm: llm.capture_graphs()])
def test_whatever_else_looks_at_the_engine_waits_for_its_turn(llm, use):
    turns = []
    thread = Beside(lambda: (use(llm), turns.append("looked")))

    def come() -> None:
        in_line(thread, llm._calls._turns)
        turns.append("step")

    with in_a_step(llm, come):
        llm.generate("Call me", GREEDY)
    thread.result()
    assert turns == ["step", "looked"]


@pytest.mark.parametrize("use", [lambda engine: engine.step(), lambda engine: engine.abort("r1")])
def test_a_thread_that_goes_past_the_llm_is_refused_while_another_has_requests(llm, wanted, use):
    stream = llm.stream("The whale", GREEDY)
    next(stream)
    thread = Beside(lambda: use(llm.engine), name="second")
    thread.start()
    with pytest.raises(MisuseError, match=r"thread 'second' called it while thread 'MainThread' uses it.*AsyncEngine"):
        thread.result()
    assert tokens(list(stream)[-1:]) == wanted


def test_an_llm_and_its_streams_show_what_they_are_and_do():
    llm = LLM("embedded", **SMALL)
    facts = "'embedded', cpu, float32, context 96"
    assert (repr(llm), repr(llm.engine)) == (f"LLM({facts}, idle)", f"Engine({facts}, idle)")
    stream = llm.stream("The whale", GREEDY)
    assert repr(stream) == "Stream(not begun)"
    next(stream)
    assert repr(llm) == f"LLM({facts}, 1 running, 0 waiting)"
    assert repr(stream) == "Stream('r1', 1 tokens, open)"
    list(stream)
    assert repr(stream) == "Stream('r1', 8 tokens, finished)"
    llm.close()
    assert repr(llm) == f"LLM({facts}, closed)"
