"""A request's outputs as its consumer asked for them: everything so far, what is new, or the last one. No torch."""

from __future__ import annotations

from dataclasses import replace

from playhead.outputs import CompletionOutput, RequestOutput
from playhead.sampling_params import RequestOutputKind


class OutputView:
    """Makes what a consumer sees of the cumulative outputs of one request. Outputs may be left out in between."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self._kind = kind
        self._seen: dict[int, CompletionOutput] = {}

    def of(self, output: RequestOutput) -> RequestOutput | None:
        """What the consumer gets, or None if it waits for the last output."""
        if self._kind is RequestOutputKind.CUMULATIVE:
            return output
        if self._kind is RequestOutputKind.FINAL_ONLY:
            return output if output.finished else None
        news = [since(self._seen.get(one.index), one) for one in output.outputs]
        self._seen = {one.index: one for one in output.outputs}
        return replace(output, outputs=news)


def since(before: CompletionOutput | None, now: CompletionOutput) -> CompletionOutput:
    """What a sample has that it did not have before. Shown text never shrinks, so the rest of it is what is new."""
    if before is None:
        return now
    num_tokens = len(before.token_ids)
    return replace(
        now,
        text=now.text[len(before.text) :],
        token_ids=now.token_ids[num_tokens:],
        logprobs=None if now.logprobs is None else now.logprobs[num_tokens:],
    )
