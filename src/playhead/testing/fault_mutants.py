"""Bugs that show only when something raises, when the account is wrong, or when an engine is misused or dropped."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any
from weakref import WeakMethod

import numpy as np

from playhead.engine import engine as engine_module
from playhead.engine.engine import Engine
from playhead.engine.front import RequestOptions
from playhead.engine.response import ResponseBuilder
from playhead.engine.still import StillObjects
from playhead.errors import MisuseError, PlayheadError
from playhead.graph.breaks import RunBreak
from playhead.kernels import quiet
from playhead.kv.audit import GroupAudit
from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import NOTHING, Findings, KVWatch
from playhead.kv.prefix import PrefixCache
from playhead.kv.tables import RowTables, WindowMapping
from playhead.kv.violations import Violation
from playhead.outputs import FinishReason, RequestOutput
from playhead.schedule import scheduler, step_plan
from playhead.schedule.scheduler import Scheduler
from playhead.step import forward
from playhead.step.publish import Publisher
from playhead.testing.fault_runs import FaultPicker, check_outputs, interrupted_ends, leftovers, run_with_faults
from playhead.testing.faults import injected
from playhead.testing.mutant import Checker, Mutant, Oracle, Patch, mutant, swapped
from playhead.testing.tiny_engine import Ask, crowd, greedy, tiny_engine, tokens_alone
from playhead.testing.tiny_worker import tiny_worker
from playhead.types import TokenReport

CROWD = crowd(seed=1, count=12)
THREE = tuple(
    Ask(name=name, prompt=tuple(range(start, start + 9)), params=greedy(8))
    for name, start in (("victim", 20), ("neighbour", 40), ("third", 50))
)
Tokens = Mapping[str, list[int]]


@mutant(
    "plan not taken back", source="found in review: rows leaked until nothing ran", killed_by=("faults while planning",)
)
def plan_not_taken_back() -> Patch:
    """A plan that came to nothing keeps its places, and its requests wait for tokens that no step samples."""

    def closed_only(self: Scheduler, *, was_launched: bool = False) -> None:
        self.close_plan()

    return swapped(Scheduler, "take_back", closed_only)


@mutant("half a change trusted", source="found in review: an exception in admit", killed_by=("faults while planning",))
def half_a_change_trusted() -> Patch:
    """A change that was cut short is taken for done: pages and rows that it had taken are nobody's."""

    def trusting(self: HybridKVCache) -> bool:
        self.in_doubt = False
        return True

    return swapped(HybridKVCache, "settle", trusting)


@mutant(
    "token committed twice", source="a read that goes on where an interrupt came", killed_by=("interrupted commits",)
)
def token_committed_twice() -> Patch:
    """A read that was interrupted is repeated, and adds its token again."""

    def always(output: list[int], index: int) -> bool:
        return True

    @contextmanager
    def of_one_and_of_many() -> Iterator[None]:
        with swapped(scheduler, "lacks_token", always), swapped(step_plan, "lacks_token", always):
            yield

    return of_one_and_of_many()


@mutant(
    "end lost to an interrupt",
    source="found by the campaign: Ctrl-C while a last output was made",
    killed_by=("interrupted ends",),
)
def end_lost_to_an_interrupt() -> Patch:
    """A request is gone before its last output waits to be given out."""

    def trusting(
        self: Engine, response: ResponseBuilder, reason: FinishReason, error: PlayheadError | None = None
    ) -> None:
        response.error = error
        self._scheduler.finish(response.request, reason)
        self._ready.append(self._last_output(response))

    return swapped(Engine, "_end", trusting)


@mutant("one error for all", source="found in review: a detokenizer that raises", killed_by=("broken text",))
def one_error_for_all() -> Patch:
    """What one request's text raises is the step's error."""

    def raising(self: Engine, response: ResponseBuilder, error: BaseException) -> None:
        raise error

    return swapped(Engine, "_fail", raising)


@mutant("publication lost", source="no pinned memory for a page table", killed_by=("failed publication",))
def publication_lost() -> Patch:
    """A publication that raised is not repeated: the device never hears of these pages."""

    def nothing(self: RowTables | WindowMapping) -> None:
        return None

    return swapped(RowTables, "show_all", nothing)


@mutant("ledger not run", source="found in review: only tests made one", killed_by=("corrupted account",))
def ledger_not_run() -> Patch:
    def blind(self: KVWatch, *, is_idle: bool) -> Findings:
        return NOTHING

    return swapped(KVWatch, "look", blind)


@mutant("touched requests go on", source="wrong tokens, then a clean account", killed_by=("corrupted account",))
def touched_requests_go_on() -> Patch:
    """The pages are quarantined, and who had them is computed anew: after tokens that may have been wrong."""

    def forgiving(self: Engine, findings: Findings) -> None:
        self.stats.num_violations += len(findings.violations)

    return swapped(Engine, "_end_the_touched", forgiving)


@mutant(
    "marks of the tree unseen",
    source="found here: a page could be freed and hit, and the audit saw it when it had been",
    killed_by=("corrupted account",),
)
def marks_of_the_tree_unseen() -> Patch:
    def holders_alone(self: GroupAudit) -> Iterator[Violation]:
        return (one for one in wrong_counts(self) if "tree" not in one.detail)

    wrong_counts = GroupAudit._wrong_counts
    return swapped(GroupAudit, "_wrong_counts", holders_alone)


@mutant("quarantined prefix kept", source="shared pages that failed an audit", killed_by=("corrupted prefix",))
def quarantined_prefix_kept() -> Patch:
    """Pages of the prefix cache that failed an audit can be hit again."""

    def keep(self: PrefixCache) -> None:
        return None

    return swapped(PrefixCache, "restore", keep)


@mutant("anybody may enter", source="two threads in one engine", killed_by=("second thread",))
def anybody_may_enter() -> Patch:
    def open_to_all(self: Engine) -> None:
        return None

    return swapped(Engine, "check_use", open_to_all)


@mutant(
    "memory waits for the collector", source="found in review: 112 GiB kept after close", killed_by=("dropped engine",)
)
def memory_waits_for_the_collector() -> Patch:
    """The attention break holds the model whose method it calls, and the model holds the break."""

    def strong(method: WeakMethod[RunBreak]) -> RunBreak:
        run = method()
        assert run is not None, "it was made a line before"
        return run

    return swapped(forward, "weak_run", strong)


@mutant(
    "captures left to the collector",
    source="143 ms in a step of 2 ms, on a GPU whose graphs were captured one by one",
    killed_by=("captured one by one",),
)
def captures_left_to_the_collector() -> Patch:
    """What a step captures is looked through for garbage with every collection to come."""

    def nothing(self: StillObjects) -> None:
        return None

    return swapped(StillObjects, "leave_out", nothing)


@mutant(
    "numpy left silent",
    source="found here: an interrupt at the end of a block of np.errstate",
    killed_by=("interrupted numbers",),
)
def numpy_left_silent() -> Patch:
    def in_a_block(work: Callable[..., object], *args: object) -> object:
        with np.errstate(all="ignore"):
            return work(*args)

    return swapped(quiet, "quietly", in_a_block)


def interrupted_numbers() -> list[str]:
    """An interrupt at any line of what silences numpy leaves the caller's numpy as it was."""
    usual, found = np.geterr(), []
    for at in range(8):
        with interrupted_at(at, quiet.quietly.__code__), suppress(KeyboardInterrupt):
            quiet.quietly(np.sqrt, -1.0)
        if np.geterr() != usual:
            np.seterr(**usual)
            found.append(f"silent after an interrupt at line {at}")
    return found


@contextmanager
def interrupted_at(at: int, code: CodeType) -> Iterator[None]:
    """A `KeyboardInterrupt` before the `at`-th line that this code runs."""
    lines = itertools.count()

    def on_line(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and next(lines) == at:
            raise KeyboardInterrupt
        return on_line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: on_line if frame.f_code is code else None)
    try:
        yield
    finally:
        sys.settrace(before)


def faults_at(*sites: str) -> Callable[[Tokens], list[str]]:
    """A crowd with a fault in every second step, for 60 steps, at these sites."""

    def run(wanted: Tokens) -> list[str]:
        found = []
        for overlap in (False, True):
            engine = tiny_engine(overlap=overlap)
            picker = FaultPicker(rng=random.Random(2), sites=sites, errors=(RuntimeError, KeyboardInterrupt))
            report = run_with_faults(engine, CROWD, picker, lambda number: number % 2 == 1 and number < 60)
            found += check_outputs(report, wanted, picker.num_raised) + leftovers(engine)
        return found

    return run


def interrupted_commits(wanted: Tokens) -> list[str]:
    """An interrupt at every line of the reading of one token, of a request that streams and of one that does not."""
    engine, ask, found = tiny_engine(overlap=False), THREE[0], []
    for at, streams in itertools.product(range(80), (True, False)):
        engine.add_request(ask.name, ask.prompt, ask.params, RequestOptions(streams=streams))
        engine.step()
        engine.step()
        with injected("read", KeyboardInterrupt, at) as injection, suppress(KeyboardInterrupt):
            engine.step()
        outputs = [engine.step() for _ in range(200) if engine.has_work]
        end = next(output for some in outputs for output in some if output.finished)
        if end.error is None and end.outputs[0].token_ids != wanted[ask.name]:
            found.append(f"after an interrupt at {injection.raised_at}: {end.outputs[0].token_ids}")
    return found


def ends_with_interrupts() -> list[str]:
    """An interrupt at every place of the making of a request's last output."""
    return interrupted_ends(tiny_engine(overlap=False), "detokenise", streams=False)[0]


def failed_publication() -> list[str]:
    """A publication raises after its writes were taken and before they were sent: the next one sends them too."""
    worker = tiny_worker()
    seq = worker.kv.admit("running", THREE[0].prompt)
    worker.kv.extend(seq, len(THREE[0].prompt))

    def fails(self: Publisher, writes: object) -> None:
        raise MemoryError("no pinned memory")

    with swapped(Publisher, "send", fails), suppress(MemoryError):
        worker.publish()
    worker.publish()
    on_device = worker.tables.table_RP.cpu().numpy()
    return [] if (on_device == worker.kv.rows.tables[0]).all() else ["the device's page table is behind the host's"]


def broken_text(wanted: Tokens) -> list[str]:
    """One request's text cannot be made: it ends, and its neighbours get their tokens."""
    engine, take = tiny_engine(overlap=True), ResponseBuilder.take

    def fails(self: ResponseBuilder, token: int, reports: Sequence[TokenReport]) -> None:
        if self.request.id == "victim" and len(self.request.output) > 2:
            raise ValueError("its text")
        take(self, token, reports)

    with swapped(ResponseBuilder, "take", fails):
        try:
            finished = run_three(engine)
        except ValueError:
            return ["one request's error was the step's"]
    return wrong_tokens(finished, wanted, but="victim")


def corrupted_account(wanted: Tokens) -> list[str]:
    """The victim's row shows a page that is not its own, or a page of its prompt would be freed although the prefix
    cache has it: it ends in the same step.
    """

    def show_a_stranger(kv: HybridKVCache) -> None:
        seq = kv.sequences["victim"]
        kv.rows.tables[0][seq.row, 0] = seq.pages[-1]

    def forget_the_tree(kv: HybridKVCache) -> None:
        kv.allocator._is_retained[kv.sequences["victim"].pages[0]] = 0

    found = []
    for corrupt in (show_a_stranger, forget_the_tree):
        engine = tiny_engine(overlap=False, strict_ledger=False)
        engine._watch._every_steps = 1
        finished = run_three(engine, partial(corrupt, engine.worker.kv))
        found += wrong_tokens(finished, wanted, but="victim")
        if not engine.stats.num_violations:
            found.append("nobody counted it")
        found += leftovers(engine)
    return found


def corrupted_prefix(wanted: Tokens) -> list[str]:
    """A page of a cached prefix fails an audit: nobody is given it again."""
    engine = tiny_engine(overlap=False, strict_ledger=False)
    run_three(engine)
    cached = [page for node in engine.worker.kv.prefix.nodes() for page in node.pages]
    engine.worker.kv.allocator.hold(cached[:1])  # counted for a sequence that does not exist
    engine._watch._every_steps = 1
    engine.add_request("other", (1, 2), greedy(2))
    while engine.has_work:
        engine.step()
    finished = run_three(engine)
    hits = [f"{name} hit {out.num_cached_tokens} tokens" for name, out in finished.items() if out.num_cached_tokens]
    return hits + wrong_tokens(finished, wanted) + leftovers(engine)


def second_thread() -> list[str]:
    engine, found = tiny_engine(overlap=False), ["a second thread was served"]
    engine.add_request("first", (1, 2, 3), greedy(4))
    engine.step()

    def intrude() -> None:
        with suppress(MisuseError):
            engine.step()
            return
        found.clear()

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    return found


def dropped_engine() -> list[str]:
    """An engine that nobody has is gone, without the collector."""
    gc.disable()
    try:
        engine = tiny_engine(overlap=False)
        run_three(engine)
        worker = weakref.ref(engine.worker)
        decoder = weakref.ref(engine.worker.model.decoder)
        del engine
        return [f"the {name} is still there" for name, part in (("worker", worker), ("model", decoder)) if part()]
    finally:
        gc.enable()


def captured_one_by_one() -> list[str]:
    """What a step has captured is left out of collections, until its engine is closed."""
    with swapped(engine_module, "WHERE_PAUSES_SHOW", ("cpu",)):
        engine = tiny_engine(overlap=False)
        run_three(engine)
        num_left_out = gc.get_freeze_count()
        engine.close()
    found = [] if num_left_out else ["nothing was left out"]
    return found if not gc.get_freeze_count() else [*found, "what a closed engine left out still is"]


def run_three(engine: Engine, corrupt: Callable[[], None] | None = None) -> dict[str, RequestOutput]:
    """Three requests to their ends, with something done to the engine after the fourth step."""
    finished: dict[str, RequestOutput] = {}
    for ask in THREE:
        engine.add_request(ask.name, ask.prompt, ask.params)
    for number in range(200):
        if number == 4 and corrupt is not None:
            corrupt()
        if not engine.has_work:
            break
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    return finished


def wrong_tokens(finished: Mapping[str, RequestOutput], wanted: Tokens, *, but: str | None = None) -> list[str]:
    """Whose tokens are not their own. The one named by `but` must have ended with an error."""
    found = []
    for name, tokens in wanted.items():
        output = finished.get(name)
        if output is None:
            found.append(f"{name} has no end")
        elif (output.error is not None) != (name == but):
            found.append(f"{name}: {output.error!r}")
        elif output.error is None and output.outputs[0].token_ids != tokens:
            found.append(f"{name}: {output.outputs[0].token_ids}; alone {tokens}")
    return found


CROWD_OF_FAULTS = Oracle(name="crowd of faults alone", compute=lambda: tokens_alone(CROWD))
THREE_ALONE = Oracle(name="three alone", compute=lambda: tokens_alone(THREE))

FAULT_MUTANTS: tuple[Mutant, ...] = (
    plan_not_taken_back,
    half_a_change_trusted,
    token_committed_twice,
    end_lost_to_an_interrupt,
    publication_lost,
    one_error_for_all,
    ledger_not_run,
    touched_requests_go_on,
    marks_of_the_tree_unseen,
    quarantined_prefix_kept,
    anybody_may_enter,
    memory_waits_for_the_collector,
    captures_left_to_the_collector,
    numpy_left_silent,
)

# An engine whose account is wrong says so itself, as do kernels and queues that find a request where none can be.
FAULT_CHECKERS: tuple[Checker, ...] = (
    Checker(
        name="faults while planning",
        run=faults_at("plan", "admit", "extend"),
        oracles=(CROWD_OF_FAULTS,),
        raises=(PlayheadError,),
    ),
    Checker(name="interrupted commits", run=interrupted_commits, oracles=(THREE_ALONE,), raises=(PlayheadError,)),
    Checker(name="interrupted ends", run=ends_with_interrupts),
    Checker(name="failed publication", run=failed_publication),
    Checker(name="broken text", run=broken_text, oracles=(THREE_ALONE,)),
    Checker(name="corrupted account", run=corrupted_account, oracles=(THREE_ALONE,)),
    Checker(name="corrupted prefix", run=corrupted_prefix, oracles=(THREE_ALONE,), raises=(PlayheadError,)),
    Checker(name="second thread", run=second_thread),
    Checker(name="dropped engine", run=dropped_engine),
    Checker(name="captured one by one", run=captured_one_by_one),
    Checker(name="interrupted numbers", run=interrupted_numbers),
)
