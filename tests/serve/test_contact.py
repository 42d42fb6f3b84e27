"""How long a front and an engine wait for each other, on clocks that tests set."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
import uvloop

from playhead.sampling_params import SamplingParams
from playhead.serve import wire
from playhead.serve.contact import BEAT_S, FRONT_SILENT_S, LOADING_S, PREPARING_S, SILENT_S, Contact, Listening
from playhead.serve.engine_child import EngineChild
from playhead.serve.engine_process import Beats, EngineLoop, Inbox, Outbox
from playhead.serve.limits import CHECK_S, COMPUTING_S, Pulse, ServeLimits
from playhead.serve.link import EngineLink
from playhead.serve.local import cpu_s_of
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.tiny_engine import small_llm
from tests.serve.backends import HandClock


class Watched:
    """A contact, its clock, and an engine that can be told to say things."""

    def __init__(self, *, is_loaded=True):
        self.clock = HandClock()
        self.contact = Contact(SILENT_S, self.clock)
        self.num_said = 0
        if is_loaded:
            self.contact.loaded()

    def look(self, after_s=CHECK_S):
        """Let the front look after so long; gives whether the engine counts as lost."""
        self.clock.now += after_s
        self.num_said = self.contact.look().number
        return self.contact.is_lost

    def beat(self, *, num_heard=None, is_preparing=False):
        """A beat comes, from an engine that has heard the front's last word if nothing else is said."""
        self.contact.came()
        self.contact.beat(wire.Beat(1, is_preparing, self.num_said if num_heard is None else num_heard))

    def looks_until_lost(self):
        """How many looks at an engine that says nothing more it takes."""
        for count in range(1, 1000):
            if self.look():
                return count
        raise AssertionError("never")


@pytest.mark.parametrize("num_beats", [0, 1, 5])
def test_an_engine_that_falls_silent_is_lost_after_the_limit_and_not_before(num_beats):
    engine = Watched()
    for _ in range(num_beats):
        assert not engine.look()
        engine.beat()
    assert engine.looks_until_lost() == SILENT_S / CHECK_S == 7


def test_an_engine_that_says_anything_at_all_in_time_is_not_lost():
    """Tokens of a step count, and so does half a frame. Beats may wait behind them."""
    engine = Watched()
    for _ in range(50):
        assert not any(engine.look() for _ in range(6))
        engine.contact.came()


def test_an_engine_that_is_heard_and_hears_nothing_is_lost():
    engine = Watched()
    for _ in range(5):
        assert not engine.look()
        engine.beat()
    for _ in range(6):
        assert not engine.look()
        engine.beat(num_heard=5)
    assert engine.look()


def test_beats_that_come_late_and_in_order_are_answers():
    """An engine with much to tell is some seconds behind; each beat says more than the one before."""
    engine = Watched()
    for i in range(60):
        assert not engine.look()
        if i >= 10:
            engine.beat(num_heard=i - 9)
        else:
            engine.contact.came()


def test_a_front_that_stalls_charges_the_engine_with_none_of_it():
    """It stood for an hour and listened for half a second: what the engine said meanwhile was not read yet."""
    engine = Watched()
    for _ in range(6):
        assert not engine.look(after_s=3600)
    assert engine.look(after_s=3600)  # by now the front has looked as often as in 3.5 s


def test_a_look_that_comes_early_counts_for_what_it_is():
    engine = Watched()
    assert not any(engine.look(after_s=CHECK_S / 4) for _ in range(27))
    assert engine.look(after_s=CHECK_S / 4)


def test_an_engine_that_has_said_it_prepares_is_given_longer():
    """The tables of a large vocabulary are built without letting the beat thread run."""
    engine = Watched()
    engine.beat(is_preparing=True)
    assert engine.looks_until_lost() == PREPARING_S / CHECK_S
    engine = Watched()
    engine.beat(is_preparing=True)
    assert not any(engine.look() for _ in range(10))
    engine.beat()
    assert engine.looks_until_lost() == SILENT_S / CHECK_S


def test_an_engine_that_loads_is_given_longer_still_until_it_serves():
    assert Watched(is_loaded=False).looks_until_lost() == LOADING_S / CHECK_S
    engine = Watched(is_loaded=False)
    assert not any(engine.look() for _ in range(100))
    engine.contact.came()
    engine.contact.loaded()
    assert engine.looks_until_lost() == SILENT_S / CHECK_S


def test_a_listener_counts_the_seconds_in_which_it_listened():
    clock = HandClock()
    listening = Listening(clock, 0.5)
    for clock.now in (0.5, 1.0, 9.0):
        listening.look()
    assert listening.silent_s == 1.5
    listening.heard()
    assert listening.silent_s == 0


def test_a_link_that_is_dropped_waits_for_nobody_to_read_what_it_has_to_say():
    """A path that takes nothing would keep the socket open, and its bytes in memory, for as long as it likes."""
    ours, theirs = socket.socketpair()
    lost = []

    async def drop():
        link = EngineLink(lambda kind, payload: None, lambda: lost.append(True), lambda: None)
        await link.connect(EngineChild(process=None, connection=ours))
        for _ in range(10):
            link.send(wire.Begin("x" * 1_000_000, {}, None))
        assert not lost
        link.drop()
        for _ in range(100):
            await asyncio.sleep(0)
        was_lost = list(lost)
        theirs.close()
        return was_lost

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(drop()) == [True]


class Child:
    """The engine's end of a socket, with threads of its own except the beat thread's, which a test plays."""

    def __init__(self, loop_of=None):
        self.ours, theirs = socket.socketpair()
        self.clock, self.num_ended, self._theirs = HandClock(), 0, theirs
        self._has_read = threading.Event()
        self.inbox, outbox = Inbox(theirs, on_end=self._has_read.set, clock=self.clock), Outbox(theirs)
        self.beats = Beats(self.inbox, outbox, on_silent=self._end)
        if loop_of is not None:
            self.beats.loop = self.loop = EngineLoop(loop_of, self.inbox, outbox)
        self._frames = wire.Frames()

    def _end(self):
        self.num_ended += 1

    def told(self):
        """What has come of it."""
        self.ours.setblocking(False)
        found = []
        try:
            while data := self.ours.recv(1 << 16):
                found += [wire.read_news(payload) for _, payload in self._frames.feed(data)]
        except BlockingIOError:
            return found

    def hears(self, number):
        """Its front says that it is there; gives when the reader thread has heard it."""
        self.ours.sendall(wire.framed(wire.Here(number)))
        while self.inbox.num_heard != number:
            threading.Event().wait(0.001)

    def close(self):
        self.ours.shutdown(socket.SHUT_WR)
        self._has_read.wait()
        self.ours.close()
        self._theirs.close()


@pytest.fixture
def child():
    made = Child()
    yield made
    made.close()


def test_an_engine_beats_while_it_loads_and_says_what_it_has_heard(child):
    child.beats.once()
    child.hears(3)
    child.beats.once()
    assert child.told() == [wire.Beat(0, True, 0), wire.Beat(0, True, 3)]
    assert child.inbox.take(waits=False) == []  # it is no order


def test_an_engine_whose_front_is_silent_ends_itself(child):
    for _ in range(int(FRONT_SILENT_S / BEAT_S) - 1):
        child.clock.now += BEAT_S
        child.beats.once()
    child.hears(1)
    for _ in range(int(FRONT_SILENT_S / BEAT_S) - 1):
        child.clock.now += BEAT_S
        child.beats.once()
    assert child.num_ended == 0
    child.clock.now += BEAT_S
    child.beats.once()
    assert child.num_ended == 1


def test_a_front_that_ends_with_something_unread_is_a_front_that_ends():
    """Its system resets the connection then. What a thread raises would fail this test."""
    before = set(threading.enumerate())
    child = Child()
    (reader,) = {one for one in threading.enumerate() if one.name == "playhead reader"} - before
    child.beats.once()
    child.ours.close()
    reader.join()
    assert child._has_read.is_set()
    child._theirs.close()


def test_an_engine_that_stalls_itself_does_not_take_its_front_for_lost(child):
    for _ in range(int(FRONT_SILENT_S / BEAT_S) - 1):
        child.clock.now += 100
        child.beats.once()
    assert child.num_ended == 0


def test_an_engine_announces_a_capture():
    llm = small_llm()
    child = Child(llm.engine)
    try:
        child.loop._captures.are_left = True  # a CPU has none of its own accord
        child.loop.turn()
        child.beats.once()
        assert [beat.is_preparing for beat in child.told()] == [True, False]
    finally:
        child.close()
        llm.close()


def test_an_engine_announces_what_may_silence_it():
    """A grammar's tables can keep every other thread waiting: the beat goes out before its compiler begins."""
    llm = small_llm()
    child, params = Child(llm.engine), SamplingParams(structured_outputs=StructuredOutputs(choice=["a", "b"]))
    try:
        child.beats.once()
        assert [beat.is_preparing for beat in child.told()] == [False]
        child.loop._compiler.submit(lambda: None).result()  # a thread of it is there
        order = wire.Submit(number=1, ids=b"", params=wire.params_fields(params), max_new_tokens=4)
        child.loop._submit(order)
        assert [beat.is_preparing for beat in child.told()] == [True]
        child.loop._follow(wire.Abort((1,)))
    finally:
        child.loop._compiler.shutdown()
        child.close()
        llm.close()


def test_a_grammar_that_nobody_waits_for_any_more_is_not_compiled():
    """Clients that leave at once could otherwise fill the compiler's queue for as long as they like."""
    llm = small_llm()
    child = Child(llm.engine)
    grammars, is_free = child.loop._engine.reader.grammars, threading.Event()
    num_before = grammars.num_compiled
    try:
        child.loop._compiler.submit(is_free.wait)
        for number in (1, 2):
            params = SamplingParams(structured_outputs=StructuredOutputs(choice=[f"answer {number}"]))
            order = wire.Submit(number=number, ids=b"", params=wire.params_fields(params), max_new_tokens=4)
            child.loop._submit(order)
        child.loop._follow(wire.Abort((1,)))
    finally:
        is_free.set()
        child.loop._compiler.shutdown()
        child.close()
        llm.close()
    assert grammars.num_compiled == num_before + 1
    assert [order.number for order in child.inbox.take(waits=False)] == [2]


def test_an_engine_says_that_it_prepares_until_a_grammar_is_compiled_wanted_or_not(monkeypatch):
    """Its client has left. The compiler goes on to its end, and may let no other thread run until then."""
    llm = small_llm()
    child, params = Child(llm.engine), SamplingParams(structured_outputs=StructuredOutputs(choice=["a", "b"]))
    has_begun, may_end = threading.Event(), threading.Event()

    def compile_slowly(self, form):
        has_begun.set()
        may_end.wait()
        raise ValueError

    monkeypatch.setattr(type(llm.engine.reader.grammars), "compile", compile_slowly)
    try:
        child.loop._submit(wire.Submit(number=1, ids=b"", params=wire.params_fields(params), max_new_tokens=4))
        has_begun.wait()
        child.loop._follow(wire.Abort((1,)))
        assert child.loop.beat.is_preparing
        may_end.set()
        child.loop._compiler.shutdown()
        assert not child.loop.beat.is_preparing
    finally:
        may_end.set()
        child.close()
        llm.close()


class Paced:
    """A pulse of an engine with work, and its clock."""

    def __init__(self):
        self.clock, self.cpu_s = HandClock(), 0.0
        self.pulse = Pulse(ServeLimits(wedged_after_s=4), self.clock)
        self.pulse.saw(1, has_work=True)
        self.pulse.used(0.0)

    def seconds_until_stuck(self, cpu_s):
        """When an engine that uses so much of a processor between two looks counts as stuck."""
        while not self.pulse.is_stuck:
            self.clock.now += CHECK_S
            self.cpu_s += cpu_s
            self.pulse.saw(1, has_work=True)
            self.pulse.used(self.cpu_s)
        return self.clock.now


def test_a_step_that_lasts_is_no_stuck_one_while_it_computes():
    """A long prompt on a CPU takes a minute. To replace its engine would begin that minute again."""
    assert Paced().seconds_until_stuck(cpu_s=0.0) == 4.5
    assert Paced().seconds_until_stuck(cpu_s=0.001) == 4.5
    assert Paced().seconds_until_stuck(cpu_s=0.05) == COMPUTING_S + CHECK_S


def test_an_engine_that_stops_computing_is_stuck_after_the_usual_time():
    paced = Paced()
    for _ in range(60):
        paced.clock.now += CHECK_S
        paced.cpu_s += 0.4
        paced.pulse.used(paced.cpu_s)
    assert not paced.pulse.is_stuck
    assert paced.seconds_until_stuck(cpu_s=0.0) == 30 + 4.5


def test_what_was_computed_for_steps_that_have_ended_says_nothing_of_the_next():
    paced = Paced()
    paced.pulse.saw(2, has_work=True)
    paced.pulse.used(9.0)
    paced.clock.now += 5
    assert paced.pulse.is_stuck


def test_a_thread_s_share_of_a_processor_is_its_own():
    me, may_end = threading.current_thread(), threading.Event()
    idle = threading.Thread(target=may_end.wait)
    idle.start()
    before = cpu_s_of(me), cpu_s_of(idle)
    for _ in range(100_000):
        if cpu_s_of(me) > before[0]:
            break
        sum(range(1000))
    assert cpu_s_of(me) > before[0]
    assert cpu_s_of(idle) == before[1]
    may_end.set()
    idle.join()
    assert cpu_s_of(idle) == cpu_s_of(None) == 0.0
