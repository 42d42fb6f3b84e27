"""The engine: requests in, tokens out, one step at a time.

A step is: plan (integers), forward (captured), sample, commit. Everything here is on the host and in one thread; who
wants to wait for several requests at once calls `step` until they are done.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from playhead.errors import PlayheadError
from playhead.graph.shapes import Decision
from playhead.models.text.detokenize import IncrementalDetokenizer
from playhead.models.text.tokenizer import Tokenizer
from playhead.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from playhead.schedule.errors import RequestError
from playhead.schedule.request import FinishReason, Request
from playhead.schedule.sampling_params import SamplingParams, shown
from playhead.schedule.scheduler import PlannedChunk, ScheduleLimits, Scheduler
from playhead.step.sampling import SampledTokens, SamplerRow, build_inputs, sample, sampler_needs
from playhead.step.worker import Chunk, Worker
from playhead.timeline import StepRecord, Timeline

WAITING_PER_RUNNING = 4  # a longer queue only makes everybody in it too late


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPrompt:
    """A prompt that fits the model: its ids, its text if it came as text, and how many tokens may follow it."""

    text: str | None
    ids: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: text and logprobs grow with the tokens
class Answer:
    """What the caller of one request has been told so far."""

    request: Request
    prompt: str | None
    ending_ids: tuple[int, ...]
    detokenizer: IncrementalDetokenizer
    seed: int
    arrival_s: float
    text: str = ""
    stop_reason: str | int | None = None
    stop_from: int = 0
    logprobs: list[tuple[Logprob, ...]] = field(default_factory=list)
    first_token_s: float | None = None


@dataclass(slots=True, kw_only=True)  # mutable: counters
class EngineStats:
    """What the engine has done since it started. `modes` counts steps by how and why they ran."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    modes: dict[str, int] = field(default_factory=dict)


class Engine:
    """Continuous batching of one model on one worker."""

    def __init__(self, worker: Worker, tokenizer: Tokenizer) -> None:
        self.worker, self.tokenizer = worker, tokenizer
        limits = worker.config.limits
        self._scheduler = Scheduler(
            worker.kv,
            ScheduleLimits(chunk_tokens=limits.chunk_tokens, max_waiting=WAITING_PER_RUNNING * limits.max_running),
        )
        self._answers: dict[str, Answer] = {}
        self._arrivals = 0
        self.stats = EngineStats()
        self.timeline = Timeline()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def can_take(self) -> bool:
        """Whether one more request would be queued rather than refused."""
        return self._scheduler.can_queue

    def add_request(
        self, request_id: str, prompt: str | Sequence[int], params: SamplingParams, *, priority: int = 0
    ) -> None:
        """Queue a request, or `RequestError` with the limit it breaks; nothing else is disturbed."""
        self.submit(request_id, self.check_request(prompt, params), priority=priority)

    def submit(self, request_id: str, checked: CheckedPrompt, *, priority: int = 0) -> None:
        """Queue a request whose prompt was checked already."""
        params = checked.params
        if request_id in self._answers:
            raise RequestError(f"request {request_id!r}", "an id in use", "a new id", "Wait for the other to end.")
        self._arrivals += 1
        request = Request(
            id=request_id,
            prompt=checked.ids,
            params=params,
            max_new_tokens=checked.max_new_tokens,
            arrival=self._arrivals,
            priority=priority,
        )
        self._scheduler.add(request)
        self._answers[request_id] = Answer(
            request=request,
            prompt=checked.text,
            ending_ids=self._ending_ids(params),
            detokenizer=self.tokenizer.detokenizer(skip_special_tokens=params.skip_special_tokens),
            # Without a seed each request still has one of its own, so that a rerun of the program repeats itself.
            seed=params.seed if params.seed is not None else self._arrivals,
            arrival_s=time.perf_counter(),
        )

    def check_request(self, prompt: str | Sequence[int], params: SamplingParams) -> CheckedPrompt:
        """The prompt as the engine takes it, or `RequestError`. Changes nothing."""
        ids = checked_ids(prompt) if not isinstance(prompt, str) else self._encode(prompt)
        vocab_size = self.worker.model.decoder.spec.vocab_size
        outside = [token for token in ids if not 0 <= token < vocab_size]
        if outside:
            raise RequestError(
                "prompt", f"token id {shown(outside[0])}", f"ids in [0, {vocab_size})", "Check the tokenizer."
            )
        max_new_tokens = params.check_against(vocab_size, len(ids), self.worker.config.limits.max_context_tokens)
        text = prompt if isinstance(prompt, str) else None
        return CheckedPrompt(text=text, ids=tuple(ids), params=params, max_new_tokens=max_new_tokens)

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = f"text that is not Unicode at character {error.start}"
            raise RequestError("prompt", found, "characters that UTF-8 can write", "Remove lone surrogates.") from None
        return self.tokenizer.encode(text, add_special_tokens=True)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is. None if it had ended already."""
        answer = self._answers.get(request_id)
        return None if answer is None else self._finish(answer, FinishReason.ABORT)

    def step(self) -> list[RequestOutput]:
        """Run one step; gives the requests that got a token, the finished ones for the last time."""
        clock = [time.perf_counter()]
        planned = self._scheduler.plan()
        if not planned:
            if self._scheduler.waiting:
                first = self._scheduler.waiting[0].id
                raise PlayheadError(
                    f"request {first!r}: found no memory although nothing runs. See the ledger's report."
                )
            return []
        chunks = [Chunk.newest(chunk.request.seq, chunk.tokens) for chunk in planned if chunk.request.seq is not None]
        # Counted before the commit: a prompt whose last chunk this is has an output afterwards.
        self.stats.num_prompt_tokens += sum(len(chunk.tokens) for chunk in planned if not chunk.request.output)
        clock.append(time.perf_counter())
        try:
            result = self.worker.forward(chunks)
        except BaseException:
            self._scheduler.roll_back(planned)
            raise
        clock.append(time.perf_counter())
        rows = [row for row, chunk in enumerate(planned) if chunk.samples]
        answers = [self._answers[planned[row].request.id] for row in rows]
        logits_NV = result.logits_NV if len(rows) == len(planned) else result.logits_NV[rows]
        sampled = self._sample(answers, logits_NV) if rows else []
        clock.append(time.perf_counter())
        outputs = [self._commit(*pair) for pair in zip(answers, sampled, strict=True)]
        clock.append(time.perf_counter())
        self._record(planned, result.decision, clock)
        return outputs

    def _sample(self, answers: Sequence[Answer], logits_NV: torch.Tensor) -> list[tuple[int, tuple[Logprob, ...]]]:
        """The next token of each row, with its logprobs if the request wants them."""
        rows = [
            SamplerRow(
                params=answer.request.params,
                seed=answer.seed,
                num_generated=len(answer.request.output),
                prompt_ids=answer.request.prompt,
                output_ids=answer.request.output,
                ending_ids=answer.ending_ids,
            )
            for answer in answers
        ]
        needs = sampler_needs(rows)
        inputs = build_inputs(rows, needs, num_rows=len(rows), vocab_size=logits_NV.shape[1], device=logits_NV.device)
        with torch.no_grad():
            sampled = sample(logits_NV, inputs, needs)
        tokens = sampled.tokens_N.tolist()
        return [
            (token, reported(sampled, i, answer)) for i, (token, answer) in enumerate(zip(tokens, answers, strict=True))
        ]

    def _ending_ids(self, params: SamplingParams) -> tuple[int, ...]:
        eos = () if params.ignore_eos else tuple(sorted(self.tokenizer.special.eos_ids))
        return (*eos, *params.stop_token_ids)

    def _commit(self, answer: Answer, sampled: tuple[int, tuple[Logprob, ...]]) -> RequestOutput:
        """Append one token and see whether it ends the request."""
        token, logprobs = sampled
        request, params = answer.request, answer.request.params
        self._scheduler.commit(request, token)
        self.stats.num_generated_tokens += 1
        if answer.first_token_s is None:
            answer.first_token_s = time.perf_counter()
        if params.logprobs is not None:
            answer.logprobs.append(logprobs)
        if token in answer.ending_ids:
            answer.stop_reason = token if token in params.stop_token_ids else None
            return self._finish(answer, FinishReason.STOP)
        self._extend_text(answer, token)
        if answer.stop_reason is not None:
            return self._finish(answer, FinishReason.STOP)
        if len(request.output) >= request.max_new_tokens:
            return self._finish(answer, FinishReason.LENGTH)
        return self._output(answer)

    def _extend_text(self, answer: Answer, token: int) -> None:
        """Add a token's characters, and end the text before a stop string that they complete."""
        params = answer.request.params
        num_known = len(answer.text)
        answer.text += answer.detokenizer.feed([token])
        if len(answer.request.output) < params.min_tokens:
            answer.stop_from = len(answer.text)  # what came before stop strings were in force stays
            return
        longest = max(map(len, params.stop), default=0)
        found = first_stop(answer.text, params.stop, max(answer.stop_from, num_known - longest + 1))
        if found is not None:
            at, answer.stop_reason = found
            answer.text = answer.text[:at]

    def _finish(self, answer: Answer, reason: FinishReason) -> RequestOutput:
        if answer.stop_reason is None or isinstance(answer.stop_reason, int):
            answer.text += answer.detokenizer.finish()
        self._scheduler.finish(answer.request, reason)
        self.stats.num_cached_tokens += answer.request.num_cached_tokens
        del self._answers[answer.request.id]
        return self._output(answer)

    def _output(self, answer: Answer) -> RequestOutput:
        request = answer.request
        finished = request.finish_reason is not None
        chosen = [entries[0].logprob for entries in answer.logprobs]
        # Text that may turn out to be a stop string is not shown yet: shown text never shrinks.
        held_back = 0 if finished else num_held_back(answer.text, request.params.stop)
        completion = CompletionOutput(
            index=0,
            text=answer.text[: len(answer.text) - held_back],
            token_ids=tuple(request.output),
            finish_reason=request.finish_reason,
            stop_reason=answer.stop_reason,
            cumulative_logprob=sum(chosen) if request.params.logprobs is not None else None,
            logprobs=tuple(answer.logprobs) if request.params.logprobs is not None else None,
        )
        metrics = RequestMetrics(
            arrival_s=answer.arrival_s,
            first_token_s=answer.first_token_s,
            finished_s=time.perf_counter() if finished else None,
        )
        return RequestOutput(
            request_id=request.id,
            prompt=answer.prompt,
            prompt_token_ids=request.prompt,
            outputs=(completion,),
            finished=finished,
            num_cached_tokens=request.num_cached_tokens,
            metrics=metrics,
        )

    def _record(self, planned: Sequence[PlannedChunk], decision: Decision, clock: Sequence[float]) -> None:
        """Counters and timeline. `clock` has the start of the step and the end of each of its parts, in seconds."""
        num_tokens = sum(len(chunk.tokens) for chunk in planned)
        mode = f"{decision.mode}: {decision.reason}"
        self.stats.num_steps += 1
        self.stats.num_preemptions = self._scheduler.num_preemptions
        self.stats.modes[mode] = self.stats.modes.get(mode, 0) + 1
        plan_us, forward_us, sample_us, commit_us = ((b - a) * 1e6 for a, b in itertools.pairwise(clock))
        self.timeline.add(
            StepRecord(
                number=self.stats.num_steps,
                mode=decision.mode,
                reason=decision.reason,
                raw=num_tokens,
                padded=decision.bucket,
                num_requests=len(planned),
                started_us=clock[0] * 1e6,
                plan_us=plan_us,
                forward_us=forward_us,
                sample_us=sample_us,
                commit_us=commit_us,
                pages={group.name: group.num_taken for group in self.worker.kv.allocator.groups},
            )
        )


def checked_ids(prompt: object) -> list[int]:
    """Token ids as given, or `RequestError`: a bool, a float or a string among them is refused, not converted."""
    is_text = isinstance(prompt, bytes | bytearray | str)
    if isinstance(prompt, Sequence) and not is_text and all(type(token) is int for token in prompt):
        return list(prompt)
    found = f"a {type(prompt).__name__} of other things than ints"
    raise RequestError("prompt", found, "text, or token ids", "Encode it first.")


def reported(sampled: SampledTokens, row: int, answer: Answer) -> tuple[Logprob, ...]:
    """The chosen token's logprob, then those of the best ones, as many as this request asked for."""
    wanted = answer.request.params.logprobs
    if wanted is None:
        return ()
    ids, values = sampled.logprob_ids_NL[row].tolist(), sampled.logprobs_NL[row].tolist()
    pairs = list(zip(ids, values, strict=True))[: 1 + wanted]
    return tuple(Logprob(token_id=token, logprob=value) for token, value in pairs)


def first_stop(text: str, stops: Sequence[str], start: int) -> tuple[int, str] | None:
    """Where the first stop string from `start` on begins, and which it is."""
    found = [(text.find(stop, start), stop) for stop in stops]
    return min(((at, stop) for at, stop in found if at >= 0), default=None)


def num_held_back(text: str, stops: Sequence[str]) -> int:
    """Characters at the end that may be the beginning of a stop string: 2 of "the en" with "end"."""
    starts = (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
    return max(starts, default=0)
