"""What a captured graph may read from the step: the declaration of one input.

A graph reads addresses. `GraphSlot` says which address, how many of its rows a step writes, and what stands in the
rows it does not write. Nothing here allocates or copies: see `registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import torch

from playhead.errors import SlotError

Axis = Literal["bs", "tokens", "none"]
AXES: tuple[Axis, ...] = ("bs", "tokens", "none")

# A step's values by name. Host-sourced slots take numpy arrays or sequences, device-sourced ones tensors.
Batch = Mapping[str, Any]


class PaddingPolicy(Enum):
    """What the rows between the raw size and the padded size hold when a graph replays."""

    KEEP_PAD = "keep_pad"
    """Whatever stood there before. Needs a `tail_unread` claim, except on axis `none`, which has no tail."""
    FILL_SENTINEL = "fill_sentinel"
    """`pad_value`, written at every fill."""
    ZERO = "zero"
    """Zero, written at every fill."""
    FOREACH_COPY = "foreach_copy"
    """Whatever stood there before; the live rows arrive by the grouped copy. Needs a `tail_unread` claim."""
    FILL_ONCE = "fill_once"
    """`pad_value`, written at registration and again only where a larger fill left values behind.

    Only for slots that nothing but fills writes: if a graph or a hook changed the padding, it would stay changed."""


LEAVES_TAIL = frozenset({PaddingPolicy.KEEP_PAD, PaddingPolicy.FOREACH_COPY})


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpace:
    """What the numbers of an index slot point into, with the one dtype they have everywhere.

    `sink` is the place padded rows point at: it exists, no request owns it, and no live row reads it.
    """

    name: str
    dtype: torch.dtype
    sink: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FillContext:
    """How large a step is, and how large the graph it runs in was captured."""

    raw_bs: int
    padded_bs: int
    raw_num_tokens: int
    padded_num_tokens: int
    pp_proxy_tensors: Mapping[str, torch.Tensor] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.raw_bs <= self.padded_bs:
            raise too_small("bs", self.raw_bs, self.padded_bs)
        if not 0 <= self.raw_num_tokens <= self.padded_num_tokens:
            raise too_small("tokens", self.raw_num_tokens, self.padded_num_tokens)

    def raw(self, axis: Axis) -> int:
        return self.raw_bs if axis == "bs" else self.raw_num_tokens

    def padded(self, axis: Axis) -> int:
        return self.padded_bs if axis == "bs" else self.padded_num_tokens


def too_small(axis: Axis, raw: int, padded: int) -> SlotError:
    """The error for a step that does not fit its graph."""
    return SlotError(f"axis {axis}", f"raw {raw}, padded {padded}", "0 <= raw <= padded", "Choose a larger bucket.")


ShapeFn = Callable[[int, int], tuple[int, ...]]
SliceFn = Callable[[Any, int, int], Any]
SourceFn = Callable[[Batch, FillContext], Any]
PostFill = Callable[[torch.Tensor, Batch, FillContext], None]


def leading_rows(buffer: Any, start: int, stop: int) -> Any:
    """Rows `start..stop` of a tensor or array whose first dimension is the axis."""
    return buffer[start:stop]


class SlotViews(dict[str, torch.Tensor]):
    """Views by slot name. Reading a name that is not there asks `explain`, which raises with the reason."""

    def __init__(self, views: Mapping[str, torch.Tensor], explain: Callable[[str], Any]) -> None:
        super().__init__(views)
        self._explain = explain

    def __missing__(self, name: str) -> torch.Tensor:
        self._explain(name)
        raise KeyError(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSlot:
    """One input of captured graphs: a fixed address with one row per request or token.

    `padding_policy` has no default: the author of a slot must know what the kernels do with an empty row. A slot has
    one writer: the batch value of its name, `source_fn`, `proxy`, `post_fill` (with `copy_from_fb=False`), or the graph
    itself.

    With `axis="bs"`, room for 8 rows, ZERO, and a fill of 3 rows into a graph of 4:

        buffer   [a b c 0 . . . .]      slice_for(4, 4) is the first four
    """

    name: str
    shape_fn: ShapeFn
    dtype: torch.dtype
    axis: Axis
    padding_policy: PaddingPolicy
    pad_value: float = 0
    device: torch.device | None = None
    staged: bool = False
    """The values come from the host and travel in the registry's one packed copy."""
    index: IndexSpace | None = None
    tail_unread: str | None = None
    """Why no kernel reads the rows that a tail-leaving policy does not write. The audit poisons them to prove it."""
    graph_writes: str | None = None
    """Why captured work may write this slot. Without it a write is a finding of the audit."""
    slice_fn: SliceFn | None = None
    source_fn: SourceFn | None = None
    proxy: str | None = None
    """Name among the step's pipeline tensors (`FillContext.pp_proxy_tensors`) whose rows this slot takes."""
    reads: tuple[str, ...] = ()
    """Names of the batch that `source_fn` or `post_fill` takes, if it takes any."""
    copy_from_fb: bool = True
    post_fill: PostFill | None = None
    enabled: bool = True
    """False: declared, but this model does without it. It has no memory, no source, and reading it is an error."""
    buffer: torch.Tensor | None = None
    """The slot's memory. Given at declaration, the registry adopts it as if bound; else the registry sets it."""

    def __post_init__(self) -> None:
        for found, wanted, fix in self._broken_rules():
            raise SlotError(self.name, found, wanted, fix)

    @property
    def takes(self) -> tuple[str, ...]:
        """Names this slot needs in a batch."""
        own = (self.name,) if self.copy_from_fb and self.source_fn is None and self.proxy is None else ()
        return own + self.reads

    @property
    def leaves_tail(self) -> bool:
        """True if a fill does not write the rows after the raw size."""
        return self.axis != "none" and self.padding_policy in LEAVES_TAIL

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """The view of rows `start..stop`, along this slot's axis."""
        if self.buffer is None:
            raise SlotError(self.name, "no buffer yet", "a frozen registry", "Call registry.freeze() first.")
        if self.axis == "none":
            return self.buffer
        view: torch.Tensor = (self.slice_fn or leading_rows)(self.buffer, start, stop)
        return view

    def slice_for(self, bs: int, num_tokens: int) -> torch.Tensor:
        """The view a graph captured at this size reads, and a fill of this size writes. Always from row 0."""
        return self.rows(0, bs if self.axis == "bs" else num_tokens)

    def _broken_rules(self) -> Iterator[tuple[str, str, str]]:
        """What is wrong with the declaration: found, wanted, what to do. The first one is raised."""
        policy = self.padding_policy
        if self.axis not in AXES:
            yield f"axis {self.axis!r}", f"one of {AXES}", "Name the dimension that grows."
        if policy not in tuple(PaddingPolicy):  # a string from a config file, or None
            names = ", ".join(p.name for p in PaddingPolicy)
            yield f"padding_policy {policy!r}", names, "Say what an empty row must hold."
        if self.axis == "none" and policy is not PaddingPolicy.KEEP_PAD:
            yield f"axis 'none' with {policy.name}", "KEEP_PAD", "It has no rows to pad."
        if self.leaves_tail and not self.tail_unread:
            wanted = "tail_unread='why nobody reads the tail'"
            yield f"{policy.name} without a claim", wanted, "Or use ZERO, FILL_SENTINEL or FILL_ONCE."
        if self.tail_unread and not self.leaves_tail:
            yield f"tail_unread with {policy.name}", "no claim", "This tail is written."
        if policy is PaddingPolicy.ZERO and self.pad_value != 0:
            yield f"ZERO with pad_value {self.pad_value}", "0", "Use FILL_SENTINEL."
        if not fits(self.pad_value, self.dtype):
            wanted = f"an integer that fits {self.dtype}"
            yield f"pad_value {self.pad_value}", wanted, "A value that wraps points somewhere else."
        if policy is PaddingPolicy.FILL_ONCE and (self.graph_writes or self.post_fill):
            fix = "A graph or hook that writes the padding would leave it changed. Use ZERO or FILL_SENTINEL."
            yield "FILL_ONCE with graph_writes or post_fill", "a slot that only fills write", fix
        yield from self._broken_rules_of_writers()
        if self.index is not None:
            yield from self._broken_rules_of_indices(self.index)

    def _broken_rules_of_writers(self) -> Iterator[tuple[str, str, str]]:
        if self.source_fn is not None and not self.copy_from_fb:
            yield "source_fn with copy_from_fb=False", "one writer", "Drop the source or copy from it."
        if self.proxy is not None and (self.source_fn is not None or self.staged or not self.copy_from_fb):
            found, fix = (
                "proxy with source_fn, staged or copy_from_fb=False",
                "Pipeline tensors are on a device already.",
            )
            yield found, "one source, on the device", fix
        if not self.copy_from_fb and self.post_fill is None and self.graph_writes is None:
            yield "copy_from_fb=False alone", "a writer", "Give post_fill or graph_writes, or copy."
        if self.staged and (self.device is not None or not self.copy_from_fb):
            fix = "Staged slots live on the registry's device and are written by the packed copy."
            yield "staged with its own device or without a copy", "a plain host-sourced slot", fix

    def _broken_rules_of_indices(self, index: IndexSpace) -> Iterator[tuple[str, str, str]]:
        if self.axis == "none":
            yield "axis 'none' with index", "axis 'bs' or 'tokens'", "Without an axis no row is known to be padding."
        if self.dtype is not index.dtype:
            found = f"{self.dtype} into space {index.name!r}"
            yield found, f"{index.dtype}", "One index space has one dtype everywhere."
        if self.leaves_tail or self.pad_value != index.sink:
            found = f"{self.padding_policy.name} with pad_value {self.pad_value}"
            wanted = f"a written tail of {index.sink}, the sink of {index.name!r}"
            yield found, wanted, "A padded row must not point at a request's memory."


def fits(value: float, dtype: torch.dtype) -> bool:
    """Whether a number keeps its value in this dtype: floats take any, integers those of their range."""
    if dtype.is_floating_point or dtype is torch.bool:
        return True
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max and int(value) == value


def host_vector(
    name: str,
    axis: Axis,
    dtype: torch.dtype,
    *,
    index: IndexSpace | None = None,
    pad_value: float = 0,
    fill_once: bool = False,
    graph_writes: str | None = None,
) -> GraphSlot:
    """One host value per request or token, padded with zero, a sentinel, or a sentinel written once."""
    policy = PaddingPolicy.ZERO if pad_value == 0 else PaddingPolicy.FILL_SENTINEL
    return GraphSlot(
        name=name,
        shape_fn=lambda bs, tokens: (bs if axis == "bs" else tokens,),
        dtype=dtype,
        axis=axis,
        padding_policy=PaddingPolicy.FILL_ONCE if fill_once else policy,
        pad_value=pad_value,
        index=index,
        staged=True,
        graph_writes=graph_writes,
    )
