"""Which tokens of which requests run in the next step. Integers in, integers out; no torch.

Running requests that decode go first, then prompts under way, then new requests, while the step has room. Memory is
taken while planning: a request that finds none takes it from the last request in order, which computes its tokens again
later. The longest request fits every KV group, and the first request in order gives nothing up, so one request always
gets on. A step may be planned before the tokens of the last one are read. Pages taken from a preempted request become
usable only after every step in flight that may touch them has been read.

A plan is all or nothing. It stays open until `close_plan` says that its step runs. `take_back` undoes an open plan,
whole or cut short by any exception. The requests there are (`_requests`) and the sequences that have memory
(`kv.sequences`) are the truth; the waiting and the running requests follow from them. The next plan takes back one that
was left open.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from playhead.errors import OutOfPages, RequestError
from playhead.kv.cache import HybridKVCache
from playhead.kv.sequence import SequenceKV, Stride
from playhead.outputs import FinishReason
from playhead.schedule.ended import EndedRequests
from playhead.schedule.request import DONE, Chunk, Request, in_order, lacks_token
from playhead.schedule.rows import DeviceRows
from playhead.schedule.step_plan import StepPlan, is_in_order, prompt_room

RESERVED_TOKENS = 64  # places kept ahead of decoding requests: their steps then need nothing from the host
LOOK_EVERY_STEPS, SOON_TOKENS, NUM_TOGETHER = 4, 16, 64  # of `catch_up`: pages for many requests at once
VACANCY = 4  # reserve only if so many times the memory is available
WAITING_PER_RUNNING = 4  # in a longer queue every request would come too late


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleLimits:
    """`chunk_tokens` are the tokens of a step: one for each decoding request, the rest for prompts (`prompt_room`)."""

    chunk_tokens: int
    max_waiting: int


class Scheduler:
    """Continuous batching over one KV cache."""

    def __init__(self, kv: HybridKVCache, rows: DeviceRows, limits: ScheduleLimits) -> None:
        self._kv, self._rows, self._limits = kv, rows, limits
        self.max_waiting = limits.max_waiting
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.open_plan: StepPlan | None = None
        """The plan whose step does not run yet."""
        self._requests: dict[str, Request] = {}
        self.in_doubt = False
        """Whether a plan is open or a change was cut short: `take_back` puts it right."""
        self._num_restored = 0
        self.is_starved = False
        """Whether the last plan left a request out that needs memory which the steps in flight must free first."""
        self._last: StepPlan | None = None
        """The last plan, if every running request that had something to compute was in it."""
        self._ended = EndedRequests()
        self._left: list[tuple[Request, SequenceKV]] = []  # requests that have ended, and memory that they still have

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def num_preemptions(self) -> int:
        return self._kv.num_preempted

    @property
    def can_queue(self) -> bool:
        """Whether one more request would be queued rather than refused."""
        return len(self.waiting) < self.max_waiting

    @property
    def has_enough_waiting(self) -> bool:
        """Whether the waiting requests fill the next step: a request queued behind them could not run in it."""
        if len(self.waiting) > self._kv.rows.num_free + len(self._left):
            return True
        if self._kv.prefix_caching:
            return False  # how many of their tokens are cached is not known
        num_tokens = accumulate(len(one.prompt) for one in self.waiting)
        return any(num >= self._limits.chunk_tokens for num in num_tokens)

    def add(self, request: Request) -> None:
        """Queue a request, or refuse it with the limit."""
        if not self.can_queue:
            raise RequestError(
                f"request {request.id!r}",
                f"{len(self.waiting)} requests waiting",
                f"fewer than {self.max_waiting}",
                "Send it again when some are done.",
            )
        self._requests[request.id] = request
        insort(self.waiting, request, key=in_order)

    def plan(self) -> StepPlan:
        """The next step, with memory for all of it, counted as launched.

        Empty if there is nothing to do before the steps in flight are read.
        """
        if self.in_doubt:
            self.take_back(was_launched=True)  # its launch may have been tried
        if self.waiting or not self._in_flight:
            self.release()  # otherwise no request needs that memory in this step
        if not self._kv.settle():
            self.is_starved = True  # the account can be counted again when the steps in flight are read
            return StepPlan.of(())
        if self._kv.num_restored != self._num_restored:
            self._sort_out()
        self.in_doubt = True
        try:
            planned = self._plan()
        except BaseException:
            self.take_back()
            raise
        if not planned.requests:
            self.close_plan()
        return planned

    def close_plan(self) -> None:
        """The planned step runs."""
        self.open_plan, self.in_doubt = None, False

    def take_back(self, *, was_launched: bool = False) -> None:
        """Undo the open plan: its tokens have no places, and no step samples them.

        If its launch was tried, the device may have changed what it keeps in the rows of these requests. They give up
        their memory then, and wait to be computed anew.
        """
        self._last = None
        self._kv.retract()
        for chunk in self.open_plan or ():
            chunk.request.num_sampled = chunk.num_generated
            if chunk.num_generated <= chunk.request.forced_from:  # else a step before forced them, and will be read
                chunk.request.forced = ()
            self._rows.take_back_newest(chunk)
            if was_launched and self._kv.sequences.get(chunk.seq.request) is chunk.seq:
                self._kv.abort(chunk.seq)
        self._sort_out()
        self.close_plan()

    def _sort_out(self) -> None:
        """Find the waiting and the running requests anew, from the requests there are and the sequences with memory.

        Memory that no step has written anything to is given back: it was taken by a plan that came to nothing.
        """
        kv, known = self._kv, self._rows.sequences
        self._requests = {name: one for name, one in self._requests.items() if one.finish_reason is None}
        for seq in list(kv.sequences.values()):
            owner = self._requests.get(seq.request)
            if owner is None or known.get(owner) is not seq or seq.num_launched_tokens == seq.num_hit_tokens:
                kv.abort(seq)
        here = self._requests.values()
        self._rows.sequences = {one: kv.sequences[one.id] for one in here if one.id in kv.sequences}
        self.running = sorted((one for one in here if one.id in kv.sequences), key=in_order)
        self.waiting = sorted((one for one in here if one.id not in kv.sequences), key=in_order)
        self._last, self._num_restored = None, kv.num_restored

    def _plan(self) -> StepPlan:
        self.is_starved = False
        following = self._follow()
        if following is not None:
            return following
        chunks: dict[str, Chunk] = {}
        turns = self._rows.by_turn(self.running)
        num_decoding = sum(num_left == 1 for _, num_left in turns)
        room = self._take_turns(turns, prompt_room(self._limits.chunk_tokens, num_decoding), chunks)
        is_whole = len(chunks) == len(turns)
        self._admit(room, chunks)
        if not chunks and self.waiting and not self.running and not self._in_flight:
            # Pages that a prefix hit scattered over slabs may keep its own request out: compute it from the start.
            self._kv.flush_prefixes()
            self._admit(room, chunks)
        planned = self._opened(StepPlan.of(list(chunks.values())))
        self._last = planned if planned.requests and is_whole else None
        return planned

    def _follow(self) -> StepPlan | None:
        """The step after the last plan: requests that got a token get the next, prompts go on, new requests begin.

        None if it must be planned anew: the last plan left a request out, or some token finds no page, or a newcomer's
        place in the order is between others.
        """
        last = self._last
        if last is None or not self.running:
            return None
        can_admit = bool(self.waiting) and self._kv.rows.num_free > 0
        if last.goes_on and last.num_sure > 0 and self._ended.count == last.num_ended_before and not can_admit:
            return self._gone_on(last.next_decode())
        under_way = [] if last.is_decode else np.flatnonzero(~last.samples).tolist()
        gone = {*under_way, *last.at_their_end(), *self._ended.places_in(last)}
        if len(gone) == len(last.requests) or not is_in_order(last, gone):
            return None
        planned = self._in_stride(last, sorted(gone))
        planned.num_sure, planned.num_ended_before = self._num_sure(planned), self._ended.count
        if planned.num_sure < -1 and not self._has_places(planned):
            return None
        chunks: list[Chunk] | None = []
        if under_way or can_admit:
            chunks = self._beside([last.requests[place] for place in under_way], len(planned))
        return None if chunks is None else self._gone_on(planned, chunks)

    def _in_stride(self, last: StepPlan, gone: list[int]) -> StepPlan:
        """The next decode step without the requests at the places `gone`, which keep the tokens that they have."""
        alone = Stride()  # it never advances
        for place in gone:
            if place < last.num_going_on:
                last.seqs[place].join(alone)
                last.requests[place].join(alone)
        planned = last.following(gone)
        num_in_stride = last.num_going_on - bisect_left(gone, last.num_going_on)
        if planned.stride is None:
            planned.stride, num_in_stride = Stride(), 0
        if num_in_stride < len(planned.requests):
            self._kv.join(planned.stride, planned.seqs[num_in_stride:])
            for request in planned.requests[num_in_stride:]:
                request.join(planned.stride)
        return planned

    def _beside(self, under_way: list[Request], num_decoding: int) -> list[Chunk] | None:
        """Chunks of prompts under way and of new requests, beside a batch that goes on. None if that batch cannot."""
        here = sorted((one for one in under_way if one.finish_reason is None), key=in_order)
        turns, chunks = self._rows.by_turn(here), dict[str, Chunk]()
        if any(num_left == 1 for _, num_left in turns):
            return None  # it takes its turn among those that decode
        room = self._take_turns(turns, prompt_room(self._limits.chunk_tokens, num_decoding), chunks)
        if self._last is None or len(chunks) < len(turns):  # a request was preempted, or must wait
            self._kv.retract()
            self.is_starved = False
            return None
        self._admit(room, chunks)
        return list(chunks.values())

    def _gone_on(self, planned: StepPlan, chunks: Sequence[Chunk] = ()) -> StepPlan:
        """A batch one token further, with chunks of other requests beside it: what is planned next."""
        stride = planned.stride
        assert stride is not None, "a batch that goes on is in stride"
        if chunks:
            planned = self._opened(planned.beside(chunks))
        elif planned.num_sure < 0:
            planned = self._opened(planned)
        else:
            self.open_plan = planned
        self._kv.advance(stride)
        self._last = planned
        return planned

    def _opened(self, planned: StepPlan) -> StepPlan:
        """Complete a plan whose tokens have places: reserve places ahead, and count what its newcomers sample."""
        self._reserve(planned)
        if not planned.goes_on or planned.first_slack is None:  # else it is known, and no page has come
            planned.num_sure = self._num_sure(planned) if planned.requests and planned.is_decode else 0
        self.open_plan, planned.num_ended_before = planned, self._ended.count
        for chunk in planned.newcomers:
            if chunk.samples:
                chunk.request.num_sampled = chunk.num_generated + 1
        self._rows.put_newest(planned.newcomers)
        return planned

    def _take_turns(self, turns: Iterable[tuple[Request, int]], room: int, chunks: dict[str, Chunk]) -> int:
        """The chunks of these requests, as long as the step has room for prompts; gives the room that is left."""
        for request, num_left in turns:
            seq = self._rows.sequences.get(request)
            if seq is None:
                continue  # preempted by one before it in this very step
            num_tokens = min(num_left, room) if num_left > 1 else 1
            if num_tokens and self._make_room(request, num_tokens, chunks):
                chunks[request.id] = self._chunk(request, seq, num_tokens, samples=num_tokens == num_left)
                room -= num_tokens if num_tokens > 1 else 0
        return room

    def _admit(self, room: int, chunks: dict[str, Chunk]) -> None:
        """Start waiting requests in their order, as long as the step and the memory have room."""
        while self.waiting and room > 0:
            started = self._start(self.waiting[0], room)
            if started is None:
                return
            chunks[started.request.id] = started
            room -= len(started.tokens)

    def _has_places(self, planned: StepPlan) -> bool:
        """Places for the tokens of a batch that goes on, if the pages that they lack can be had without preempting."""
        self._take_pages(planned, np.flatnonzero(self._kv.places_left(planned.rows, planned.ends) < 0), ahead=0)
        planned.num_sure = self._num_sure(planned)
        return planned.num_sure >= -1

    def _reserve(self, planned: StepPlan) -> None:
        """Places ahead of requests that decode next, for all at once, so that most steps change no table at all.

        If only newcomers lack places, only the requests that lack them get more.
        """
        if self._has_next_places(planned):
            return
        (decoding,) = (planned.samples & (planned.num_left > 0)).nonzero()
        lacking = decoding[self._slack(planned)[decoding] < planned.num_on]
        if len(lacking) and self._has_vacancy(len(decoding)):
            who = decoding if lacking[0] < planned.num_going_on else lacking
            self._take_pages(planned, who, ahead=RESERVED_TOKENS)

    def _has_vacancy(self, num_requests: int) -> bool:
        """Whether there is so much memory that places for so many requests may be reserved."""
        return self._kv.has_vacancy(VACANCY * RESERVED_TOKENS * num_requests)

    def _has_next_places(self, planned: StepPlan) -> bool:
        """Whether no request that decodes next lacks a place for its next token.

        `num_sure` knows it of a batch that goes on. Newcomers are few: arrays would take longer.
        """
        if planned.num_going_on and planned.num_sure < 0:
            return False
        return all(self._kv.num_places(chunk.seq) > chunk.end for chunk in planned.decoding_newcomers())

    def _take_pages(self, planned: StepPlan, places: npt.NDArray[np.int64], *, ahead: int) -> None:
        """Pages for the tokens at some places of a plan, and for so many after them; for all, or for none."""
        ends = planned.ends[places] + np.minimum(planned.num_left[places], ahead)
        self._kv.reserve([planned.seqs[place] for place in places.tolist()], ends)
        planned.first_slack = None

    def _num_sure(self, planned: StepPlan) -> int:
        """Steps after this one for which every request has a token to sample, a place for it and a place after it.

        -1 if a token of the next step has no place; below -1 if a token of this step has none.
        """
        return int(self._slack(planned).min()) - planned.num_on

    def _slack(self, planned: StepPlan) -> npt.NDArray[np.int64]:
        """The same for each request, from the plan of `first_ends` on."""
        if planned.first_slack is None:  # a batch that goes on gets no page elsewhere than in `_take_pages`
            num_places = self._kv.places_left(planned.rows, planned.ends)
            planned.first_slack = np.minimum(planned.num_left, num_places - 1) + planned.num_on
        return planned.first_slack

    def force(self, chunk: Chunk, tokens: Sequence[int]) -> bool:
        """The token that the chunk's step samples is known, and so are those after it. False if one is all there is.

        The next step computes them like a piece of a prompt, and samples the token after them.
        """
        self._last = None
        request = chunk.request
        later = tuple(tokens[1 : request.num_to_sample])  # one token at least is left to be sampled
        if later:
            request.forced_from, request.forced = chunk.num_generated, (tokens[0], *later)
            request.num_sampled += len(later)
            self._rows.forget_newest(chunk.seq)
        return bool(later)

    def commit(self, chunk: Chunk, token: int) -> bool:
        """A token that was under way has been read. A second time changes nothing, and gives False."""
        is_new = lacks_token(chunk.request.output, chunk.num_generated)
        if is_new:
            chunk.request.output.append(token)
        return is_new

    def commit_plain(self, planned: StepPlan, tokens: list[int]) -> tuple[int, list[int]]:
        """The same for the tokens of a whole step that need no look: those of plain requests.

        Gives how many were new, and the rows whose tokens go through `commit`, the first one last: those of other
        requests, and a request's first token and what may be its last.
        """
        return planned.give_out(tokens, self._looked_at(planned, tokens))

    def _looked_at(self, planned: StepPlan, tokens: list[int]) -> list[int]:
        """The rows whose tokens must be looked at one by one, in order."""
        at_their_end = planned.at_their_end() if planned.num_sure <= 0 else ()
        more = {*planned.beginners(), *at_their_end, *self._ended.places_in(planned)}
        if planned.ending_ids and not planned.ending_ids.isdisjoint(tokens):
            more.update(row for row, token in enumerate(tokens) if token in planned.ending_ids)
        return sorted(more.union(planned.watched)) if more else planned.watched

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, waiting or running. Its memory goes back; its prefix stays for other requests.

        The request is gone even if giving its memory back raises.
        """
        self.leave(request, reason)
        self.release()

    def leave(self, request: Request, reason: FinishReason) -> None:
        """End a request whose memory goes back later, with that of others (`release`)."""
        was_in_doubt, self.in_doubt = self.in_doubt, True
        request.finish_reason = reason
        self._ended.add(request)
        seq = self._rows.sequences.pop(request, None)
        self._requests.pop(request.id, None)
        for line in (self.waiting, self.running):
            if request in line:
                line.remove(request)
        if seq is not None:
            self._left.append((request, seq))
        self.in_doubt = was_in_doubt

    def catch_up(self) -> None:
        """What can wait until a step runs: ended requests' memory goes back, and some requests get their next pages.

        Otherwise a plan that lacks a place would take pages for all requests, and the device would wait for that plan.
        """
        self.release()
        last = self._last
        if last is None or not last.goes_on or last.num_sure > SOON_TOKENS or last.num_on % LOOK_EVERY_STEPS:
            return
        num_places = self._kv.places_left(last.rows, last.ends)
        soon = np.flatnonzero((num_places <= SOON_TOKENS) & (num_places < last.num_left))
        num_urgent = np.count_nonzero(num_places[soon] <= LOOK_EVERY_STEPS)  # used up before the next call looks
        if (num_urgent or len(soon) >= NUM_TOGETHER) and not self._kv.in_doubt and self._has_vacancy(len(last)):
            first = soon[np.argsort(num_places[soon], kind="stable")][: max(num_urgent, NUM_TOGETHER)]
            self._take_pages(last, first, ahead=RESERVED_TOKENS)
            last.num_sure = self._num_sure(last)

    def release(self) -> None:
        """Give back the memory of the requests that have left, of all at once."""
        if not self._left:
            return
        was_in_doubt, self.in_doubt = self.in_doubt, True  # cut short, they are found as sequences of no request
        left = [(one, seq) for one, seq in self._left if self._kv.sequences.get(seq.request) is seq]
        self._left.clear()
        keeps, done = self._kv.prefix_caching, list[tuple[SequenceKV, Sequence[int]]]()
        for one, seq in left:
            if one.finish_reason in DONE:
                done.append((seq, one.tokens if keeps else ()))
            else:
                self._kv.abort(seq)
        self._kv.finish_all(done)
        self.in_doubt = was_in_doubt

    def _start(self, request: Request, room: int) -> Chunk | None:
        """Admit the first waiting request with its first chunk, if rows and pages allow it without preempting."""
        if request.num_unread:
            return None  # preempted a moment ago: its last token must be read before it can be computed anew
        tokens = request.tokens
        try:
            seq = self._rows.sequences[request] = self._kv.admit(
                request.id, tokens, salt=request.salt, reads_prefixes=request.reads_prefixes
            )
        except OutOfPages:
            return None
        num_left = len(tokens) - seq.num_tokens
        num_tokens = min(num_left, room)
        try:
            self._kv.extend(seq, num_tokens)
        except OutOfPages:
            self._kv.abort(self._rows.sequences.pop(request))
            return None
        self.waiting.pop(0)
        insort(self.running, request, key=in_order)
        if not request.num_preemptions:
            request.num_cached_tokens = seq.num_hit_tokens
        return self._chunk(request, seq, num_tokens, samples=num_tokens == num_left)

    def _make_room(self, request: Request, num_tokens: int, chunks: dict[str, Chunk]) -> bool:
        """Places for these tokens, at the expense of later requests; False if the request itself had to go, or to wait.

        While steps are in flight no page that another request gives up can be used: the request sits this step out.
        """
        while True:
            try:
                self._kv.extend(self._rows.sequences[request], num_tokens)
            except OutOfPages:
                if self._in_flight:
                    self.is_starved = True
                    return False
                victim = self.running[-1]
                chunks.pop(victim.id, None)
                self._preempt(victim)
                if victim is request:
                    return False
            else:
                return True

    def _preempt(self, victim: Request) -> None:
        """Take a running request's memory, and let the request wait at its place in the order."""
        self._last = None
        self._kv.preempt(self._rows.sequences[victim], victim.tokens)
        victim.num_preemptions += 1
        del self._rows.sequences[victim]
        self.running.remove(victim)
        insort(self.waiting, victim, key=in_order)

    @property
    def _in_flight(self) -> bool:
        return self._kv.allocator.retired_step < self._kv.allocator.launched_step

    def _chunk(self, request: Request, seq: SequenceKV, num_tokens: int, *, samples: bool) -> Chunk:
        """The chunk whose places were just made."""
        decodes = num_tokens == 1 and self._rows.has_newest(seq)
        return Chunk(
            request=request,
            seq=seq,
            end=seq.num_tokens,
            tokens=(-seq.row,) if decodes else request.tokens_between(seq.num_tokens - num_tokens, seq.num_tokens),
            samples=samples,
            num_generated=request.num_sampled,
        )
