"""What a stream shows of outputs that grow: all of them, what is new in each, or the last. No torch.

The engine always gives everything so far, and an unread output gives way to a newer one. What is new is found when an
output is shown, so no token is lost however slow its reader is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from playhead.outputs import CompletionOutput, RequestOutput
from playhead.sampling_params import RequestOutputKind


class OutputView:
    """One stream's outputs, as `SamplingParams.output_kind` says. `known` is what a resumed request had before."""

    def __init__(self, kind: RequestOutputKind, known: Sequence[CompletionOutput] = ()) -> None:
        self._kind = kind
        self._known = {completion.index: completion for completion in known}
        self._has_shown = False

    @property
    def shows_all(self) -> bool:
        """Whether there is something to show before the end."""
        return self._kind is not RequestOutputKind.FINAL_ONLY

    def of(self, output: RequestOutput) -> RequestOutput | None:
        """What the stream shows of an output. None if there is nothing to show yet."""
        if self._kind is RequestOutputKind.DELTA:
            return self._since_last(output)
        return output if self.shows_all or output.finished else None

    def _since_last(self, output: RequestOutput) -> RequestOutput:
        """What an output has that the last one had not. Logprobs of the prompt come with the first output alone."""
        known, self._known = self._known, {completion.index: completion for completion in output.outputs}
        news = [new_part(one, known[one.index]) if one.index in known else one for one in output.outputs]
        is_first, self._has_shown = not self._has_shown, True
        return replace(output, outputs=news, prompt_logprobs=output.prompt_logprobs if is_first else None)


def new_part(completion: CompletionOutput, last: CompletionOutput) -> CompletionOutput:
    """The text, the tokens and the logprobs after those of the last output."""
    num_known = len(last.token_ids)
    return replace(
        completion,
        text=completion.text[len(last.text) :],
        token_ids=completion.token_ids[num_known:],
        logprobs=None if completion.logprobs is None else completion.logprobs[num_known:],
    )
