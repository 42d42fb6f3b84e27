"""Bugs of masks: late by a step, in the wrong row, in the padding, lost with a request's memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from playhead.engine.config import EngineConfig
from playhead.engine.engine import Engine
from playhead.engine.structured import MaskWriter
from playhead.errors import PlayheadError
from playhead.grammar import compiler, matcher
from playhead.grammar.compiler import Grammar, GrammarCompiler
from playhead.grammar.matcher import Matcher, num_words
from playhead.graph.late import LateRegistry, LateRows
from playhead.graph.slots import FillContext, GraphSlot
from playhead.graph.spec import StepResult
from playhead.graph.split import SplitRunner
from playhead.kv.sequence import SequenceKV
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.outputs import RequestOutput
from playhead.schedule.request import Chunk, Request
from playhead.schedule.rows import DeviceRows
from playhead.schedule.scheduler import Scheduler
from playhead.schedule.step_plan import StepPlan
from playhead.step import build
from playhead.step.audit import audit_worker
from playhead.step.masks import Tail, masks_slot
from playhead.step.sampling import MASKS_SLOT, ReadTokens
from playhead.step.worker import InFlight, Worker
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.fault_runs import leftovers
from playhead.testing.mutant import Checker, Mutant, Oracle, Patch, mutant, swapped
from playhead.testing.structured import (
    FORCED,
    FORMED,
    FORMED_LIMITS,
    SHRINKING,
    TEXTS,
    VOCAB_SIZE,
    checked_ask,
    forcing_engine,
    formed,
    formed_alone,
    formed_engine,
    tiny_grammars,
    tiny_vocabulary,
    wrong_answers,
)
from playhead.testing.tiny_engine import Ask, run_asks, tiny_engine
from playhead.testing.tiny_worker import tiny_worker
from playhead.types import Mode, Step

if TYPE_CHECKING:
    from llguidance import LLMatcher

Tokens = dict[str, list[Any]]
Force = Callable[[Chunk, Sequence[int]], bool]
Failed = list[tuple[Request, PlayheadError]]

ALONE = Oracle(name="requests with forms, alone", compute=formed_alone)


def check_answers(alone: Mapping[str, Sequence[int]]) -> list[str]:
    """The schedule with overlap in little memory: forms and tokens as alone."""
    engine = formed_engine(overlap=True)
    finished, found = run_asks(engine, FORMED, check=checked_ask)
    if not engine.stats.num_preemptions:
        found.append("nobody was preempted")
    tokens = {name: output.outputs[0].token_ids for name, output in finished.items()}
    return found + wrong_answers(tokens, {name: alone[name] for name in alone if name != "given up"})


def check_shrinking(alone: Mapping[str, Sequence[int]]) -> list[str]:
    """A form stays with its request when a request before it ends."""
    finished, found = run_asks(formed_engine(overlap=True, kv_memory_bytes=1 << 20), SHRINKING, check=checked_ask)
    tokens = finished["digits"].outputs[0].token_ids
    return found + wrong_answers({"digits": tokens}, {"digits": alone["digits"]})


def check_padding() -> list[str]:
    """When a tail was launched, rows without a request allow everything."""
    found: list[str] = []
    finish = SplitRunner.finish

    def watched(self: SplitRunner) -> StepResult:
        result = finish(self)
        num_live, num_padded = len(result.output.tokens_N), result.decision.bucket
        padding = self.registry.get_slot(MASKS_SLOT).rows(num_live, num_padded)
        if bool((padding != -1).any()):
            found.append(f"masks of rows {num_live} to {num_padded} forbid something")
        return result

    with swapped(SplitRunner, "finish", watched):
        engine = tiny_engine(overlap=True, limits=replace(FORMED_LIMITS, max_running=5))  # three run in a graph of four
        run_asks(engine, FORMED, check=checked_ask)
    if all(one.padded == one.raw for one in engine.timeline):
        found.append("no step was padded")
    return found


def check_rows_written() -> list[str]:
    """The rows that a step asks for are all written, also those of requests that have ended meanwhile."""
    found: list[str] = []
    num_ended, write = 0, MaskWriter.write

    def watched(self: MaskWriter, planned: StepPlan, masks: LateRows, force: Force) -> Failed:
        nonlocal num_ended
        num_ended += sum(planned.requests[row].finish_reason is not None for row in planned.formed)
        masks.values[planned.formed] = 0
        failed = write(self, planned, masks, force)
        found.extend(f"the mask of row {row} was not written" for row in planned.formed if not masks.values[row].any())
        return failed

    with swapped(MaskWriter, "write", watched):
        run_asks(formed_engine(overlap=True), FORMED, check=checked_ask)
    return found if num_ended else ["no request had ended when its mask was written"]


def check_audit() -> list[str]:
    """The audit of every runner, those behind masks among them."""
    engine = formed_engine(overlap=True, kv_memory_bytes=1 << 20)
    run_asks(engine, FORMED[:2], check=checked_ask)
    assert engine.worker.masked is not None
    engine.worker.masked.decoder_for(next(iter(engine.worker.masked.decoders))).capture_all()
    return [str(finding) for report in audit_worker(engine.worker) for finding in report.findings]


def check_forced() -> list[str]:
    """Answers with long forced parts, in steps of four tokens, are those of an engine that forces nothing."""
    answers = []
    for forced_tokens in (False, True):
        engine = forcing_engine(forced_tokens=forced_tokens)
        finished, found = run_asks(engine, FORCED, check=checked_ask)
        answers.append({name: output.outputs[0].token_ids for name, output in finished.items()})
        if found:
            return found
    return [] if answers[0] == answers[1] else [f"one by one {answers[0]}, forced {answers[1]}"]


def forced_answers(*, overlap: bool = True) -> Tokens:
    """What an engine gives that forces tokens."""
    finished, found = run_asks(forcing_engine(forced_tokens=True, overlap=overlap), FORCED, check=checked_ask)
    return {name: output.outputs[0].token_ids for name, output in finished.items()} | {"found": found}


ALL_FORCED = Oracle(name="forced answers", compute=forced_answers)


def check_forced_with_failing_launches(wanted: Tokens) -> list[str]:
    """The same answers when launches fail while the step that forced something is in flight."""
    launch, num_launches = Worker.launch, itertools.count(1)

    def often_fails(self: Worker, chunks: Sequence[Chunk]) -> InFlight:
        if not next(num_launches) % 4:
            raise MemoryError("on purpose")
        return launch(self, chunks)

    with swapped(Worker, "launch", often_fails):
        answers = forced_answers()
    return [] if answers == wanted else [f"with failing launches {answers}; without {wanted}"]


def check_forced_in_two_goes(wanted: Tokens) -> list[str]:
    """The same answers when forced tokens are given out in two goes, with a plan made in between."""
    commit, interrupted = Engine._commit, set[tuple[str, int]]()

    def interrupted_once(self: Engine, chunk: Chunk, token: int, sampled: ReadTokens, row: int) -> None:
        place = chunk.request.id, chunk.num_generated
        if chunk.request.forced and chunk.num_generated == chunk.request.forced_from + 2 and place not in interrupted:
            interrupted.add(place)
            raise MemoryError("stands for an interrupt")
        commit(self, chunk, token, sampled, row)

    with swapped(Engine, "_commit", interrupted_once):
        answers = forced_answers(overlap=False)
    if len(interrupted) < len(FORCED) - 1:
        return [f"{len(interrupted)} commits were interrupted; wanted one of each request with a form"]
    return [] if answers == wanted else [f"in two goes {answers}; in one {wanted}"]


def check_room_for_states() -> list[str]:
    """Answers of one form, which share the room for its states, go on when the room is used up."""
    wanted, mask_W = {TEXTS.index(text) for text in ("a", "b", "ab")}, np.zeros(num_words(VOCAB_SIZE), dtype=np.int32)
    with swapped(compiler, "MAX_LEXER_STATES", 40), swapped(matcher, "TOKENS_APART", 1):
        grammar = GrammarCompiler(tiny_vocabulary).compile(StructuredOutputs(regex="[ab]*a[ab]{12}"))
        for number in range(32):
            answer, output = Matcher(grammar), list[int]()
            for place in range(8):
                answer.follow(output)
                answer.write_mask(mask_W.ctypes.data, mask_W.nbytes)
                answer.restrict(output, mask_W)
                found = set(np.flatnonzero(np.unpackbits(mask_W.view(np.uint8), bitorder="little")).tolist())
                if found != wanted:
                    return [f"answer {number} may go on with {found} after {output}; wanted {wanted}"]
                output.append(TEXTS.index("ab"[number >> place & 1]))
    return []


class TakesAndStops:
    """A state of llguidance that takes tokens and is interrupted, once, before anybody knows it."""

    def __init__(self, state: LLMatcher) -> None:
        self._state, self._stops = state, True
        self.get_error, self.is_error, self.is_accepting = state.get_error, state.is_error, state.is_accepting

    def consume_tokens(self, tokens: list[int]) -> bool:
        is_taken = self._state.consume_tokens(tokens)
        if self._stops:
            self._stops = False
            raise MemoryError("stands for an interrupt")
        return is_taken


def check_interrupted_matcher() -> list[str]:
    """Tokens that a matcher had taken when it was interrupted are not taken twice."""
    answer = Matcher(tiny_grammars().compile(StructuredOutputs(regex="ab")))
    answer.state = cast("LLMatcher", TakesAndStops(answer.state))
    output = [TEXTS.index("a")]
    with suppress(MemoryError):
        answer.follow(output)
    answer.follow(output)
    answer.follow([*output, TEXTS.index("b")])
    return [] if answer.state.is_accepting() else ["ab does not fit ab"]


def check_failed_tail() -> list[str]:
    """An eager step runs whole in its tail, when its pages are in the prefix cache. If that fails, none of them is."""
    ask = Ask(name="r", prompt=(21,), params=formed(8, regex="[a-f]{3}-x:q,z"))
    engine = Engine(tiny_worker(Mode.EAGER), IdsOnlyTokenizer(), config=EngineConfig())
    wanted, found = run_asks(engine, [ask], check=checked_ask)
    engine.reset_prefix_cache()
    engine.submit(ask.name, checked_ask(engine, ask))

    def fails(self: Tail) -> None:
        raise MemoryError("on purpose")

    with swapped(Tail, "launch", fails), suppress(MemoryError):
        engine.step()
    found += [f"pages {node.pages} are kept as a prefix" for node in engine.worker.kv.prefix.nodes()]
    outputs: list[RequestOutput] = []
    while engine.has_work:
        outputs += engine.step()
    tokens, alone = (one.outputs[0].token_ids for one in (outputs[-1], wanted["r"]))
    return found + leftovers(engine) + ([] if tokens == alone else [f"{tokens}; alone {alone}"])


STRUCTURED_CHECKERS: tuple[Checker, ...] = (
    Checker(name="an interrupted matcher", run=check_interrupted_matcher, raises=(PlayheadError,)),
    Checker(name="a failed tail", run=check_failed_tail),
    Checker(name="answers", run=check_answers, oracles=(ALONE,)),
    Checker(name="shrinking batch", run=check_shrinking, oracles=(ALONE,)),
    Checker(name="mask padding", run=check_padding),
    Checker(name="mask rows", run=check_rows_written),
    Checker(name="mask audit", run=check_audit),
    Checker(name="room for states", run=check_room_for_states, raises=(PlayheadError,)),
    Checker(name="forced tokens", run=check_forced, raises=(PlayheadError,)),
    Checker(
        name="forced tokens, failing launches",
        run=check_forced_with_failing_launches,
        oracles=(ALL_FORCED,),
        raises=(PlayheadError,),
    ),
    Checker(
        name="forced tokens in two goes", run=check_forced_in_two_goes, oracles=(ALL_FORCED,), raises=(PlayheadError,)
    ),
)


@mutant(
    "mask off by one step",
    source="a mask made before the last token was read",
    killed_by=("answers",),
)
def mask_off_by_one() -> Patch:
    follow = Matcher.follow
    return swapped(Matcher, "follow", lambda self, output: follow(self, output[:-1]))


@mutant(
    "mask of the wrong row",
    source="masks in the order of rows, a step in the order of requests",
    killed_by=("answers",),
)
def mask_of_the_wrong_row() -> Patch:
    write = MaskWriter.write

    def backwards(self: MaskWriter, planned: StepPlan, masks: LateRows, force: Force) -> Failed:
        failed = write(self, planned, masks, force)
        masks.values[: len(planned)] = masks.values[: len(planned)][::-1].copy()
        return failed

    return swapped(MaskWriter, "write", backwards)


@mutant("masks pad with zeros", source="a padded row with no token to choose", killed_by=("mask padding",))
def masks_pad_with_zeros() -> Patch:
    def zeros(vocab_size: int) -> GraphSlot:
        return replace(masks_slot(vocab_size), pad_value=0)

    return swapped(build, "masks_slot", zeros)


@mutant("grammar lost with memory", source="a matcher begun anew for a preempted request", killed_by=("answers",))
def grammar_lost_with_memory() -> Patch:
    preempt = Scheduler._preempt

    def forgets(self: Scheduler, victim: Request) -> None:
        preempt(self, victim)
        if victim.matcher is not None:
            victim.matcher.state.reset()

    return swapped(Scheduler, "_preempt", forgets)


@mutant("masks sent with a fill alone", source="a step in place with the last step's masks", killed_by=("answers",))
def masks_sent_with_a_fill_alone() -> Patch:
    send = LateRegistry.send_late
    filled: dict[int, int] = {}

    def once(self: LateRegistry) -> None:
        if filled.get(id(self)) != self.num_fills:
            filled[id(self)] = self.num_fills
            send(self)

    return swapped(LateRegistry, "send_late", once)


@mutant("masks left from the last step", source="rows of the host's masks not reset", killed_by=("answers",))
def masks_left_from_the_last_step() -> Patch:
    opened = LateRegistry.open_late

    def as_they_are(self: LateRegistry, rows: Sequence[int]) -> LateRows:
        for one in self._late_stages:
            one.written = ()
        return opened(self, rows)

    return swapped(LateRegistry, "open_late", as_they_are)


@mutant("masks of ended requests not written", source="a row that holds an older mask", killed_by=("mask rows",))
def masks_of_the_ended_not_written() -> Patch:
    write = MaskWriter.write

    def of_others_alone(self: MaskWriter, planned: StepPlan, masks: LateRows, force: Force) -> Failed:
        ended = [row for row in planned.formed if planned.requests[row].finish_reason is not None]
        left = masks.values[ended]
        failed = write(self, planned, masks, force)
        masks.values[ended] = left
        return failed

    return swapped(MaskWriter, "write", of_others_alone)


@mutant("late padding not written", source="masks of rows that a larger step had", killed_by=("mask audit",))
def late_padding_not_written() -> Patch:
    def live_rows_alone(self: LateRegistry, values: np.ndarray[Any, Any], ctx: FillContext) -> None:
        opened = next(self._late_turns)
        opened.values[: ctx.raw_bs] = values
        self._open = opened
        self.send_late()

    return swapped(LateRegistry, "fill_late", live_rows_alone)


@mutant("forms stay where they were", source="places of a batch that has shrunk", killed_by=("shrinking batch",))
def forms_where_they_were() -> Patch:
    original = StepPlan.following

    def as_before(self: StepPlan, gone: list[int]) -> StepPlan:
        rest = original(self, gone)
        rest.formed = [at for at in self.formed if at < len(rest)]
        return rest

    return swapped(StepPlan, "following", as_before)


@mutant("newest token kept", source="a stale newest token before forced ones", killed_by=("forced tokens",))
def newest_token_kept() -> Patch:
    def keeps(self: DeviceRows, seq: SequenceKV) -> None:
        return

    return swapped(DeviceRows, "forget_newest", keeps)


@mutant("forced tokens not counted", source="draws numbered by steps", killed_by=("forced tokens",))
def forced_tokens_not_counted() -> Patch:
    original = Scheduler._chunk

    def by_steps(self: Scheduler, request: Request, seq: SequenceKV, num_tokens: int, *, samples: bool) -> Chunk:
        chunk = original(self, request, seq, num_tokens, samples=samples)
        is_forced = request.matcher is not None and num_tokens > 1 and request.num_sampled > 0
        return replace(chunk, num_generated=chunk.num_generated - 1) if is_forced else chunk

    return swapped(Scheduler, "_chunk", by_steps)


@mutant(
    "a step taken back forgets what the step before forced",
    source="found in review: a launch failed, and the request waited for ever for tokens that nobody would read",
    killed_by=("forced tokens, failing launches",),
)
def all_forced_tokens_taken_back() -> Patch:
    take_back = Scheduler.take_back

    def forgets(self: Scheduler, *, was_launched: bool = False) -> None:
        for chunk in self.open_plan or ():
            chunk.request.forced = ()
        take_back(self, was_launched=was_launched)

    return swapped(Scheduler, "take_back", forgets)


@mutant(
    "forced tokens follow whatever was read",
    source="found in review: a commit was interrupted, and the next chunk had the same tokens twice",
    killed_by=("forced tokens in two goes",),
)
def forced_tokens_twice() -> Patch:
    def after_output(self: Request, first: int, end: int) -> tuple[int, ...]:
        return (*self.prompt, *self.output, *self.forced)[first:end]

    return swapped(Request, "tokens_between", after_output)


@mutant(
    "answers share the room for states",
    source="found in review: after 817 answers of one form, every answer of that form failed",
    killed_by=("room for states",),
)
def room_is_shared() -> Patch:
    start = Grammar.start
    return swapped(Grammar, "start", lambda self, spent=None: start(self))


@mutant("tokens taken twice", source="found in review: an interrupt", killed_by=("an interrupted matcher",))
def tokens_taken_twice() -> Patch:
    original = Matcher.follow

    def forgets(self: Matcher, output: list[int]) -> None:
        self._is_taking = False
        original(self, output)

    return swapped(Matcher, "follow", forgets)


@mutant("prefixes of a failed tail", source="found by faults anywhere in a step", killed_by=("a failed tail",))
def prefixes_of_a_failed_tail() -> Patch:
    original = Worker.give_up

    def forgets(self: Worker, steps: Iterable[Step]) -> None:
        for step in (given_up := list(steps)):
            self._in_flight.pop(step, None)
        original(self, given_up)

    return swapped(Worker, "give_up", forgets)


STRUCTURED_MUTANTS: tuple[Mutant, ...] = (
    tokens_taken_twice,
    prefixes_of_a_failed_tail,
    mask_off_by_one,
    mask_of_the_wrong_row,
    masks_pad_with_zeros,
    grammar_lost_with_memory,
    masks_sent_with_a_fill_alone,
    masks_left_from_the_last_step,
    masks_of_the_ended_not_written,
    late_padding_not_written,
    forms_where_they_were,
    newest_token_kept,
    forced_tokens_not_counted,
    all_forced_tokens_taken_back,
    forced_tokens_twice,
    room_is_shared,
)
