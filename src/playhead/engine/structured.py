"""What an engine does for requests whose answers must have a form: a grammar when they come, a mask at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from playhead.engine.front import CheckedPrompt, PromptReader
from playhead.errors import NoTokenLeft, PlayheadError, RequestError, RequestFailed, caused
from playhead.grammar.matcher import BITS, Matcher, OtherRules, mask_of
from playhead.graph.late import LateRows
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk, Request
from playhead.schedule.step_plan import StepPlan
from playhead.step.masks import ALL_ALLOWED
from playhead.step.worker import Worker

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

MIN_AT_ONCE = 16  # masks for which waking other threads pays


def matcher_for(
    checked: CheckedPrompt, ending_ids: frozenset[int], reader: PromptReader, worker: Worker, *, forced_tokens: bool
) -> Matcher | None:
    """A new answer's place in its grammar, with room for masks on the device. None for a request without a form.

    A prompt that was checked in another process comes without its grammar, which is compiled here then.
    """
    form = checked.params.structured_outputs
    if form is None:
        return None
    grammar = checked.grammar or reader.grammars.compile(form)
    try:
        worker.prepare_masks()
    except torch.OutOfMemoryError:
        found = "no device memory for masks"
        raise RequestError("structured_outputs", found, "a request without it", "Lower kv_memory_bytes.") from None
    params = checked.params
    rules = OtherRules(
        allowed_ids=None if params.allowed_token_ids is None else tuple(params.allowed_token_ids),
        bad_words=checked.bad_words,
        ending_ids=ending_ids,
        min_tokens=params.min_tokens,
    )
    # Penalties and logprobs look at every token that was sampled; other rules may forbid one that must follow.
    can_force = params.kind is not SamplingKind.EVERYTHING and not rules.forbid_something
    return Matcher(grammar, rules, can_force=can_force and forced_tokens)


class MaskWriter:
    """Writes the masks of steps. Many are computed at once by threads of llguidance, without Python."""

    def __init__(self) -> None:
        self._threads: LLExecutor | None = None

    def write(
        self, planned: StepPlan, masks: LateRows, force: Callable[[Chunk, Sequence[int]], bool]
    ) -> list[tuple[Request, PlayheadError]]:
        """Write the masks of a step whose requests' outputs have all been read; gives the requests that cannot go on.

        A request that has ended gets a mask that allows everything: its token is dropped. Where several tokens must
        follow, `force` is told, and the mask allows the first of them alone.
        """
        found: list[tuple[int, Request, Matcher]] = []
        failed: list[tuple[Request, PlayheadError]] = []
        for row in planned.formed:
            request = planned.requests[row]
            matcher = request.matcher
            if matcher is None or request.finish_reason is not None:
                masks.rows[row][:] = ALL_ALLOWED
                continue
            try:
                matcher.follow(request.output)
            except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
                failed.append((request, caused(RequestFailed(request.id), error)))
                masks.rows[row][:] = ALL_ALLOWED
            else:
                found.append((row, request, matcher))
        at_once = len(found) >= MIN_AT_ONCE
        if at_once:
            self._compute([(matcher.state, row) for row, _, matcher in found], masks)
        for row, request, matcher in found:
            mask_W = masks.rows[row]
            try:
                if not at_once:
                    matcher.write_mask(masks.address + row * masks.row_bytes, masks.row_bytes)
                num_words_left = matcher.restrict(request.output, mask_W)
                forced = matcher.forced(mask_W) if num_words_left == 1 else []
            except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
                failed.append((request, caused(RequestFailed(request.id), error)))
                mask_W[:] = ALL_ALLOWED
                continue
            if not num_words_left:
                failed.append((request, NoTokenLeft(request.id, len(request.output))))
                mask_W[:] = ALL_ALLOWED
            elif len(forced) > 1 and force(planned[row], forced):
                mask_W[:] = mask_of(forced[:1], BITS * len(mask_W))
        return failed

    def _compute(self, states: list[tuple[LLMatcher, int]], masks: LateRows) -> None:
        if self._threads is None:
            from llguidance import LLExecutor

            self._threads = LLExecutor()
        self._threads.unsafe_compute_mask_ptr(states, masks.address, masks.row_bytes, len(masks.values))
