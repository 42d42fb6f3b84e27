"""Requests that go on where another run of them stopped: its tokens are the beginning of the answer. No torch.

    last = ... the last output that was seen of a request, here or on another machine
    engine.submit(name, checked, RequestOptions(resume_from=tuple(last.outputs)))

The next tokens are those that the earlier run would have given. The next draw has the number that it would have had;
penalties, stop strings and the grammar take the tokens so far into account; lengths count from the end of the prompt.
"""

from __future__ import annotations

from playhead.engine.response import ResponseBuilder
from playhead.errors import PlayheadError, RequestError, shown
from playhead.outputs import CompletionOutput, Logprob
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import MAX_PREEMPTIONS
from playhead.types import TokenReport

WHERE = "resume_from"


def take_up(response: ResponseBuilder, outputs: tuple[CompletionOutput, ...], vocab_size: int) -> None:
    """Give a response that has not begun the tokens and the logprobs of an earlier run, or `RequestError`.

    `outputs` is empty for a request that begins with its prompt.
    """
    if not outputs:
        return
    (so_far,) = outputs
    check(so_far, response.request.params, vocab_size)
    request, tables = response.request, so_far.logprobs or ()
    for i, token in enumerate(so_far.token_ids):
        request.output.append(token)
        response.take(token, reports_of(tables[i]) if tables else ())
        if response.ended_by is not None:
            found = f"{len(so_far.token_ids)} tokens, of which token {i + 1} ends the request"
            raise RequestError(WHERE, found, "an output that has not ended", "Take it as it is: nothing follows.")
    request.num_sampled = len(request.output)
    if request.output:
        # Its client waits in the middle of an answer, so it goes before requests that have not begun.
        request.num_preemptions = MAX_PREEMPTIONS
    if request.matcher is not None:
        try:
            request.matcher.follow(request.output)
        except PlayheadError as error:
            wanted = "the beginning of an answer to this request"
            raise RequestError(WHERE, str(error), wanted, "Resume it with the parameters it had.") from error


def check(so_far: CompletionOutput, asked: SamplingParams, vocab_size: int) -> None:
    """`RequestError` for an output that no run of this request can have given."""
    outside = next((token for token in so_far.token_ids if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise RequestError(WHERE, f"token id {shown(outside)}", f"ids in [0, {vocab_size})", "Check the model.")
    if so_far.finish_reason is not None:
        raise RequestError(WHERE, "an output that has ended", "one that has not", "Resume the others.")
    if asked.logprobs is not None and len(so_far.logprobs or ()) != len(so_far.token_ids):
        found = f"{len(so_far.logprobs or ())} tables of logprobs for {len(so_far.token_ids)} tokens"
        raise RequestError(WHERE, found, "a table for each", "Give the whole output, or ask for no logprobs.")
    if so_far.token_ids and asked.seed is None and not asked.is_greedy:
        wanted = "the seed of the run that gave these tokens"
        raise RequestError(WHERE, "drawn tokens and no seed", wanted, "Send requests with a seed of their own.")


def reports_of(table: dict[int, Logprob]) -> list[TokenReport]:
    """A table of logprobs as a sampler reports it. A table that another process keeps is empty here."""
    return [TokenReport(token, one.logprob, one.rank or 0) for token, one in table.items()]
