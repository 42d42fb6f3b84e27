"""What simulated replicas are and what they are asked. No torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass, field

from playhead.graph.shapes import bucket_sizes, token_sizes
from playhead.kv.geometry import pages_outside_window, window_frontier
from playhead.kv.plan import NUM_SINK_SLABS, KVPlan
from playhead.scale.cost import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What every replica of a fleet is. With `has_overlap` a step is planned when the one before it begins.

    Steps run in captured sizes, so a step of 5 rows takes what one of 8 takes (`graph/shapes.py`). `jumps=False` takes
    every decode step by itself.
    """

    cost: CostModel
    max_running: int
    chunk_tokens: int
    kv_bytes: int
    max_context_tokens: int = 8192
    page_size: int = 16
    has_overlap: bool = True
    has_prefix_cache: bool = True
    jumps: bool = True
    fixed_s: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """Seconds of a decode step of n rows without its keys and values, by n."""
    token_sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    live_bytes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Keys and values of a context of n tokens, by n."""
    flops: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Of the first n tokens of a prompt, by n."""
    kv_s: float = field(init=False, repr=False, compare=False)
    full_bytes: int = field(init=False, repr=False, compare=False)
    window_bytes: int = field(init=False, repr=False, compare=False)
    """Of a token in all full layers, and of all windows when they are full."""
    page_bytes: int = field(init=False, repr=False, compare=False)
    """At most so much of a request's last pages is empty."""

    def __post_init__(self) -> None:
        sizes, shape = bucket_sizes(self.max_running), self.cost.shape
        groups = shape.attention
        padded = [0, *(sizes[bisect_left(sizes, n)] for n in range(1, self.max_running + 1))]
        derived = {
            "fixed_s": tuple(self.cost.fixed_s(n) for n in padded),
            "token_sizes": token_sizes(self.chunk_tokens, self.max_running),
            "live_bytes": tuple(map(shape.live_bytes, range(self.max_context_tokens + 1))),
            "flops": tuple(shape.prompt_flops(0, n) for n in range(self.max_context_tokens + 1)),
            "kv_s": self.cost.seconds_per_kv_byte,
            "full_bytes": sum(one.kv_bytes_per_token for one in groups if one.window is None),
            "window_bytes": sum(one.kv_bytes_per_token * one.window for one in groups if one.window is not None),
            "page_bytes": (self.page_size - 1) * sum(one.kv_bytes_per_token for one in groups),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # frozen, so not by `=`

    @classmethod
    def of_plan(
        cls, cost: CostModel, plan: KVPlan, *, max_context_tokens: int | None = None, num_parts: int = 1
    ) -> ReplicaSpec:
        """The replica that a memory plan describes: its arena less the sink and the chunks in flight.

        With `num_parts` the arena is that of so many devices, and the cost model's shape that of one of them.
        """
        limits = plan.limits
        in_flight = limits.num_steps_in_flight * limits.chunk_tokens
        chunk_bytes = in_flight * sum(group.bytes_per_token for group in plan.geometry.windows)
        return cls(
            cost=cost,
            max_running=limits.max_running,
            chunk_tokens=limits.chunk_tokens,
            max_context_tokens=max_context_tokens or limits.max_context_tokens,
            kv_bytes=((plan.num_slabs - NUM_SINK_SLABS) * plan.layout.slab_bytes - chunk_bytes) // num_parts,
            page_size=plan.geometry.page_size,
            has_overlap=limits.num_steps_in_flight > 1,
        )

    def part_bytes(self, first: int, end: int) -> int:
        """A cached part of prompts: its tokens in full layers, and the windows that a request behind it sees."""
        return self.live_bytes[end] - first * self.full_bytes

    def keeps_windows(self, end: int, last: int) -> bool:
        """Whether a request of `last` tokens still holds, at its end, the windows that a hit of `end` tokens needs."""
        windows = [group.window for group in self.cost.shape.attention if group.window is not None]
        size = self.page_size
        return all(window_frontier(last, one, size) <= pages_outside_window(end, one, size) for one in windows)

    def prompt_s(self, num_tokens: int, num_rows: int, flops: float) -> float:
        """What a chunk of prompts adds to a step of so many rows, in the captured size that holds both."""
        total = num_tokens + num_rows
        at = bisect_left(self.token_sizes, total)
        padding = self.token_sizes[at] - total if at < len(self.token_sizes) else 0
        return self.cost.prompt_s(num_tokens + padding, flops + padding * self.cost.shape.layer_flops)


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: it is the state of a request
class SimRequest:
    """One request. `path` are the parts of its prompt that others may share, `ends` the tokens up to each part's end.

    `leaf` names the whole of prompt and answer, if a later request may begin with it. Seconds are virtual, and below
    zero where something has not happened.
    """

    index: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    path: tuple[Hashable, ...] = ()
    ends: tuple[int, ...] = ()
    leaf: Hashable | None = None
    num_computed: int = 0
    """Tokens whose keys and values were there when its last prompt step ended."""
    num_generated: int = 0
    """Tokens that it had when it last waited."""
    num_cached: int = -1
    num_pinned: int = 0
    """Parts of the path that it uses through the cache."""
    joined_step: int = -1
    """The replica's count of steps when it last began to decode."""
    num_preemptions: int = 0
    first_s: float = -1.0
    end_s: float = -1.0

    @property
    def num_to_compute(self) -> int:
        """Tokens of the prompt, and of the answer so far after a preemption."""
        return self.prompt_tokens + self.num_generated

    @property
    def shared_tokens(self) -> int:
        return self.ends[self.num_pinned - 1] if self.num_pinned else 0
