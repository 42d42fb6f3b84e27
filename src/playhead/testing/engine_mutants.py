"""Bugs of a pipeline whose steps are launched before the last one is read, and what notices them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch

from playhead.engine.engine import Engine
from playhead.engine.launched import LaunchedStep
from playhead.engine.response import ResponseBuilder
from playhead.errors import PlayheadError
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.runner import GraphRunner
from playhead.graph.shapes import Decision
from playhead.graph.slots import Batch, FillContext
from playhead.graph.spec import LivePlan, StepResult
from playhead.kv.cache import HybridKVCache
from playhead.kv.sequence import SequenceKV
from playhead.kv.tables import Int32Array
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingKind
from playhead.schedule.ended import EndedRequests
from playhead.schedule.request import Chunk, Request
from playhead.schedule.rows import DecodeSlots, DeviceRows
from playhead.schedule.scheduler import ScheduleLimits, Scheduler
from playhead.schedule.step_plan import StepPlan
from playhead.step import outbox
from playhead.step.inputs import StepRequests
from playhead.step.outbox import FIRST_BOX, Box, Outbox
from playhead.step.sampling import SampledTokens, SamplerRows
from playhead.step.worker import Collected, HostReadback, HostStopwatch, InFlight, Worker
from playhead.testing.fault_mutants import FAULT_CHECKERS, FAULT_MUTANTS
from playhead.testing.kv_rules import run_step, small_layer, small_plan
from playhead.testing.mutant import Checker, Mutant, Oracle, Patch, mutant, swapped
from playhead.testing.tiny_engine import (
    LEFTOVERS,
    LIMITS,
    LITTLE_BYTES,
    ONE_BY_ONE,
    SCHEDULE,
    Ask,
    crowd,
    greedy,
    run_schedule,
    small_llm,
    tiny_engine,
    tokens_alone,
)
from playhead.types import Row, TokenReport

CROWD = crowd(seed=0)
STOPPED_PROMPT = (1, 50, 60)
FAILING_READ = 18  # in little memory, with others waiting for some
FAILING_READS = (4, 20)  # of the schedule: one request decodes; several do
FAILS_EVERY = 5  # runs of a graph


@mutant(
    "slots told by row", source="found here: a row used again, at the same length", killed_by=("overlapped schedule",)
)
def slots_told_by_row() -> Patch:
    """A request in the row of one that ended, as long as that one would be now, goes on with its token."""

    goes_on = DeviceRows.can_replay_in_place

    def by_row(self: DeviceRows, plan: StepPlan, kind: SamplingKind, *, num_fills: int, box: int) -> bool:
        last = self.decode_slots
        if last is not None and [seq.row for seq in last.plan.seqs] == [seq.row for seq in plan.seqs]:
            told = replace(last.plan, seqs=plan.seqs)
            self.decode_slots = replace(last, plan=told, num_places=told.ends + 1)
        return goes_on(self, plan, kind, num_fills=num_fills, box=box)

    return swapped(DeviceRows, "can_replay_in_place", by_row)


@mutant("one box for all steps", source="tokens that a graph leaves for the host", killed_by=("overlapped schedule",))
def one_box_for_all_steps() -> Patch:
    """A step's tokens take the place of those of the step before, which nobody has read yet."""

    def in_one_place(shape: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, Int32Array]:
        memory = torch.zeros(shape[-1], dtype=torch.int32, device=device).expand(shape)
        return memory, memory.numpy()

    return swapped(outbox, "seen_by_both", in_one_place)


@mutant(
    "box of a step for a capture", source="found here: its token was not read yet", killed_by=("faults while planning",)
)
def box_of_a_step_for_a_capture() -> Patch:
    """A size is captured while a step is in flight, and the placeholder's tokens take the place of the step's."""
    null_batch = CudaGraphBufferRegistry.null_batch

    def in_a_box(self: CudaGraphBufferRegistry, ctx: FillContext) -> Batch:
        batch = null_batch(self, ctx)
        return {name: value + 1 if name == "boxes" else value for name, value in batch.items()}

    return swapped(CudaGraphBufferRegistry, "null_batch", in_a_box)


@mutant("boxes that the host does not count", source="as above", killed_by=("overlapped schedule",))
def boxes_not_counted() -> Patch:
    """The host looks for all tokens in the first box."""
    box = Outbox.box
    return swapped(Outbox, "box", lambda self, number, num_rows: box(self, FIRST_BOX, num_rows))


@mutant("next place not known", source="a graph that advances past its pages", killed_by=("crowd in little memory",))
def next_place_not_known() -> Patch:
    """A step goes on although its next page was not in the table when the last one looked there."""

    goes_on = DeviceRows.can_replay_in_place

    def anyway(self: DeviceRows, plan: StepPlan, kind: SamplingKind, *, num_fills: int, box: int) -> bool:
        if self.decode_slots is not None:
            self.decode_slots = replace(self.decode_slots, num_places=self.decode_slots.plan.ends + 1)
        return goes_on(self, plan, kind, num_fills=num_fills, box=box)

    return swapped(DeviceRows, "can_replay_in_place", anyway)


@mutant(
    "place of a late page known",
    source="a batch that takes pages goes on; and found here, by 20,000 requests: memory came back behind a launch",
    killed_by=("pages behind a launch", "crowd in little memory"),
)
def late_page_known() -> Patch:
    """A batch goes on that got a page after the launch of the step before: that step left the sink as its place."""

    holds = DecodeSlots.hold

    def anyway(self: DecodeSlots, plan: StepPlan, kind: SamplingKind, *, num_fills: int, box: int) -> bool:
        return holds(replace(self, has_next_places=True), plan, kind, num_fills=num_fills, box=box)

    return swapped(DecodeSlots, "hold", anyway)


@mutant(
    "newcomers counted from a batch's first step", source="chunks beside a batch", killed_by=("overlapped schedule",)
)
def newcomers_not_shifted() -> Patch:
    """A newcomer's numbers stand beside those of a batch that counts its steps, without that count."""
    beside = StepPlan.beside

    def as_they_are(self: StepPlan, chunks: Sequence[Chunk]) -> StepPlan:
        both = beside(self, chunks)
        both.first_ends[len(self) :] += np.int32(self.num_on)
        return both

    return swapped(StepPlan, "beside", as_they_are)


@mutant("a request that ended gets its token", source="ended ones looked for among few", killed_by=("ends in a crowd",))
def ended_ones_not_found() -> Patch:
    """More requests end during a step than are kept, and only those that are kept count as ended."""

    def kept_ones(self: EndedRequests, planned: StepPlan) -> list[int]:
        newest = [request for _, request in self.newest]
        return [place for place, request in enumerate(planned.requests) if request in newest]

    return swapped(EndedRequests, "places_in", kept_ones)


@mutant("batch goes on past a length", source="a plan made from the one before", killed_by=("interrupted commits",))
def goes_on_past_a_length() -> Patch:
    """A request that nobody watches gets a token more than it asked for before somebody looks at its length."""

    def one_late(self: StepPlan) -> list[int]:
        found: list[int] = np.flatnonzero(self.first_left < self.num_on).tolist()
        return found

    return swapped(StepPlan, "at_their_end", one_late)


@mutant("sampler row kept", source="per-request state in a recycled row", killed_by=("overlapped schedule",))
def sampler_row_kept() -> Patch:
    """A recycled row keeps the seed and the temperature of its former request."""
    original = SamplerRows.set
    known: WeakKeyDictionary[SamplerRows, set[Row]] = WeakKeyDictionary()

    def only_once(self: SamplerRows, row: Row, request: Request) -> None:
        rows = known.setdefault(self, set())
        if row not in rows:
            rows.add(row)
            original(self, row, request)

    return swapped(SamplerRows, "set", only_once)


@mutant("newest token of any row", source="a preempted request comes back", killed_by=("failed launch",))
def newest_token_of_any_row() -> Patch:
    """A request that comes back with one token to compute takes the newest token of whoever had its row."""
    original = Scheduler._chunk

    def always(self: Scheduler, request: Request, seq: SequenceKV, num_tokens: int, *, samples: bool) -> Chunk:
        chunk = original(self, request, seq, num_tokens, samples=samples)
        return replace(chunk, tokens=(-seq.row,)) if num_tokens == 1 and request.output else chunk

    return swapped(Scheduler, "_chunk", always)


@mutant("preempted for nothing", source="deferred frees and preemption", killed_by=("crowd in little memory",))
def preempted_for_nothing() -> Patch:
    """Memory taken from others while steps run cannot be had yet: one short request costs all the others theirs."""
    return swapped(Scheduler, "_in_flight", False)


@mutant("bias kept in a row", source="found in review: wide tables, sparse writes", killed_by=("leftovers",))
def table_row_kept() -> Patch:
    """A recycled row keeps the bias of its former request, in force whenever a neighbour makes the step look."""

    def keep(self: SamplerRows, row: Row) -> None:
        return None

    return swapped(SamplerRows, "_clear_tables", keep)


@mutant("counts kept in a row", source="found here by the fuzz: rows counted unasked", killed_by=("leftovers",))
def counts_kept_in_a_row() -> Patch:
    """A recycled row keeps what was counted in it beside a neighbour who wanted counts."""
    original = SamplerRows._clear_tables

    def only_written(self: SamplerRows, row: Row) -> None:
        if row in self._written_rows:
            original(self, row)

    return swapped(SamplerRows, "_clear_tables", only_written)


@mutant("prompt counted as output", source="found in review: chunks of one token", killed_by=("leftovers",))
def prompts_counted_as_output() -> Patch:
    """A prompt's chunk of one token runs as decode, which counts what it draws as generated."""

    def any_single(self: StepRequests) -> bool:
        return all(len(chunk.tokens) == 1 for chunk in self.chunks)

    return swapped(StepRequests, "is_decode", property(any_single))


@mutant("interrupted read", source="found in review: Ctrl-C during a wait", killed_by=("interrupted read",))
def forgotten_when_interrupted() -> Patch:
    """A step leaves the pipeline before its tokens are there: an interrupt loses them."""
    original = Engine._read

    def first_forgotten(self: Engine, step: LaunchedStep) -> None:
        self._in_flight.popleft()
        original(self, step)
        self._in_flight.appendleft(step)

    return swapped(Engine, "_read", first_forgotten)


@mutant("failed step in flight", source="found in review: no pinned memory", killed_by=("no way back",))
def failed_step_in_flight() -> Patch:
    """A step that did not run is never retired: what was given up while it ran stays out of reach."""

    def nothing(self: Worker) -> None:
        return None

    return swapped(Worker, "settle", nothing)


@mutant("text lost at the end", source="found in review: text read late", killed_by=("text of a stopped request",))
def text_lost_at_the_end() -> Patch:
    """The token that ends a text counts as all of it when nobody has looked at the text before."""
    original = ResponseBuilder.take

    def skipping(self: ResponseBuilder, token: int, reports: Sequence[TokenReport]) -> None:
        if token in self.request.ending_ids:
            self.num_read_into_text = len(self.request.output)
        original(self, token, reports)

    return swapped(ResponseBuilder, "take", skipping)


Tokens = dict[str, list[int]]


def alone(name: str, asks: tuple[Ask, ...]) -> Oracle:
    """What each request of a schedule gets alone."""
    return Oracle(name=name, compute=lambda: tokens_alone([ask for ask in asks if ask.goes is None]))


SCHEDULE_ALONE = alone("schedule alone", SCHEDULE)
LEFTOVERS_ALONE = alone("leftovers alone", LEFTOVERS)
CROWD_ALONE = alone("crowd alone", CROWD)


def check_schedule(engine: Engine, wanted: Tokens, asks: tuple[Ask, ...] = SCHEDULE) -> list[str]:
    found_tokens, found = run_schedule(engine, asks)
    for name, tokens in wanted.items():
        if found_tokens.get(name) != tokens:
            found.append(f"request {name!r}: {found_tokens.get(name)}; alone {tokens}")
    if engine.worker.kv.sequences:
        found.append(f"still held: {sorted(engine.worker.kv.sequences)}")
    return found


def overlapped(wanted: Tokens) -> list[str]:
    """Every token is the one the request gets alone, and late stops cost one row at most."""
    engine = tiny_engine(overlap=True)
    found = check_schedule(engine, wanted)
    num_ends = len(SCHEDULE)
    if engine.stats.num_wasted_rows > num_ends:
        found.append(f"{engine.stats.num_wasted_rows} rows wasted by {num_ends} requests")
    return found


def preemptions_one_by_one() -> int:
    """How often the crowd takes memory from each other when no step is overlapped."""
    engine = tiny_engine(overlap=False, kv_memory_bytes=LITTLE_BYTES)
    run_schedule(engine, CROWD)
    return engine.stats.num_preemptions


CROWD_PREEMPTIONS = Oracle(name="crowd's preemptions", compute=preemptions_one_by_one)


def overlapped_in_little_memory(wanted: Tokens, num_needed: int) -> list[str]:
    """The same for a crowd, with preemptions, each of which was needed."""
    engine = tiny_engine(overlap=True, kv_memory_bytes=LITTLE_BYTES)
    found = check_schedule(engine, wanted, CROWD)
    if not 0 < engine.stats.num_preemptions <= 2 * num_needed:
        found.append(f"{engine.stats.num_preemptions} preemptions; wanted some, and at most {2 * num_needed}")
    return found


def failed_launch(wanted: Tokens) -> list[str]:
    """A launch that fails while a step is in flight: that one is read, everybody is computed anew."""
    engine, original, num_runs = tiny_engine(overlap=True), GraphRunner._run_filled, itertools.count()

    def often_fails(self: GraphRunner, decision: Decision, ctx: FillContext, live: LivePlan | None) -> StepResult:
        if next(num_runs) % FAILS_EVERY == FAILS_EVERY - 1:
            raise MemoryError("as a late capture may")
        return original(self, decision, ctx, live)

    with swapped(GraphRunner, "_run_filled", often_fails):
        return check_schedule(engine, wanted)


def ends_in_a_crowd() -> list[str]:
    """Most requests of a batch end while its step runs, those that ended first too: none of them gets its token."""
    num_requests, num_ended = 24, 22
    kv = HybridKVCache(small_plan([small_layer(None)], page_size=4, num_slabs=200, max_running=num_requests))
    made = Scheduler(kv, DeviceRows(), ScheduleLimits(chunk_tokens=64, max_waiting=num_requests))
    requests = [
        Request(id=f"{i}", prompt=(1, 2), params=greedy(20), max_new_tokens=20, arrival=i, is_plain=True)
        for i in range(num_requests)
    ]
    for request in requests:
        made.add(request)
    for step in range(4):
        planned = made.plan()
        run_step(kv)
        made.close_plan()
        for request in requests[:num_ended] if step == 3 else ():
            made.finish(request, FinishReason.ABORT)
        _, left = made.commit_plain(planned, [7] * num_requests)
        for row in left if step < 3 else ():
            made.commit(planned[row], 7)
    found = [len(request.output) for request in requests]
    return [] if found == [3] * num_ended + [4] * (num_requests - num_ended) else [f"tokens of the requests: {found}"]


def pages_behind_a_launch() -> list[str]:
    """Memory comes back behind the launch of a step without a next place: the next step does not go on in place."""
    found = []
    for num_prompt in range(5, 9):
        kv = HybridKVCache(small_plan([small_layer(None)], page_size=4, num_slabs=200), prefix_caching=False)
        made = Scheduler(kv, DeviceRows(), ScheduleLimits(chunk_tokens=64, max_waiting=1))
        params = greedy(20)
        made.add(Request(id="a", prompt=(1,) * num_prompt, params=params, max_new_tokens=20, arrival=0))
        others, knew_the_place, rows = kv.allocator.allocate(150), True, DeviceRows()
        for _ in range(16):
            planned = made.plan()
            if rows.can_replay_in_place(planned, SamplingKind.GREEDY, num_fills=0, box=1) and not knew_the_place:
                found.append(f"a prompt of {num_prompt}: a step goes on in place, and its place was not known")
            knew_the_place = all(kv.num_places(chunk.seq) > chunk.end for chunk in planned)
            slots = DecodeSlots.after_launch(planned, SamplingKind.GREEDY, num_fills=0, num_places=None, box=1)
            rows.decode_slots = slots if planned.is_decode else None
            run_step(kv)
            made.close_plan()
            if planned.goes_on and not knew_the_place:
                kv.allocator.drop(others)
                others = []
            made.catch_up()
            for chunk in planned:
                made.commit(chunk, 7)
    return found


def leftovers(wanted: Tokens) -> list[str]:
    """Nothing of a request is left in its row; a prompt's tokens are no output, however it is cut."""
    found = []
    for limits in (LIMITS, ONE_BY_ONE):
        found += check_schedule(tiny_engine(overlap=True, limits=limits), wanted, LEFTOVERS)
    return found


def interrupted_read(wanted: Tokens) -> list[str]:
    """Ctrl-C while a step is waited for: whoever steps on gets every token."""
    engine, original, num_reads = tiny_engine(overlap=True), Worker.collect, itertools.count()

    def interrupted(self: Worker, launched: InFlight) -> Collected:
        if next(num_reads) in FAILING_READS:
            raise MemoryError("stands for an interrupt")
        return original(self, launched)

    with swapped(Worker, "collect", interrupted):
        return check_schedule(engine, wanted)


def no_way_back(wanted: Tokens) -> list[str]:
    """The results' way to the host fails after the launch, in so little memory that nothing may stay behind."""
    engine, num_reads = tiny_engine(overlap=True, kv_memory_bytes=LITTLE_BYTES), itertools.count()
    original = HostStopwatch.read_back

    def fails(self: HostStopwatch, results: SampledTokens, box: Box | None = None) -> HostReadback:
        if next(num_reads) == FAILING_READ:
            raise MemoryError("no pinned memory")
        return original(self, results, box)

    with swapped(HostStopwatch, "read_back", fails):
        return check_schedule(engine, wanted)


def stopped_text() -> tuple[int, str]:
    """The last of twelve tokens, and the text of those before it."""
    llm = small_llm()
    *before, last = llm.generate(STOPPED_PROMPT, greedy(12))[0].outputs[0].token_ids
    assert last not in before, "it would end the text earlier"
    return last, llm.generate(STOPPED_PROMPT, greedy(len(before)))[0].outputs[0].text


STOPPED_TEXT = Oracle(name="text of a stopped request", compute=stopped_text)


def text_of_a_stopped_request(wanted: tuple[int, str]) -> list[str]:
    """The text up to the token that ended it, whether it was streamed or not."""
    stop_token, text = wanted
    llm, params = small_llm(), greedy(12, stop_token_ids=[stop_token])
    whole, *_, streamed = (*llm.generate(STOPPED_PROMPT, params), *llm.stream(STOPPED_PROMPT, params))
    texts = [output.outputs[0].text for output in (whole, streamed)]
    return [] if texts == [text, text] else [f"texts {texts}; wanted {text!r}"]


ENGINE_MUTANTS: tuple[Mutant, ...] = (
    slots_told_by_row,
    one_box_for_all_steps,
    box_of_a_step_for_a_capture,
    boxes_not_counted,
    next_place_not_known,
    late_page_known,
    newcomers_not_shifted,
    goes_on_past_a_length,
    ended_ones_not_found,
    sampler_row_kept,
    newest_token_of_any_row,
    table_row_kept,
    counts_kept_in_a_row,
    prompts_counted_as_output,
    forgotten_when_interrupted,
    failed_step_in_flight,
    text_lost_at_the_end,
    preempted_for_nothing,
    *FAULT_MUTANTS,
)

# An engine that lost a step's memory says so itself: no memory although nothing runs.
ENGINE_CHECKERS: tuple[Checker, ...] = (
    Checker(name="overlapped schedule", run=overlapped, oracles=(SCHEDULE_ALONE,)),
    Checker(name="failed launch", run=failed_launch, oracles=(SCHEDULE_ALONE,)),
    Checker(name="ends in a crowd", run=ends_in_a_crowd),
    Checker(name="pages behind a launch", run=pages_behind_a_launch),
    Checker(name="leftovers", run=leftovers, oracles=(LEFTOVERS_ALONE,)),
    Checker(name="interrupted read", run=interrupted_read, oracles=(SCHEDULE_ALONE,), raises=(PlayheadError,)),
    Checker(name="no way back", run=no_way_back, oracles=(SCHEDULE_ALONE,), raises=(PlayheadError,)),
    Checker(name="text of a stopped request", run=text_of_a_stopped_request, oracles=(STOPPED_TEXT,)),
    Checker(name="crowd in little memory", run=overlapped_in_little_memory, oracles=(CROWD_ALONE, CROWD_PREEMPTIONS)),
    *FAULT_CHECKERS,
)
