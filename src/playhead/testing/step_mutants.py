"""Bugs between the scheduler's integers and the graphs' addresses, and what notices them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from playhead.attention.base import ROWS_SLOT, LayerAttention
from playhead.attention.cpu import CpuBackend
from playhead.errors import GraphError
from playhead.graph.breaks import Tensors
from playhead.graph.capture import Inputs
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.runner import GraphRunner
from playhead.kernels import projection
from playhead.kernels.attention import head_dim_of, merge_left
from playhead.kernels.cpu import rope
from playhead.kernels.cpu.arrays import Array
from playhead.kernels.tokens import advance
from playhead.kv.cache import HybridKVCache
from playhead.kv.plan import KVLimits
from playhead.kv.pool import ForwardLocs
from playhead.kv.tables import Int32Array, RowTables
from playhead.models.context import RowsRead
from playhead.models.dense_context import DenseContext, DenseSequence
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk
from playhead.schedule.rows import DeviceRows
from playhead.schedule.step_plan import StepPlan
from playhead.step import forward, registries, worker
from playhead.step.audit import audit_worker
from playhead.step.build import Runners
from playhead.step.forward import LAST_TOKENS_SLOT
from playhead.step.inputs import StepInput, StepRequests, batch_of
from playhead.step.outbox import NUM_BOXES
from playhead.step.worker import HostStopwatch, InFlight, Worker
from playhead.testing.mutant import Checker, Mutant, Oracle, Patch, mutant, swapped
from playhead.testing.parts_left import as_on_a_gpu
from playhead.testing.tiny_engine import Ask, greedy, tiny_engine, tokens_alone
from playhead.testing.tiny_worker import dense_logits, differences, last_logits, tiny_worker
from playhead.types import Mode, Step

PROMPTS = ([7, 8, 9, 10, 11, 12], [7], [20, 21, 22])
REPORTED = [7, 8, 9, 10, 11, 12, 13]
MANY_PROMPTS = ([7, 8, 9, 10, 11, 12], [20, 21, 22, 23, 24, 25], [30, 31, 32, 33])


@mutant(
    "places read after the launch",
    source="found here: equal first pages in one step",
    killed_by=("batch against dense attention",),
)
def places_read_after_launch() -> Patch:
    """The launch exchanged a page for the prefix cache's; the batch then points at one, the table at the other."""
    original = Worker.launch

    def late(self: Worker, chunks: Sequence[Chunk]) -> InFlight:
        self.publish()
        step = self.kv.launch()
        with swapped(HybridKVCache, "begin", lambda kv: step), swapped(Worker, "publish", lambda worker: None):
            return original(self, chunks)

    return swapped(Worker, "launch", late)


@mutant("page table behind", source="a table copied once", killed_by=("batch against dense attention",))
def page_table_behind() -> Patch:
    original = RowTables.take_changed

    def nothing(self: RowTables) -> tuple[npt.NDArray[np.int64], Int32Array]:
        entries, values = original(self)
        return entries[:0], values[:0]

    return swapped(RowTables, "take_changed", nothing)


@mutant("read past length", source="lengths that count one more", killed_by=("token by token",))
def read_past_length() -> Patch:
    def one_more(inputs: Sequence[StepInput], step: StepRequests) -> dict[str, Any]:
        made = batch_of(inputs, step)
        return made | {"seq_lens": made["seq_lens"] + 1} if step.is_decode else made

    return swapped(worker, "batch_of", one_more)


@mutant(
    "placeholder past its row",
    source="found here: a bucket larger than the context",
    killed_by=("chunks beyond the context",),
)
def placeholder_past_its_row() -> Patch:
    def all_of_them(num_tokens: int, max_context_tokens: int) -> int:
        return num_tokens

    return swapped(registries, "placeholder_tokens", all_of_them)


@mutant(
    "failed step stays in the prefix cache",
    source="found in review: pages offered at launch, never computed",
    killed_by=("failed step",),
)
def offered_before_it_runs() -> Patch:
    """A step's tokens count as written before the step is on its way."""
    begin = HybridKVCache.begin

    def too_soon(self: HybridKVCache) -> Step:
        step = begin(self)
        self.commit()
        return step

    return swapped(HybridKVCache, "begin", too_soon)


@mutant(
    "padding in the sink",
    source="found here: rows after a full graph's tokens are never computed",
    killed_by=("the sink of a batch",),
)
def padding_in_the_sink() -> Patch:
    """Tokens that are nobody's leave whatever memory held in the sink, where a padded row of decode reads."""

    def everywhere(locs: Array, *caches_rows: tuple[Array, Array]) -> None:
        for cache, rows in caches_rows:
            cache[locs // cache.shape[1], locs % cache.shape[1]] = rows

    return swapped(rope, "write_rows", everywhere)


@mutant("keys looked up by the warm-up", source="a value of one step kept for the next", killed_by=("token by token",))
def keys_of_the_warm_up() -> Patch:
    """Keys are looked up by the first forward of each size: a graph's replays attend to where they lay then."""
    prepare = CpuBackend.prepare
    found: dict[int, tuple[Tensors, ...]] = {}

    def once(
        self: CpuBackend, layers: tuple[LayerAttention, ...], locs: ForwardLocs, inputs: Inputs
    ) -> tuple[Tensors, ...]:
        return found.setdefault(len(inputs[ROWS_SLOT]), prepare(self, layers, locs, inputs))

    return swapped(CpuBackend, "prepare", once)


@mutant("box of an unread step", source="found in review: failed steps had counted on", killed_by=("failed ways back",))
def box_of_an_unread_step() -> Patch:
    """A step leaves its tokens in the next box, whoever has that."""
    return swapped(Worker, "_free_box", lambda self: self._next_box)


@mutant("graph goes on over filled slots", source="a guard that no test noticed", killed_by=("capture between steps",))
def goes_on_over_anything() -> Patch:
    """A decode graph goes on over its slots, although a capture has filled them since."""
    goes_on = DeviceRows.can_replay_in_place

    def careless(self: DeviceRows, plan: StepPlan, kind: SamplingKind, *, num_fills: int, box: int) -> bool:
        if self.decode_slots is not None:
            num_fills = self.decode_slots.num_fills
        return goes_on(self, plan, kind, num_fills=num_fills, box=box)

    return swapped(DeviceRows, "can_replay_in_place", careless)


@mutant(
    "decode moves its padded rows",
    source="a graph that advances itself by an unmasked increment",
    killed_by=("worker audit",),
)
def padded_rows_advanced() -> Patch:
    """Decode counts null requests as live ones and moves them along. Every fill puts them back."""
    live_rows: Callable[..., None] = advance

    def everybody(*args: Any, **kwargs: Any) -> None:
        *before, rows_B, num_live = args[:9]
        live_rows(*before, rows_B, torch.full_like(num_live, len(rows_B)), *args[9:], **kwargs)

    return swapped(forward, "advance", everybody)


@mutant(
    "traced at the first size captured",
    source="found in review: a chunk of one token came first, and no other size could run",
    killed_by=("any first size",),
)
def traced_at_the_first_size() -> Patch:
    def one_row(self: GraphRunner) -> Inputs:
        return self.graph_inputs(self.placeholder_context(1))

    return swapped(GraphRunner, "largest_inputs", one_row)


@mutant(
    "parts of heads in another order",
    source="two kernels share a layout: one leaves parts, the other one merges them",
    killed_by=("parts on the tape",),
)
def heads_in_another_order() -> Patch:
    def merge(left_BZ: torch.Tensor, num_left: int, num_inputs: int) -> torch.Tensor:
        merged_BY = merge_left(left_BZ, num_left, num_inputs)
        return merged_BY.roll(head_dim_of(left_BZ, num_left, num_inputs), dims=1)

    return swapped(projection, "merge_left", merge)


Dense = dict[tuple[int, ...], torch.Tensor]


@mutant(
    "the next request's token is read",
    source="an index that is one too large, where the last layer computes the rows that are read alone",
    killed_by=("batch against dense attention",),
)
def the_next_requests_token() -> Patch:
    def one_too_far(inputs: Sequence[StepInput], step: StepRequests) -> dict[str, Any]:
        made = batch_of(inputs, step)
        if LAST_TOKENS_SLOT in made:
            made[LAST_TOKENS_SLOT] = np.minimum(made[LAST_TOKENS_SLOT] + 1, step.chunks.num_tokens - 1)
        return made

    return swapped(worker, "batch_of", one_too_far)


@mutant(
    "the first rows are read",
    source="a cut where a choice is meant, in the last layer",
    killed_by=("batch against dense attention",),
)
def the_first_rows_are_read() -> Patch:
    return swapped(RowsRead, "of", lambda self, x_TM: x_TM[: self.index.shape[0]].clone())


@mutant(
    "reports of the rows that are read",
    source="a graph that computes the last tokens alone, given to a step that reports on all",
    killed_by=("reports on prompts",),
)
def reports_of_the_rows_read() -> Patch:
    def prefill_again(self: Runners, registry: CudaGraphBufferRegistry) -> GraphRunner:
        return self._over_tokens(self._forward.token_spec, registry)

    return swapped(Runners, "whole_prefill", prefill_again)


def dense(prompts: Sequence[Sequence[int]]) -> Dense:
    """Each prompt's logits by plain attention. All tiny workers have the same weights."""
    decoder = tiny_worker().model.decoder
    return {tuple(prompt): dense_logits(decoder, prompt) for prompt in prompts}


def against(logits_NV: torch.Tensor, prompts: Sequence[Sequence[int]], wanted: Dense) -> list[str]:
    found = []
    for i, prompt in enumerate(prompts):
        found += differences(logits_NV[i : i + 1], wanted[tuple(prompt)], f"request {i}")
    return found


def batch_against_dense(wanted: Dense) -> list[str]:
    """A request's logits are its own, whoever shares its step, its pages or its prefix; and twice, with hits."""
    worker, found = tiny_worker(), []
    for _ in range(2):
        found += against(last_logits(worker, PROMPTS), PROMPTS, wanted)
    return found


def sink_of_a_batch() -> list[str]:
    """Nobody writes the sink, where padded rows read: what is in it stays the zeros it began with."""
    worker = tiny_worker(Mode.FULL)
    last_logits(worker, PROMPTS)
    sinks = [(memory.name, memory.sink_rows, memory.tensors) for memory in worker.prefill.step.owned if memory.writable]
    return [f"{name}: the sink was written" for name, end, kv in sinks if any(tensor[:end].any() for tensor in kv)]


def token_by_token(wanted: Dense) -> list[str]:
    """Decoding a prompt gives what computing it at once gives: past its end there is nothing to see."""
    worker, prompt = tiny_worker(), PROMPTS[0]
    seq = worker.kv.admit("request", prompt)
    found = []
    for n, token in enumerate(prompt, start=1):
        worker.kv.extend(seq, 1)
        logits = worker.run([Chunk.newest(seq, [token])]).logits_NV
        found += differences(logits, wanted[tuple(prompt[:n])], f"{n} tokens")
    return found


def chunks_beyond_the_context(wanted: Dense) -> list[str]:
    """A step may have more tokens than any one request: capturing it must not read past a row of the page table."""
    limits = KVLimits(max_context_tokens=8, max_running=4, chunk_tokens=16)
    worker = tiny_worker(limits=limits)
    try:
        worker.capture_all()
    except IndexError as error:  # a GPU would read on, and say nothing
        return [f"a capture reads past its row: {error}"]
    return against(last_logits(worker, MANY_PROMPTS), MANY_PROMPTS, wanted)


def logprobs_of_prompt() -> torch.Tensor:
    """Of each token of a prompt but its first, by plain attention over all of it."""
    model, ids_T = tiny_worker().model.decoder, torch.tensor(REPORTED)
    context = DenseContext(model, [DenseSequence()], [len(ids_T)])
    logits_TV = model.head(model.layers(model.embed(ids_T), context))
    return logits_TV.log_softmax(dim=-1)[:-1].gather(1, ids_T[1:, None]).T


def reports_on_prompts(wanted_1T: torch.Tensor) -> list[str]:
    """The logprobs of a prompt's tokens, which are more than requests may run, are those of plain attention."""
    engine = tiny_engine(overlap=False)
    assert len(REPORTED) > engine.worker.config.limits.max_running
    engine.add_request("reported", REPORTED, greedy(1, prompt_logprobs=0))
    (output,) = engine.step()
    if output.prompt_logprobs is None:
        return [f"no report: {output.error}"]
    entries = zip(REPORTED[1:], output.prompt_logprobs[1:], strict=True)
    logprobs = [table[token].logprob for token, table in entries if table is not None]
    return differences(torch.tensor([logprobs]), wanted_1T, "logprobs of a prompt")


def any_first_size(wanted: Dense) -> list[str]:
    """A piecewise graph of one token, captured first, leaves the other sizes right."""
    worker = tiny_worker(Mode.PIECEWISE)
    worker.prefill.capture_bucket(1)
    try:
        logits_NV = last_logits(worker, PROMPTS[:1])
    except (RuntimeError, ValueError) as error:
        return [f"after a graph of one token no other can be captured: {error}"]
    return against(logits_NV, PROMPTS[:1], wanted)


def failed_step(wanted: Dense) -> list[str]:
    """A step that raises after its launch leaves nothing behind that a later request could be given."""
    worker, prompt = tiny_worker(), PROMPTS[0]
    seq = worker.kv.admit("fails", prompt)
    worker.kv.extend(seq, len(prompt))
    with swapped(worker.prefill, "run", fails), suppress(MemoryError):
        worker.run([Chunk.newest(seq, prompt)])
    worker.kv.abort(seq)
    return against(last_logits(worker, [prompt]), [prompt], wanted)


def fails(*args: object, **kwargs: object) -> NoReturn:
    raise MemoryError("as a late capture may")


def failed_ways_back(wanted: Dense) -> list[str]:
    """Steps that ran, and whose tokens found no way to the host, leave an unread step's tokens alone."""
    worker, (prompt, _, others) = tiny_worker(), PROMPTS
    seqs = [worker.kv.admit(name, prompt) for name in ("unread", "fails")]
    for seq in seqs:
        worker.kv.extend(seq, 1)
    unread = worker.launch([Chunk.newest(seqs[0], prompt[:1])])
    with swapped(HostStopwatch, "read_back", fails):
        for number in range(NUM_BOXES):
            with suppress(MemoryError):
                worker.launch([Chunk.newest(seqs[1], [others[number % len(others)]])])
    (token,) = worker.collect(unread).sampled.tokens
    best = int(wanted[tuple(prompt[:1])].argmax())
    return [] if token == best else [f"found {token}; wanted {best}"]


def worker_audit() -> list[str]:
    reports = audit_worker(tiny_worker(Mode.FULL))
    return [f"{finding.check.value}: {finding.message}" for report in reports for finding in report.findings]


def capture_between_steps(wanted: dict[str, list[int]]) -> list[str]:
    """A graph that is captured while a request decodes does not change its tokens."""
    engine = tiny_engine(overlap=True)
    engine.add_request(ALONE.name, ALONE.prompt, ALONE.params)
    tokens: list[int] = []
    for number in range(100):
        if number == 6:
            engine.worker.decoder_for(SamplingKind.DRAWN).capture_all()
        for output in engine.step():
            tokens = output.outputs[0].token_ids
        if not engine.has_work:
            break
    return [] if tokens == wanted[ALONE.name] else [f"found {tokens}; wanted {wanted[ALONE.name]}"]


def parts_on_the_tape(wanted: dict[str, list[int]]) -> list[str]:
    """A request alone, whose attention leaves its output in more parts than it has keys at first."""
    with as_on_a_gpu(3):
        tokens = tokens_alone([ALONE])
    return [] if tokens == wanted else [f"found {tokens}; wanted {wanted}"]


STEP_MUTANTS: tuple[Mutant, ...] = (
    places_read_after_launch,
    page_table_behind,
    placeholder_past_its_row,
    offered_before_it_runs,
    read_past_length,
    keys_of_the_warm_up,
    padding_in_the_sink,
    goes_on_over_anything,
    box_of_an_unread_step,
    padded_rows_advanced,
    traced_at_the_first_size,
    heads_in_another_order,
    the_next_requests_token,
    the_first_rows_are_read,
    reports_of_the_rows_read,
)

DENSE_PROMPTS = Oracle(name="dense prompts", compute=lambda: dense([*PROMPTS, *MANY_PROMPTS]))
DENSE_PREFIXES = Oracle(
    name="dense prefixes", compute=lambda: dense([PROMPTS[0][:n] for n in range(1, len(PROMPTS[0]) + 1)])
)

ALONE = Ask(name="alone", prompt=(7, 8, 9, 10, 11), params=greedy(20))
LOGPROBS_OF_PROMPT = Oracle(name="logprobs of a prompt", compute=logprobs_of_prompt)
TOKENS_ALONE = Oracle(name="tokens alone", compute=lambda: tokens_alone([ALONE]))

STEP_CHECKERS: tuple[Checker, ...] = (
    Checker(name="batch against dense attention", run=batch_against_dense, oracles=(DENSE_PROMPTS,)),
    Checker(name="token by token", run=token_by_token, oracles=(DENSE_PREFIXES,)),
    Checker(name="chunks beyond the context", run=chunks_beyond_the_context, oracles=(DENSE_PROMPTS,)),
    Checker(name="reports on prompts", run=reports_on_prompts, oracles=(LOGPROBS_OF_PROMPT,), raises=(IndexError,)),
    Checker(name="any first size", run=any_first_size, oracles=(DENSE_PROMPTS,)),
    Checker(name="failed step", run=failed_step, oracles=(DENSE_PROMPTS,)),
    Checker(name="failed ways back", run=failed_ways_back, oracles=(DENSE_PREFIXES,)),
    Checker(name="worker audit", run=worker_audit),
    Checker(name="parts on the tape", run=parts_on_the_tape, oracles=(TOKENS_ALONE,)),
    Checker(name="the sink of a batch", run=sink_of_a_batch),
    Checker(name="capture between steps", run=capture_between_steps, oracles=(TOKENS_ALONE,), raises=(GraphError,)),
)
