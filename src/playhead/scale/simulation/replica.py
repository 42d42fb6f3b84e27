"""One engine on virtual time: the scheduler's arithmetic over counts instead of tokens. No torch.

Like `schedule/scheduler.py`: a step takes a token of each request that decodes, then chunks of prompts while it has
room (`prompt_room`), the prompt under way first, then waiting requests in their order while rows and memory allow. A
request that finds no memory takes it from the last one in order, which is computed again later.

While nothing but decoding happens, a step's time is affine in the number of steps so far: each row is a token longer.
So the time of any number of steps is a sum in closed form, and the replica jumps to the next step at which a row ends,
a window fills, memory is short or somebody arrives. Bytes and steps are integers: they come out as they would one step
at a time. Seconds differ by rounding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from playhead.errors import ConfigError
from playhead.scale.simulation.prefixes import SimPrefixCache
from playhead.scale.simulation.request import ReplicaSpec, SimRequest
from playhead.schedule.step_plan import prompt_room

NEVER = math.inf
MOST_LOOKED_AT = 8  # waiting requests; behind a longer line an end is looked for at every step


class SimReplica:
    """The state of one engine at `now_s`, the end of its last step."""

    __slots__ = (
        "_decoding",
        "_growth_bytes",
        "_joining",
        "_live_bytes",
        "_on_end",
        "_own_bytes",
        "_planned_s",
        "_prompt",
        "_rows",
        "_saturations",
        "_spec",
        "_waiting",
        "busy_s",
        "cache",
        "max_held_bytes",
        "now_s",
        "num_prompt_tokens",
        "num_steps",
    )

    def __init__(self, spec: ReplicaSpec, on_end: Callable[[SimRequest], None]) -> None:
        self._spec, self._on_end = spec, on_end
        self.cache = SimPrefixCache(spec.kv_bytes)
        self.now_s = self.busy_s = self._planned_s = 0.0
        self.num_steps = self.num_prompt_tokens = self.max_held_bytes = 0
        self._waiting: deque[SimRequest] = deque()
        self._prompt: SimRequest | None = None
        """The request whose prompt is under way: there is never more than one."""
        self._joining: list[SimRequest] = []
        """Requests whose prompts the step that is put together will finish."""
        self._decoding: dict[int, SimRequest] = {}
        self._rows: list[tuple[int, int, SimRequest]] = []  # heap of (last step, index, request)
        self._saturations: list[tuple[int, int, int, int]] = []  # heap of (step at which a window is full, index of the
        # request, the step at which it joined, bytes that its steps add until then)
        self._live_bytes = self._growth_bytes = 0  # keys and values of the rows that decode, and what a step adds
        self._own_bytes = 0  # what running requests hold beside what they share through the cache

    # What others see.

    @property
    def num_requests(self) -> int:
        """Requests that run or wait."""
        return len(self._waiting) + self.num_running

    @property
    def num_running(self) -> int:
        return len(self._decoding) + len(self._joining) + (self._prompt is not None)

    @property
    def held_bytes(self) -> int:
        """Memory in use, cached prefixes included; the empty part of each request's last pages counts as used."""
        return self._own_bytes + self.cache.num_bytes

    def submit(self, request: SimRequest) -> None:
        """A request arrives. The replica has been advanced to this moment."""
        spec, tokens = self._spec, request.prompt_tokens + request.output_tokens
        if tokens > spec.max_context_tokens:
            raise ConfigError(
                f"request {request.index}: {request.prompt_tokens} + {request.output_tokens} tokens are more than the "
                f"{spec.max_context_tokens} of a replica. Raise max_context_tokens, or ask for less."
            )
        needed = spec.live_bytes[tokens] + spec.page_bytes + len(request.path) * spec.window_bytes
        if needed > spec.kv_bytes:
            raise ConfigError(
                f"request {request.index}: {request.prompt_tokens} + {request.output_tokens} tokens need {needed} "
                f"bytes of KV; a replica has {spec.kv_bytes}. Give it more, or ask for less."
            )
        if not self.num_requests:
            self.now_s = self._planned_s = max(self.now_s, request.arrival_s)
        self._waiting.append(request)

    def advance(self, until_s: float) -> None:
        """Run every step that begins before this moment."""
        while self.now_s < until_s:
            if self._prompt is not None or (self._waiting and self._can_admit()):
                self._prompt_step()
            elif self._decoding:
                self._decode_steps(until_s)
            elif self._waiting:
                self._planned_s = self.now_s  # nothing runs any more, so the next step is planned now
            else:
                return

    def next_end_s(self) -> float:
        """No request ends before this moment; where nobody waits and no window fills, one ends at it. NEVER if idle.

        Whatever else the steps until then do makes them longer: prompts, and a request that gives its memory up and
        is computed anew.
        """
        num_steps = self._rows[0][0] - self.num_steps if self._rows else 0
        growth = self._growth_bytes
        if self._saturations and self._saturations[0][0] - self.num_steps < num_steps:
            growth = 0  # windows that fill make later steps shorter than the rule that holds now
        if self._prompt is not None or self._waiting:
            if len(self._waiting) > MOST_LOOKED_AT:
                shortest = 1
            else:
                ahead = self._waiting if self._prompt is None else (*self._waiting, self._prompt)
                shortest = min(one.output_tokens - one.num_generated for one in ahead)
            num_steps = min(num_steps or shortest, shortest)
        elif not num_steps:
            return NEVER
        spec = self._spec
        first = spec.fixed_s[len(self._decoding)] + spec.kv_s * self._live_bytes
        return self.now_s + (num_steps * first + spec.kv_s * growth * (num_steps * (num_steps + 1) // 2))

    # Steps.

    def _can_admit(self) -> bool:
        """Whether the next step takes up the first of the waiting requests."""
        request, spec = self._waiting[0], self._spec
        if request.arrival_s > self._planned_s or self.num_running >= spec.max_running:
            return False
        tokens = min(request.num_to_compute, self._room())
        needed = spec.live_bytes[tokens] + spec.page_bytes + self._growth_bytes
        return needed + spec.window_bytes * len(request.path) <= self._free_bytes

    def _is_next_unknown(self) -> bool:
        """Whether somebody waits who may be taken up in the step after the next."""
        if not self._waiting or self.num_running >= self._spec.max_running:
            return False
        return not self._decoding or self._waiting[0].arrival_s > self._planned_s or self._can_admit()

    def _prompt_step(self) -> None:
        """One step with chunks of prompts beside the rows that decode."""
        if self._decoding and not self._make_room(self._growth_bytes):
            return  # somebody had to go: the step is planned anew
        room, flops, num_tokens = self._room(), 0, 0
        while room > 0:
            is_new = self._prompt is None
            request = self._next_prompt()
            if request is None:
                break
            first = request.num_computed
            end = min(request.num_to_compute, first + room)
            if not self._take_places(request, end, is_new=is_new):
                break
            flops += self._spec.flops[end] - self._spec.flops[first]
            num_tokens += end - first
            # A prompt's last token, alone, goes with the rows that decode and takes nothing of a chunk's room.
            room -= end - first if is_new or end - first > 1 else 0
            if end < request.num_to_compute:
                break
            flops += self._spec.cost.shape.head_flops
            self._joining.append(request)
            self._prompt = None
        if num_tokens or (self._decoding and self._prompt is None):
            self.num_prompt_tokens += num_tokens
            seconds = self._seconds_of(1) + self._spec.prompt_s(num_tokens, len(self._decoding), flops)
            self._take_steps(1, seconds, seconds)
        joining, self._joining = self._joining, []
        for request in joining:
            self._begin_decoding(request)

    def _room(self) -> int:
        """Tokens that the next step has for prompts. A prompt's last one, alone, is among those that decode."""
        prompt = self._prompt
        is_last_token = prompt is not None and prompt.num_to_compute - prompt.num_computed == 1
        return prompt_room(self._spec.chunk_tokens, len(self._decoding) + is_last_token)

    def _next_prompt(self) -> SimRequest | None:
        """The prompt under way, or the first waiting request if it can start."""
        if self._prompt is None and self._waiting and self._can_admit():
            self._prompt = self._admit()
        return self._prompt

    def _take_places(self, request: SimRequest, end: int, *, is_new: bool) -> bool:
        """Memory for a prompt up to `end`; False if there is none, and the prompt or another request had to go back."""
        num_bytes = self._spec.live_bytes[end] - self._spec.live_bytes[request.num_computed]
        needed = self._growth_bytes + num_bytes
        if is_new and needed > self._free_bytes and self.num_running > 1:
            self._put_back(request)  # the prefix that it would hold leaves no room for the rest of it
            return False
        if not self._make_room(needed):
            return False
        self._own_bytes += num_bytes
        request.num_computed = end
        return True

    def _decode_steps(self, until_s: float) -> None:
        """As many steps as begin before `until_s` while nothing changes but lengths; at least one."""
        if not self._make_room(self._growth_bytes):
            return
        num_steps = 1
        if self._spec.jumps and not self._is_next_unknown():
            num_steps = self._steps_to_event()
            if num_steps > 1 and self.now_s + self._seconds_of(num_steps) > until_s:
                num_steps = min(num_steps, self._steps_before(until_s))
        seconds = self._seconds_of(num_steps)
        last_s = seconds - self._seconds_of(num_steps - 1) if num_steps > 1 else seconds
        self._take_steps(num_steps, seconds, last_s)

    def _take_steps(self, num_steps: int, seconds: float, last_s: float) -> None:
        """Every row is so many tokens longer, and these seconds have gone by, `last_s` of them in the last step."""
        self.now_s += seconds
        self.busy_s += seconds
        self._planned_s = self.now_s - last_s if self._spec.has_overlap else self.now_s
        self.num_steps += num_steps
        self._live_bytes += num_steps * self._growth_bytes
        self._own_bytes += num_steps * self._growth_bytes
        self._fit_cache()
        while self._saturations and self._saturations[0][0] <= self.num_steps:
            _, index, joined_step, num_bytes = heappop(self._saturations)
            if index in self._decoding and self._decoding[index].joined_step == joined_step:
                self._growth_bytes -= num_bytes  # otherwise the request left before its window was full
        while self._rows and self._rows[0][0] <= self.num_steps:
            self._end(heappop(self._rows)[2])

    def _seconds_of(self, num_steps: int) -> float:
        """The next so many decode steps: in each, a row reads a token more."""
        spec = self._spec
        first = spec.fixed_s[len(self._decoding)] + spec.kv_s * self._live_bytes
        return num_steps * first + spec.kv_s * self._growth_bytes * (num_steps * (num_steps + 1) // 2)

    def _steps_to_event(self) -> int:
        """Steps until a row ends, a window is full, or memory is."""
        nearest = self._rows[0][0]
        if self._saturations:
            nearest = min(nearest, self._saturations[0][0])
        num_steps = nearest - self.num_steps
        if self._growth_bytes:
            num_steps = min(num_steps, self._free_bytes // self._growth_bytes)
        return max(1, num_steps)

    def _steps_before(self, until_s: float) -> int:
        """The fewest steps that reach `until_s`: all of them begin before it."""
        spec, left_s = self._spec, until_s - self.now_s
        rising = spec.kv_s * self._growth_bytes
        half = spec.fixed_s[len(self._decoding)] + spec.kv_s * self._live_bytes + rising / 2
        if left_s > 1e9 * half:
            return 1 << 60  # the end of all requests comes first
        # m half + rising m m / 2 = left, solved in the form that has no difference of nearly equal numbers.
        num_steps = max(1, math.ceil(2 * left_s / (half + math.sqrt(half * half + 2 * rising * left_s))))
        while num_steps > 1 and self._seconds_of(num_steps - 1) >= left_s:
            num_steps -= 1
        while self._seconds_of(num_steps) < left_s:
            num_steps += 1
        return num_steps

    # Memory.

    @property
    def _free_bytes(self) -> int:
        """What running requests can take; prefixes that nobody uses make way."""
        return self._spec.kv_bytes - self._own_bytes - self.cache.num_pinned_bytes

    def _make_room(self, num_bytes: int) -> bool:
        """Whether a step can take so much; if not, the last request in order has just given its memory up."""
        if num_bytes <= self._free_bytes or self.num_running == 1:
            return True
        running = [*self._decoding.values(), *([] if self._prompt is None else [self._prompt])]
        self._preempt(max(running, key=lambda one: (one.arrival_s, one.index)))
        return False

    def _fit_cache(self) -> None:
        """Cached prefixes make way for what running requests hold."""
        held = self._own_bytes + self.cache.num_bytes
        if held > self._spec.kv_bytes:
            self.cache.shrink_to(self._spec.kv_bytes - self._own_bytes)
            held = self.held_bytes
        if held > self.max_held_bytes:
            self.max_held_bytes = held

    # The life of a request.

    def _admit(self) -> SimRequest:
        """Take up the first waiting request behind the longest prefix that is cached."""
        request, spec = self._waiting.popleft(), self._spec
        num_known = self.cache.num_hit(request.path) if spec.has_prefix_cache else 0
        most = (request.num_to_compute - 1) // spec.page_size * spec.page_size  # a token at least is left to compute
        while num_known and request.ends[num_known - 1] > most:
            num_known -= 1
        request.num_pinned = num_known
        request.num_computed = num_cached = request.shared_tokens
        if request.num_cached < 0:
            request.num_cached = num_cached
        if num_known:
            self.cache.pin(request.path[:num_known])
        self._own_bytes += spec.live_bytes[num_cached] - num_cached * spec.full_bytes + spec.page_bytes
        self._own_bytes += self._kept_bytes(request)
        return request

    def _kept_bytes(self, request: SimRequest) -> int:
        """What the cache will keep of a prompt beside what the request holds: the windows before its parts' ends."""
        is_shared = self._spec.has_prefix_cache
        return self._spec.window_bytes * (len(request.path) - request.num_pinned) if is_shared else 0

    def _put_back(self, request: SimRequest) -> None:
        """Undo `_admit`."""
        self._prompt = None
        self._leave(request)
        request.num_pinned = request.num_computed = 0
        self._waiting.appendleft(request)

    def _begin_decoding(self, request: SimRequest) -> None:
        """The prompt is computed, and the step that ended has given the request a token."""
        spec = self._spec
        if request.first_s < 0:
            request.first_s = self.now_s
        if spec.has_prefix_cache and request.num_pinned < len(request.path):
            self._share_prompt(request)
        request.joined_step, context = self.num_steps, request.num_computed
        self._decoding[request.index] = request
        self._live_bytes += spec.live_bytes[context]
        for group in spec.cost.shape.attention:
            if group.window is None or context < group.window:
                self._growth_bytes += group.kv_bytes_per_token
            if group.window is not None and context < group.window:
                full_at = self.num_steps + group.window - context
                heappush(self._saturations, (full_at, request.index, self.num_steps, group.kv_bytes_per_token))
        last_step = self.num_steps + request.output_tokens - request.num_generated - 1
        if last_step == self.num_steps:
            self._end(request)
        else:
            heappush(self._rows, (last_step, request.index, request))

    def _share_prompt(self, request: SimRequest) -> None:
        """Give the cache the parts of the prompt that it has not; the request uses them through the cache then."""
        spec, first = self._spec, request.shared_tokens
        self._own_bytes -= self._kept_bytes(request)
        new, last = request.path[request.num_pinned :], request.prompt_tokens + request.output_tokens - 1
        for part, end in zip(new, request.ends[request.num_pinned :], strict=True):
            # A later request can only continue at this part's end if the windows before it are kept too.
            self.cache.add(part, spec.part_bytes(first, end), is_whole=spec.keeps_windows(end, last))
            self._own_bytes -= (end - first) * spec.full_bytes
            first = end
        self.cache.pin(new)
        request.num_pinned = len(request.path)
        self._fit_cache()

    def _context(self, request: SimRequest) -> int:
        """Tokens of a decoding request whose keys and values are there."""
        return request.num_computed + self.num_steps - request.joined_step

    def _leave(self, request: SimRequest) -> int:
        """Take a request out of the rows; gives the bytes that were its own, without the empty part of its pages."""
        spec, context = self._spec, request.num_computed
        if self._decoding.pop(request.index, None) is not None:
            context = self._context(request)
            self._live_bytes -= spec.live_bytes[context]
            for group in spec.cost.shape.attention:
                if group.window is None or context < group.window:
                    self._growth_bytes -= group.kv_bytes_per_token
        own = spec.live_bytes[context] - request.shared_tokens * spec.full_bytes
        self._own_bytes -= own + spec.page_bytes + self._kept_bytes(request)
        if request.num_pinned:
            self.cache.unpin(request.path[: request.num_pinned])
        return own

    def _end(self, request: SimRequest) -> None:
        """The last token came. What the request leaves stays cached until memory is short."""
        own = self._leave(request)
        if self._spec.has_prefix_cache:
            if request.leaf is None:
                self.cache.add_tail(own)
            else:
                self.cache.add(request.leaf, own, is_whole=True)
            self._fit_cache()
        request.end_s = self.now_s
        self._on_end(request)

    def _preempt(self, victim: SimRequest) -> None:
        """Take a running request's memory; it waits before all others, and is computed anew with its answer so far."""
        if victim is self._prompt:
            self._prompt = None
        else:
            victim.num_generated += 1 + self.num_steps - victim.joined_step
            self._rows = [row for row in self._rows if row[2] is not victim]
            heapify(self._rows)
        self._leave(victim)
        victim.num_pinned, victim.num_preemptions = 0, victim.num_preemptions + 1
        self._waiting.appendleft(victim)
