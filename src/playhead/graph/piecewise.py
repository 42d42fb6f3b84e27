"""A traced graph, split at the breaks, each piece compiled, then captured like any breakable step.

The callable is traced once with symbolic row counts, so one compilation serves every bucket. Weights become inputs of
the pieces that use them. On CUDA a piece is compiled by Inductor; on the CPU it stays the traced ops, which is enough
to prove that splitting and replaying change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.split_module import split_module

from playhead.errors import CaptureError
from playhead.graph.backends.base import Backend
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.breakable import BreakableCapture
from playhead.graph.breaks import BreakOp, Scope, Tensors, TensorSpec
from playhead.graph.bridges import BridgePool
from playhead.graph.capture import CapturedStep, Inputs, StepFn
from playhead.graph.oplog import current_observer
from playhead.graph.outputs import Outputs, map_tensors, tensors_of, with_tensors
from playhead.graph.slots import SlotViews
from playhead.types import Mode

FEWEST_SYMBOLIC = 2  # tracing makes sizes of 0 and 1 plain numbers
Piece = Callable[..., Any]
CompilePiece = Callable[[GraphModule, Sequence[Any]], Piece]


def as_traced(piece: GraphModule, examples: Sequence[Any]) -> Piece:
    """The light compiler: the traced ops as they are."""
    return piece


def with_inductor(piece: GraphModule, examples: Sequence[Any]) -> Piece:
    """One compiled artefact per piece, for any row count."""
    # Imported here: Inductor takes seconds to import and is only wanted on CUDA.
    from torch._inductor import config, standalone_compile

    show_results(piece)
    # The harness runs a piece on invented sizes, and cannot invent one for a row count that comes in as an argument.
    with config.patch(benchmark_harness=False):
        return standalone_compile(piece, list(examples), dynamic_shapes="from_graph")


def show_results(piece: GraphModule) -> None:
    """Give what a piece returns the examples from which Inductor takes the symbols of the trace.

    Without them it makes symbols of its own, and fails where one input has as many rows as another and a limit allow.
    """
    returned = next(iter(reversed(piece.graph.nodes))).args[0]
    for node in [returned] if isinstance(returned, Node) else returned:
        node.meta.setdefault("example_value", node.meta.get("val"))


def compiler_for(device: torch.device) -> CompilePiece:
    return with_inductor if device.type == "cuda" else as_traced


class TraceScope:
    """Leaves each break in the traced graph as one node, and remembers which op it stands for."""

    def __init__(self) -> None:
        self.ops: dict[Any, BreakOp] = {}

    def call(self, op: BreakOp, *inputs: torch.Tensor, site: int) -> Tensors:
        self.ops[op.traced_target] = op
        return tuple(op.traced(list(inputs), site))

    def bridge(self, op: BreakOp, position: int, spec: TensorSpec, like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(spec.shape, dtype=spec.dtype)  # a compiled piece makes its own memory; the break copies

    def share_memory(self) -> None:
        """All sites of a trace share bridges anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakSite:
    """A break of the split graph: which op, where, and the order of its inputs among the submodule's arguments."""

    op: BreakOp
    site: int
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProgram:
    """The traced callable in pieces, ready to run under any scope."""

    module: GraphModule
    input_names: tuple[str, ...]
    pieces: Mapping[str, tuple[Piece, tuple[int, ...]]]
    breaks: Mapping[str, BreakSite]
    template: Outputs
    """The callable's output with empty tensors in the places of its own."""
    code: str
    """The trace before it was split, as text."""

    def __call__(self, inputs: Inputs, scope: Scope) -> Outputs:
        with torch.no_grad():
            tensors = SplitInterpreter(self, scope).run(*(inputs[name] for name in self.input_names))
        return with_tensors(self.template, list(tensors))


class SplitInterpreter(Interpreter):
    """Walks the split graph: pieces run compiled, breaks go to the scope."""

    def __init__(self, program: SplitProgram, scope: Scope) -> None:
        super().__init__(program.module)
        self._program, self._scope = program, scope

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        site = self._program.breaks.get(target)
        if site is not None:
            return self._scope.call(site.op, *(args[i] for i in site.order), site=site.site)
        piece, mutated = self._program.pieces[target]
        observer = current_observer()
        if isinstance(piece, GraphModule) or observer is None:
            return piece(*args)
        return observer.run_opaque(f"inductor::{target}", piece, args, mutated)


def trace(fn: StepFn, inputs: Inputs, scope: TraceScope) -> tuple[GraphModule, Outputs]:
    """The ops of `fn` with symbolic rows, and its output. Weights are attributes of the trace."""
    # Imported before the trace: torch would import it inside, where a cycle keeps all frames on the stack alive.
    import torch._dynamo

    names, outputs = tuple(inputs), list[Outputs]()
    examples, num_rows = with_prime_rows(inputs)

    def positional(*tensors: torch.Tensor) -> Tensors:
        views = SlotViews(dict(zip(names, tensors, strict=True)), inputs.__getitem__)
        outputs.append(fn(views, scope))
        return tuple(tensors_of(outputs[-1]))

    with torch.no_grad():
        # Weights are real tensors inside a trace of symbolic ones: they become attributes, then piece inputs.
        traced = make_fx(positional, tracing_mode="symbolic", _allow_non_fake_inputs=True)(
            *(examples[name] for name in names)
        )
    refuse_fixed_rows(traced, [examples[name] for name in names], num_rows)
    return traced, outputs[-1]


def split_at_breaks(fn: StepFn, inputs: Inputs, compile_piece: CompilePiece) -> SplitProgram:
    """Trace `fn` with symbolic rows, cut before and after every break, compile what lies between."""
    scope = TraceScope()
    traced, output = trace(fn, inputs, scope)
    code = traced.code
    compute_sizes_where_used(traced)
    part_of = number_parts(traced, scope.ops)
    # split_module is given the parts in graph order and must keep it: in-place ops have no data edge to their readers.
    module = split_module(traced, traced, part_of.__getitem__, keep_original_order=True)
    pieces: dict[str, tuple[Piece, tuple[int, ...]]] = {}
    breaks: dict[str, BreakSite] = {}
    for node in module.graph.nodes:
        if node.op == "call_module":
            part = module.get_submodule(node.target)
            assert isinstance(part, GraphModule)
            site = break_site(part, scope.ops)
            if site is not None:
                breaks[node.target] = site
            else:
                fakes = [p.meta.get("val") for p in part.graph.nodes if p.op == "placeholder"]
                pieces[node.target] = (compile_piece(part, fakes), mutated_inputs(part))
    template = map_tensors(lambda _: torch.empty(0), output)
    return SplitProgram(
        module=module, input_names=tuple(inputs), pieces=pieces, breaks=breaks, template=template, code=code
    )


def with_prime_rows(inputs: Inputs) -> tuple[Inputs, int]:
    """The inputs cut to a prime number of rows, and that number. Rows are the size most of them share, or the first.

    Symbolic tracing treats two equal sizes as one: 16 rows of a model that is 16 wide would become 16 rows for ever.
    No layer is a prime wide. Sixteen rows become thirteen; two, the fewest that stay symbolic, remain two.
    """
    sizes = Counter(size for tensor in inputs.values() for size in tensor.shape)
    num_rows = sizes.most_common(1)[0][0]
    prime = next(
        n for n in range(num_rows, 0, -1) if n <= FEWEST_SYMBOLIC or all(n % d for d in range(2, int(n**0.5) + 1))
    )
    cut: dict[str, torch.Tensor] = {}
    for name, tensor in inputs.items():
        at = tuple(tensor.shape).index(num_rows) if num_rows in tensor.shape else None
        cut[name] = tensor if at is None else tensor.narrow(at, 0, prime)
    return cut, prime


def refuse_fixed_rows(traced: GraphModule, examples: Sequence[torch.Tensor], num_rows: int) -> None:
    """`CaptureError` if the callable made a number of its row count: the pieces would compute that many for ever."""
    if num_rows < FEWEST_SYMBOLIC:
        return
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, example in zip(placeholders, examples, strict=True):
        for axis, size in enumerate(example.shape):
            kept = node.meta["val"].shape[axis]
            if size == num_rows and (isinstance(kept, int) or kept.node.expr.is_number):
                raise CaptureError(
                    "a row count",
                    f"axis {axis} of input {node.name}",
                    f"it became the number {num_rows}, by len(tensor) or int(size)",
                    "Use tensor.shape[0] as it is.",
                )


def compute_sizes_where_used(traced: GraphModule) -> None:
    """Give every op its own copy of the size arithmetic it uses.

    A size that is computed in one piece and used in another would cross the break as a bare symbol, which the compiler
    of the other piece knows nothing about. Computed beside its use, it comes from a tensor the piece has.
    """
    graph = traced.graph
    sizes = [node for node in graph.nodes if isinstance(node.meta.get("val"), torch.SymInt)]

    def copy_before(node: Node, user: Node) -> Node:
        if node not in sizes:
            return node
        with graph.inserting_before(user):
            args = tuple(copy_before(arg, user) if isinstance(arg, Node) else arg for arg in node.args)
            return graph.create_node(node.op, node.target, args, node.kwargs, type_expr=node.type)

    for node in sizes:
        for user in [user for user in node.users if user not in sizes]:
            user.replace_input_with(node, copy_before(node, user))
    for node in reversed(sizes):
        graph.erase_node(node)
    traced.recompile()


def number_parts(traced: GraphModule, ops: Mapping[Any, BreakOp]) -> dict[Node, int]:
    """Every node's part: pieces even, breaks odd, in graph order."""
    part_of, part = {}, 0
    for node in traced.graph.nodes:
        is_break = node.op == "call_function" and node.target in ops
        part_of[node] = part + is_break
        part += 2 * is_break
    return part_of


def break_site(part: GraphModule, ops: Mapping[Any, BreakOp]) -> BreakSite | None:
    """What a part that is one break calls, or None for a piece."""
    placeholders = [node for node in part.graph.nodes if node.op == "placeholder"]
    for node in part.graph.nodes:
        if node.op == "call_function" and node.target in ops:
            inputs, site = node.args
            return BreakSite(op=ops[node.target], site=site, order=tuple(placeholders.index(i) for i in inputs))
    return None


def mutated_inputs(part: GraphModule) -> tuple[int, ...]:
    """Positions of the piece's inputs that its ops declare as written."""
    placeholders = [node for node in part.graph.nodes if node.op == "placeholder"]
    mutated: set[int] = set()
    for node in part.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and value in placeholders:
                mutated.add(placeholders.index(value))
    return tuple(sorted(mutated))


class PiecewiseCapture:
    """Traces and compiles a callable once, then captures it per bucket as segments between breaks."""

    mode = Mode.PIECEWISE

    def __init__(self, bridges: BridgePool, compile_piece: CompilePiece) -> None:
        self.bridges = bridges
        self._compile_piece = compile_piece
        self._breakable = BreakableCapture(bridges)
        self._programs: dict[StepFn, SplitProgram] = {}

    @property
    def keeps_bits(self) -> bool:
        """Whether the pieces round as the callable itself does: a compiler fuses ops, which then round differently."""
        return self._compile_piece is as_traced

    def prepare(self, fn: StepFn, inputs: Inputs) -> StepFn:
        """The split form of `fn`, made at the first size, which must have more than one row, and used for all."""
        if fn not in self._programs:
            self._programs[fn] = split_at_breaks(fn, inputs, self._compile_piece)
        return self._programs[fn]

    def difference(self, fn: StepFn, inputs: Inputs) -> str | None:
        """What differs first between a trace of `fn` made now and the one in use; None if they are the same."""
        in_use, now = (code.splitlines() for code in (self._programs[fn].code, trace(fn, inputs, TraceScope())[0].code))
        lines = zip_longest(now, in_use, fillvalue="the end")
        return next((f"{line.strip()!r}, not {old.strip()!r}" for line, old in lines if line != old), None)

    def capture(self, backend: Backend | EagerBackend, fn: StepFn, inputs: Inputs, live: Any) -> CapturedStep:
        return self._breakable.capture(backend, self.prepare(fn, inputs), inputs, live)
