"""What an engine does for requests whose answers must have a form: a grammar when they come, a mask at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from playhead.engine.front import CheckedPrompt, PromptReader
from playhead.errors import NoTokenLeft, PlayheadError, RequestError, RequestFailed, caused
from playhead.grammar.matcher import BITS, Matcher, OtherRules, mask_of
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk
from playhead.step.worker import Worker


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


def write_masks(
    planned: Sequence[Chunk], masks_NW: npt.NDArray[np.int32], force: Callable[[Chunk, Sequence[int]], bool]
) -> Iterator[tuple[Chunk, PlayheadError]]:
    """Write the masks of a step whose requests' outputs have all been read; gives the requests that cannot go on.

    A request that has ended, or that gets no token in this step, keeps a mask that allows everything: its token is
    dropped. Where several tokens must follow, `force` is told, and the mask allows the first of them alone.
    """
    for row, chunk in enumerate(planned):
        request = chunk.request
        if request.matcher is None or not chunk.samples or request.finish_reason is not None:
            continue
        try:
            if not request.matcher.write_mask(request.output, masks_NW[row]):
                yield chunk, NoTokenLeft(request.id, len(request.output))
                masks_NW[row] = -1
                continue
            forced = request.matcher.forced(masks_NW[row])
            if len(forced) > 1 and force(chunk, forced):
                masks_NW[row] = mask_of(forced[:1], BITS * masks_NW.shape[1])
        except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
            yield chunk, caused(RequestFailed(request.id), error)
            masks_NW[row] = -1
