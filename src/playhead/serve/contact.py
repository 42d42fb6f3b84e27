"""Whether the other side of a socket is still reached. No torch.

    front, twice a second                 the engine's process
    Here(41)         ------------------>  reader thread
                     <------------------  Beat(num_steps, is_preparing, num_heard=41), twice a second, beat thread

A socket says when a process has ended. It says nothing of a network that is cut, of a machine that hangs, or of a proxy
that takes bytes and passes none on. So each side counts the seconds in which it has heard nothing, and the front also
those in which the engine answers none of its words: bytes can be lost on one way alone.
"""

from __future__ import annotations

from playhead.awake import AwakeClock
from playhead.serve import wire
from playhead.serve.limits import CHECK_S, Clock

BEAT_S = 0.5
SILENT_S = 3.5
"""After so long a front takes an engine for lost. Seven beats: other work of a busy machine may delay some."""

PREPARING_S = 18.0
"""The same for an engine that has said that it captures a graph or compiles a grammar. llguidance builds the tables of
a large vocabulary without letting another Python thread run, so the beat thread is silent too: for a second, or for
sixteen where the processor is shared with many others. One with work that makes no step for 19 s is replaced as
stuck in any case."""

LOADING_S = 120.0
"""The same for an engine that loads: it imports torch and reads files of any size from any disk."""

FRONT_SILENT_S = 30.0
"""After so long an engine that another machine may have asked for ends itself. A front that stands in a debugger, or
whose machine was suspended, is given longer than an engine: without it nothing is served anyway."""


class Listening:
    """How long nothing was heard, by a clock that stands still while this side did not listen.

    `look` is to be called every `every_s` seconds. A late call counts as one in time, because nothing was listened to
    in between. With 0.5 s, looks at 0.5, 1.0 and 9.0 s have listened for 1.5 s.
    """

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._awake, self._heard_s = AwakeClock(every_s, clock), 0.0

    def look(self) -> None:
        """Some time has passed."""
        self._awake.tick()

    def heard(self) -> None:
        """Something was heard. Any thread may say so."""
        self._heard_s = self._awake.now_s

    @property
    def silent_s(self) -> float:
        """For how long there was nothing to be heard."""
        return self._awake.now_s - self._heard_s


class Contact:
    """What the front knows of the way to one engine. A timer calls `look` every `CHECK_S` seconds."""

    def __init__(self, limit_s: float, clock: Clock) -> None:
        self._limit_s = limit_s
        self._came, self._answered = Listening(clock, CHECK_S), Listening(clock, CHECK_S)
        self._num_said = self._num_heard = 0
        self._is_loaded = self._is_preparing = self._is_deaf = False

    def look(self) -> wire.Here:
        """Count the time since the last look; gives what the engine is to be told next."""
        self._came.look()
        self._answered.look()
        self._num_said += 1
        return wire.Here(self._num_said)

    def came(self) -> None:
        """Bytes of the engine came, be it half a message."""
        self._came.heard()

    def loaded(self) -> None:
        """The engine serves from now on."""
        self._is_loaded = True

    def beat(self, beat: wire.Beat) -> None:
        """The engine says what it has heard. A beat may come before the engine has heard anything new."""
        self._is_preparing = beat.is_preparing
        self._is_deaf = beat.num_heard <= self._num_heard
        if not self._is_deaf:
            self._num_heard = beat.num_heard
            self._answered.heard()

    @property
    def silent_s(self) -> float:
        """For how long nothing came; or, of an engine whose beats come, for how long it has heard nothing new.

        Beats that come no more say nothing about what the engine hears: those of an engine with much to tell wait
        behind its tokens.
        """
        return max(self._came.silent_s, self._answered.silent_s) if self._is_deaf else self._came.silent_s

    @property
    def is_lost(self) -> bool:
        """Whether the engine was silent for longer than what it was doing last can explain."""
        if not self._is_loaded:
            return self.silent_s >= LOADING_S
        return self.silent_s >= (max(self._limit_s, PREPARING_S) if self._is_preparing else self._limit_s)
