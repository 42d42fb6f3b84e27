"""Prove that a runner's graphs read what was declared, and nothing else.

Static checks read the op logs: who owns each address, who writes it, how far a read reaches. Dynamic checks run
samples: poisoned slots, stale tails, other leftovers in padded rows, replay against replay, replay against eager,
capture against capture, and steps that follow one another without a fill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from playhead.graph.backends.base import Recording
from playhead.graph.backends.cuda import CudaRecording
from playhead.graph.backends.cuda_nodes import kernel_nodes
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.oplog import Access, OpRecord, byte_span
from playhead.graph.outputs import Outputs, map_tensors, tensors_of
from playhead.graph.piecewise import PiecewiseCapture
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.report import Check, Finding, GraphFacts, Report
from playhead.graph.runner import GraphRunner
from playhead.graph.slots import Batch, FillContext, GraphSlot
from playhead.graph.spec import LivePlan

INT_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

NUM_CONSECUTIVE_STEPS = 2  # the first leaves the padded rows somewhere, the second writes there


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledStep:
    """A valid step to audit with. Where a graph advances its slots, its requests have room for one token more."""

    batch: Batch
    raw_bs: int
    raw_num_tokens: int
    pp_proxy_tensors: Mapping[str, torch.Tensor] | None = None

    def context(self, runner: GraphRunner, bucket: int) -> FillContext:
        """The context in which this step runs in a bucket."""
        return runner.context(
            raw_bs=self.raw_bs,
            raw_num_tokens=self.raw_num_tokens,
            bucket=bucket,
            pp_proxy_tensors=self.pp_proxy_tensors,
        )


# Makes a step of this many rows along the runner's axis, or as many as it can. Another seed gives other values and,
# over tokens, another number of requests.
Sample = Callable[[int, int], SampledStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A declared address range."""

    owner: str
    start: int
    stop: int
    writable: bool
    slot: GraphSlot | None = None

    def holds(self, start: int, stop: int) -> bool:
        return self.start <= start and stop <= self.stop


def audit(runner: GraphRunner, sample: Sample, *, raws: Sequence[int] | None = None) -> Report:
    """Every captured bucket of `runner` against every promise. `raws` limits the sizes tried in each bucket.

    `sample(raw, seed)` makes the steps. The memory the runner declares writable is put back as it was.
    """
    report = Report(name=runner.step.name)
    for bucket in sorted(runner.captured):
        captured = runner.captured[bucket]
        static = RecordingAudit(
            bucket=bucket, ctx=runner.placeholder_context(bucket), spans=declared_spans(runner), report=report
        )
        for recording in captured.recordings:
            static.run(recording)
        report.graphs.append(
            GraphFacts(
                bucket=bucket,
                num_recordings=len(captured.recordings),
                num_nodes=sum(recording.num_nodes for recording in captured.recordings),
                num_bytes=sum(recording.num_bytes for recording in captured.recordings),
            )
        )
        with restored_memory(runner):
            audit_two_captures(runner, bucket, sample, report)
        for raw in (raw for raw in (raws or sizes_to_try(bucket)) if raw <= bucket):
            audit_sample(runner, bucket, raw, sample, report)
    if runner.captured and isinstance(runner.capture, PiecewiseCapture):
        audit_trace(runner, runner.capture, sample, report)
    return report


def sizes_to_try(bucket: int) -> list[int]:
    """Full, one short of full, half and one row."""
    return sorted({bucket, max(1, bucket - 1), max(1, bucket // 2), 1})


# --- static -----------------------------------------------------------------------------------------------------------


def declared_spans(runner: GraphRunner) -> list[Span]:
    """Every address range captured work may touch."""
    spans = []
    for slot in runner.registry.slots.values():
        assert slot.buffer is not None
        start, stop = byte_span(slot.buffer)
        writable = slot.graph_writes is not None
        spans.append(Span(owner=f"slot {slot.name}", start=start, stop=stop, writable=writable, slot=slot))
    for memory in runner.step.owned:
        for tensor in memory.tensors:
            start, stop = byte_span(tensor)
            spans.append(Span(owner=memory.name, start=start, stop=stop, writable=memory.writable))
    bridges = runner.capture.bridges
    for buffer in () if bridges is None else bridges.buffers:
        start, stop = byte_span(buffer)
        spans.append(Span(owner="bridge", start=start, stop=stop, writable=True))
    return spans


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingAudit:
    """The static checks of one recording."""

    bucket: int
    ctx: FillContext
    spans: Sequence[Span]
    report: Report

    def run(self, recording: Recording) -> None:
        """Ownership, writes and extents from the op log; addresses of the kernels, where the driver shows them."""
        for op in recording.log.ops:
            for access in op.reads:
                self.check_access(op, access, "reads")
            for access in op.writes:
                self.check_access(op, access, "writes")
        if isinstance(recording, CudaRecording):
            self.check_pointers(recording)

    def check_access(self, op: OpRecord, access: Access, verb: str) -> None:
        """One read or write of memory that existed before the recording."""
        if access.internal or access.start == access.stop:
            return
        where, what = f"{op.name} at {op.where}", f"{verb} {access.dtype} {access.shape}"
        span = next((span for span in self.spans if span.holds(access.start, access.stop)), None)
        self.report.checked[Check.OWNERSHIP] += 1
        if span is None:
            fix = "Declare it, or compute it inside the graph."
            self._found(Check.OWNERSHIP, where, f"{what} that is no slot, bridge or owned memory. {fix}")
            return
        if verb == "writes":
            self.report.checked[Check.WRITES] += 1
            if not span.writable:
                self._found(Check.WRITES, where, f"{what} of {span.owner}, which is read-only. Declare it, and why.")
        if span.slot is not None:
            self.report.checked[Check.EXTENT] += 1
            start, stop = byte_span(span.slot.rows(0, self.ctx.padded(span.slot.axis)))
            if access.start < start or access.stop > stop:
                fix = "Use slice_for()."
                self._found(Check.EXTENT, where, f"{what} of {span.owner} outside the rows a fill writes. {fix}")

    def check_pointers(self, recording: CudaRecording) -> None:
        """Addresses in kernel parameters: the graph's own pool, its stream's workspaces, or declared."""
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        own = [
            Span(owner="graph pool", start=s["address"], stop=s["address"] + s["total_size"], writable=True)
            for s in segments
            if tuple(s["segment_pool_id"]) in recording.pools
        ]
        for node in kernel_nodes(recording.graph):
            for address in node.addresses:
                self.report.checked[Check.POINTERS] += 1
                if not any(span.start <= address < span.stop for span in (*own, *self.spans)):
                    message = f"was given {address:#x}, which no declaration covers."
                    self._found(Check.POINTERS, f"kernel {node.name}", message)

    def _found(self, check: Check, where: str, message: str) -> None:
        self.report.findings.append(Finding(check=check, bucket=self.bucket, where=where, message=message))


# --- dynamic ----------------------------------------------------------------------------------------------------------


def writable_tensors(runner: GraphRunner) -> list[torch.Tensor]:
    return [tensor for memory in runner.step.owned if memory.writable for tensor in memory.tensors]


@contextmanager
def restored_memory(runner: GraphRunner) -> Iterator[None]:
    """Whatever runs in here, writable memory is afterwards what it was before."""
    tensors = writable_tensors(runner)
    saved = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, before in zip(tensors, saved, strict=True):
            tensor.copy_(before)


def live_state(runner: GraphRunner, output: Outputs, ctx: FillContext, *, of_all: bool = True) -> list[torch.Tensor]:
    """What a step must get right: live output rows and owned memory without its sink, copied.

    Without `of_all`, memory that has no sink is left out: padded rows have room of their own there.
    """
    state = [tensor.clone() for tensor in tensors_of(runner.live_rows(output, ctx))]
    for memory in runner.step.owned:
        if memory.writable and (of_all or memory.sink_rows):
            state += [tensor[memory.sink_rows :].clone() for tensor in memory.tensors]
    return state


def audit_two_captures(runner: GraphRunner, bucket: int, sample: Sample, report: Report) -> None:
    """Capture again on sampled values and requests: the ops, shapes and constants must not have changed."""
    if isinstance(runner.backend, EagerBackend):
        return
    for seed in (1, 2):
        step = sample(bucket, seed)
        ctx = step.context(runner, bucket)
        live = runner.prepare(step.batch, ctx)
        again = runner.capture.capture(runner.backend, runner.step.fn, runner.graph_inputs(ctx), live)
        first = [op for r in runner.captured[bucket].recordings for op in r.log.ops]
        second = [op for r in again.recordings for op in r.log.ops]
        report.checked[Check.TWO_CAPTURES] += 1
        differing = next(
            (op for op, other in zip(first, second, strict=False) if op.signature != other.signature), None
        )
        if differing is None and len(first) != len(second):
            differing = (first + second)[min(len(first), len(second))]
        if differing is not None:
            message = "differs between captures: a value or the number of requests was baked in. Make it a slot."
            where = f"{differing.name} at {differing.where}"
            report.findings.append(Finding(check=Check.TWO_CAPTURES, bucket=bucket, where=where, message=message))


def audit_trace(runner: GraphRunner, capture: PiecewiseCapture, sample: Sample, report: Report) -> None:
    """Trace again on sampled values and requests. All captures are made of one trace, and cannot differ."""
    bucket = max(runner.captured)
    for seed in (1, 2):
        step = sample(bucket, seed)
        runner.prepare(step.batch, step.context(runner, bucket))
        difference = capture.difference(runner.step.fn, runner.largest_inputs())
        report.checked[Check.TWO_CAPTURES] += 1
        if difference is not None:
            message = f"a trace made now has {difference}: a value or the number of requests was baked in."
            report.findings.append(
                Finding(check=Check.TWO_CAPTURES, bucket=bucket, where=f"trace {seed}", message=message)
            )


def audit_sample(runner: GraphRunner, bucket: int, raw: int, sample: Sample, report: Report) -> None:
    """One raw size in one bucket: fill over poison, then compare runs, then let steps follow one another."""
    step = sample(raw, 3)
    ctx = step.context(runner, bucket)
    raw = ctx.raw(runner.step.axis)
    runner.registry.poison()
    runner.registry.fill_from(step.batch, ctx)
    report.checked[Check.TAILS] += len(runner.registry.slots)
    unwritten = list(unwritten_tails(runner.registry, ctx))
    if unwritten:  # poison used as an index would take the process down: nothing may run on it
        report.findings += [
            Finding(check=Check.TAILS, bucket=bucket, where=f"raw {raw}", message=message) for message in unwritten
        ]
        return
    audit_replays(runner, step, ctx, report)
    if raw < bucket:
        audit_padded_rows(runner, step, ctx, report)


def audit_replays(runner: GraphRunner, step: SampledStep, ctx: FillContext, report: Report) -> None:
    """Replay, replay again, eager, and replay over other leftovers: live rows and owned memory must be the same."""
    bucket = ctx.padded(runner.step.axis)

    def replay(live: LivePlan | None) -> Outputs:
        return runner.replay(bucket, live)

    def run(
        how: Callable[[LivePlan | None], Outputs] = replay,
        *,
        stale_tails: bool = False,
        padding_seed: int | None = None,
    ) -> list[torch.Tensor]:
        with restored_memory(runner):
            runner.registry.poison()
            live = runner.prepare(step.batch, ctx)
            write_unread_tails(runner.registry, ctx, stale=stale_tails)
            if padding_seed is not None:
                change_what_padded_rows_hold(runner, padding_seed)
            return live_state(runner, map_tensors(torch.clone, how(live)), ctx, of_all=padding_seed is None)

    def compare(check: Check, one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
        report.checked[check] += 1
        if not same_bits(one, other):
            where = f"raw {ctx.raw(runner.step.axis)}"
            message = f"live rows or owned memory differ by up to {largest_difference(one, other)}."
            report.findings.append(Finding(check=check, bucket=bucket, where=where, message=message))

    is_compiled = isinstance(runner.capture, PiecewiseCapture) and not runner.capture.keeps_bits
    if ctx.raw(runner.step.axis) < bucket:  # before `replayed`: these two and it are copies of all KV memory
        compare(Check.PADDED_VALUES, run(padding_seed=1), run(padding_seed=2))
    replayed = run()
    compare(Check.REPLAY_TWICE, replayed, run())
    compare(Check.REPLAY_VS_EAGER, replayed, run(lambda live: runner.run_eager(ctx, live, prepared=is_compiled)))
    if any(slot.leaves_tail and ctx.raw(slot.axis) < ctx.padded(slot.axis) for slot in runner.registry.slots.values()):
        compare(Check.UNREAD_TAILS, replayed, run(stale_tails=True))


def audit_padded_rows(runner: GraphRunner, step: SampledStep, ctx: FillContext, report: Report) -> None:
    """Consecutive steps on one fill, then a fill without poison: padded rows must be in the sink at every moment.

    A graph may leave its slots as the next step's inputs. If it moves padded rows too, they write live memory at the
    next step, although every fill puts them back.
    """
    bucket, where = ctx.padded(runner.step.axis), f"raw {ctx.raw(runner.step.axis)}"
    exact = replace(ctx, padded_bs=ctx.raw_bs, padded_num_tokens=ctx.raw_num_tokens)
    report.checked[Check.PADDED_ROWS] += 1

    def found(check: Check, messages: Sequence[str]) -> None:
        report.findings += [Finding(check=check, bucket=bucket, where=where, message=message) for message in messages]

    with restored_memory(runner):
        runner.registry.poison()
        live = runner.prepare(step.batch, ctx)
        flip_last_bits(runner)
        before = rows_beside_the_sink(runner)
        for _ in range(NUM_CONSECUTIVE_STEPS):
            runner.replay(bucket, live)
            strayed = list(strayed_rows(runner.registry, ctx))
            if strayed:
                found(Check.PADDED_ROWS, strayed)
                return
        written = changed_rows(before, rows_beside_the_sink(runner))
        runner.registry.fill_from(step.batch, ctx)
        found(Check.TAILS, [f"after a replay, {message}" for message in unwritten_tails(runner.registry, ctx)])
    with restored_memory(runner):
        live = runner.prepare(step.batch, exact)
        flip_last_bits(runner)
        for _ in range(NUM_CONSECUTIVE_STEPS):
            runner.run_eager(exact, live)
        wanted = changed_rows(before, rows_beside_the_sink(runner))
    for name in written:
        stray = written[name] & ~wanted[name]
        if bool(stray.any()):
            rows = stray.nonzero().flatten()[:4].tolist()
            found(Check.PADDED_ROWS, [f"rows {rows} after the sink of {name} are written by padded rows alone."])


def strayed_rows(registry: CudaGraphBufferRegistry, ctx: FillContext) -> Iterator[str]:
    """Index slots whose padded rows are no longer in the sink."""
    for slot in registry.slots.values():
        if slot.index is not None:
            tail = slot.rows(ctx.raw(slot.axis), ctx.padded(slot.axis))
            if bool((tail != slot.index.sink).any()):
                places = tail.flatten()[:4].tolist()
                yield f"the graph leaves padded rows of {slot.name!r} at {places}, wanted the sink {slot.index.sink}."


def rows_beside_the_sink(runner: GraphRunner) -> dict[str, torch.Tensor]:
    """Memory that padded rows may not write, copied, as one line of bytes per row."""
    rows = {}
    for memory in runner.step.owned:
        for i, tensor in enumerate(memory.tensors):
            live = tensor[memory.sink_rows :]
            if memory.writable and memory.sink_rows and live.numel():
                copy = live.clone(memory_format=torch.contiguous_format)
                rows[f"{memory.name} {i}"] = copy.view(live.shape[0], -1).view(torch.uint8)
    return rows


def flip_last_bits(runner: GraphRunner) -> None:
    """Make memory differ from what an earlier run, or the capture, may have written to the very same places."""
    for tensor in writable_tensors(runner):
        if tensor.is_floating_point():
            tensor.view(INT_OF_SIZE[tensor.element_size()]).bitwise_xor_(1)


def change_what_padded_rows_hold(runner: GraphRunner, seed: int) -> None:
    """Other numbers in the sink and in the bridges, where padded rows find what earlier steps left."""
    sinks = [tensor[: m.sink_rows] for m in runner.step.owned if m.writable for tensor in m.tensors]
    bridges = runner.capture.bridges
    for tensor in (*sinks, *(() if bridges is None else bridges.buffers)):
        if tensor.is_floating_point():
            fill_with_waves(tensor, seed)


def fill_with_waves(tensor: torch.Tensor, seed: int) -> None:
    """Numbers between -1 and 1, others for each seed, made where the tensor is.

    Of a real model's bridges, random numbers of the host would take far longer than the step itself.
    """
    places = torch.arange(1, tensor.numel() + 1, device=tensor.device)
    tensor.copy_(places.mul_(seed).sin().view(tensor.shape))


def changed_rows(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Which rows differ, by name."""
    return {name: (before[name] != after[name]).any(dim=1) for name in before}


def unwritten_tails(registry: CudaGraphBufferRegistry, ctx: FillContext) -> Iterator[str]:
    """Slots whose rows after the raw size are not their padding, though their policy says so.

    A hook may put something else into its padding, but not where the padding is an index: that must be the sink.
    """
    for slot in registry.slots.values():
        if slot.axis == "none" or slot.leaves_tail or (slot.post_fill is not None and slot.index is None):
            continue
        tail = slot.rows(ctx.raw(slot.axis), ctx.padded(slot.axis))
        if bool((tail != slot.pad_value).any()):
            yield f"slot {slot.name!r} holds {tail.flatten()[:4].tolist()} in its padding, wanted {slot.pad_value}."


def write_unread_tails(registry: CudaGraphBufferRegistry, ctx: FillContext, *, stale: bool) -> None:
    """Every tail that is claimed to be unread: padding, or what a step might have left (NaN, or a live row's values).

    Written in both cases: two runs over the same poison would agree whether or not they read it.
    """
    for slot in registry.slots.values():
        raw, padded = ctx.raw(slot.axis), ctx.padded(slot.axis)
        if not slot.leaves_tail or raw == padded:
            continue
        if not stale:
            slot.rows(raw, padded).fill_(slot.pad_value)
        elif slot.dtype.is_floating_point:
            slot.rows(raw, padded).fill_(float("nan"))
        else:
            for row in range(raw, padded):
                slot.rows(row, row + 1).copy_(slot.rows(row % raw, row % raw + 1))


def same_bits(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Bit equality: NaN equals the same NaN, and 0.0 does not equal -0.0."""
    return all(torch.equal(as_bytes(x), as_bytes(y)) for x, y in zip(a, b, strict=True))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def largest_difference(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> float:
    """The largest absolute difference, NaN if one side has NaN where the other has a number."""
    return max(float((x.double() - y.double()).abs().max()) for x, y in zip(a, b, strict=True) if x.numel())
