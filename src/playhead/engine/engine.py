"""The engine: requests in, tokens out, one step at a time.

A step is planned (integers), launched, and read when the next one is on its way: what the next step needs of this one
is on the device. So a stop that only the host can see is seen one step late; the row it wasted is dropped, and no
wrong token is ever given out. Everything here is on the host and in one thread.

An exception leaves the engine as it was before, or as it would be after: a plan that was not launched is taken back,
a step that ran is read by the next call. One that belongs to a single request (its text, its sampler row) ends that
request with `RequestFailed`, and no other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from playhead.engine.exclusive import Exclusive
from playhead.engine.response import ResponseBuilder
from playhead.engine.stats import EngineStats
from playhead.engine.timeline import StepRecord, Timeline
from playhead.errors import PagesLost, PlayheadError, RequestError, RequestFailed, caused, shown
from playhead.kv.ledger import Findings, KVWatch, report
from playhead.models.text.tokenizer import Tokenizer
from playhead.outputs import FinishReason, Logprob, RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import Request
from playhead.schedule.scheduler import PlannedChunk, ScheduleLimits, Scheduler
from playhead.step.inflight import Collected, InFlight
from playhead.step.sampling import SampledTokens, SamplerRow
from playhead.step.worker import Worker

WAITING_PER_RUNNING = 4  # a longer queue only makes everybody in it too late


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPrompt:
    """A prompt that fits the model: its ids, its text if it came as text, and how many tokens may follow it."""

    text: str | None
    ids: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How a request is to be treated. Lower `priority` goes first. Prompts of another `salt` share no cached prefix.

    `streams` if its output is wanted after every token, and not at the end alone.
    """

    priority: int = 0
    salt: str = ""
    streams: bool = True

    def __post_init__(self) -> None:
        kinds = (("priority", self.priority, int, "an int"), ("salt", self.salt, str, "a str"))
        for name, value, kind, wanted in kinds:
            if type(value) is not kind:  # bool is no priority
                raise RequestError(name, f"a {type(value).__name__}", wanted, "Change it or leave it out.")


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: reading may be interrupted, and goes on where it was
class LaunchedStep:
    """A step that runs, what it is for, and when the host did its part, in seconds."""

    planned: list[PlannedChunk]
    launched: InFlight
    started_s: float
    planned_s: float
    launched_s: float
    collected: Collected | None = None
    num_committed: int = 0


class Engine:
    """Continuous batching of one model on one worker.

    With `overlap` a step is launched before the last one is read, so `step` gives the tokens of the step before. KV
    memory is planned for so many steps in flight (`KVLimits.num_steps_in_flight`), and the plan decides.
    """

    def __init__(self, worker: Worker, tokenizer: Tokenizer) -> None:
        self.worker, self.tokenizer = worker, tokenizer
        limits = worker.config.limits
        self.overlap = limits.num_steps_in_flight > 1
        self._exclusive = Exclusive()
        self._watch = KVWatch(worker.kv, every_steps=worker.config.audit_every_steps)
        self._scheduler = Scheduler(
            worker.kv,
            ScheduleLimits(chunk_tokens=limits.chunk_tokens, max_waiting=WAITING_PER_RUNNING * limits.max_running),
        )
        self._answers: dict[str, ResponseBuilder] = {}
        self._in_flight: deque[LaunchedStep] = deque()
        self._ready: list[RequestOutput] = []  # kept here, so that a step that fails loses nobody's last word
        self._arrivals = 0
        self.stats = EngineStats()
        self.timeline = Timeline()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._in_flight) or bool(self._ready)

    def entered(self) -> threading.Lock:
        """A lock to use the engine under, or `MisuseError`: for one thread at a time, until the engine is closed."""
        return self._exclusive.entered(has_work=self.has_work)

    def check_use(self) -> None:
        """`MisuseError` if this thread may not use the engine now."""
        self._exclusive.check(has_work=self.has_work)

    def close(self) -> None:
        """Refuse every further use."""
        self._exclusive.is_closed = True

    @property
    def can_take(self) -> bool:
        """Whether one more request would be queued rather than refused."""
        return self._scheduler.can_queue

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams,
        options: RequestOptions | None = None,
    ) -> None:
        """Queue a request, or `RequestError` with the limit it breaks; nothing else is disturbed."""
        self.submit(request_id, self.check_request(prompt, params), options)

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions | None = None) -> None:
        """Queue a request whose prompt was checked already. If that raises, nothing of the request is left behind."""
        with self.entered():
            if request_id in self._answers or any(output.request_id == request_id for output in self._ready):
                raise RequestError(f"request {request_id!r}", "an id in use", "a new id", "Wait for the other to end.")
            try:
                self._queue(self._answer(request_id, checked, options or RequestOptions()))
            except PlayheadError:
                raise
            except Exception as error:
                raise RequestFailed(request_id) from error

    def _queue(self, answer: ResponseBuilder) -> None:
        try:
            self._scheduler.add(answer.request)
            self._answers[answer.request.id] = answer
        except BaseException:
            self._answers.pop(answer.request.id, None)
            self._scheduler.finish(answer.request, FinishReason.ABORT)
            raise

    def _answer(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> ResponseBuilder:
        """The request and its answer-to-be, with room in the sampler."""
        params = checked.params
        ending_ids = self._ending_ids(params)
        # Without a seed each request still has one of its own, so that a rerun of the program repeats itself.
        seed = params.seed if params.seed is not None else self._arrivals + 1
        self.worker.sampler.prepare(SamplerRow(params=params, seed=seed, num_generated=0, ending_ids=ending_ids))
        self._arrivals += 1
        request = Request(
            id=request_id,
            prompt=checked.ids,
            params=params,
            max_new_tokens=checked.max_new_tokens,
            arrival=self._arrivals,
            priority=options.priority,
            salt=options.salt,
        )
        return ResponseBuilder(
            request=request,
            prompt=checked.text,
            ending_ids=ending_ids,
            detokenizer=self.tokenizer.detokenizer(
                skip_special_tokens=params.skip_special_tokens, prompt_ids=checked.ids
            ),
            seed=seed,
            streams=options.streams,
            arrival_s=time.perf_counter(),
        )

    def check_request(self, prompt: str | Sequence[int], params: SamplingParams) -> CheckedPrompt:
        """The prompt as the engine takes it, or `RequestError`. Changes nothing."""
        vocab_size, max_context = (
            self.worker.model.decoder.spec.vocab_size,
            self.worker.config.limits.max_context_tokens,
        )
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=True, max_context=max_context)
        else:
            ids = checked_ids(prompt)
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            outside = next(token for token in ids if not 0 <= token < vocab_size)
            raise RequestError(
                "prompt", f"token id {shown(outside)}", f"ids in [0, {vocab_size})", "Check the tokenizer."
            )
        max_new_tokens = params.check_against(vocab_size, len(ids), max_context)
        text = prompt if isinstance(prompt, str) else None
        return CheckedPrompt(text=text, ids=tuple(ids), params=params, max_new_tokens=max_new_tokens)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is. None if it had ended already."""
        with self.entered():
            return self._abort(request_id)

    def _abort(self, request_id: str) -> RequestOutput | None:
        answer = self._answers.get(request_id)
        if answer is None:
            return None
        self._ready = [output for output in self._ready if output.request_id != request_id]
        try:
            answer.finish()
        except Exception as error:  # noqa: BLE001  its text is its own affair
            return self._fail(answer, error)
        return self._end(answer, FinishReason.ABORT)

    def step(self) -> list[RequestOutput]:
        """Launch one step and read one; gives the requests that got a token, the finished ones for the last time.

        With overlap the two are different steps, and there may be nothing to give yet.
        """
        with self.entered():
            self._step()
            return self.take_ready()

    def _step(self) -> None:
        if self._scheduler.in_doubt:
            self._take_back()
        self.worker.settle()
        self._read_until(0 if self._scheduler.is_starved else 1)
        try:
            started_s = time.perf_counter()
            planned = self._plan()
            if planned:
                self._in_flight.append(self._launch(planned, started_s))
                self._scheduler.close_plan()
        except BaseException:
            self._take_back()
            raise
        if not planned and not self._in_flight:
            self._refuse_to_starve()
        self._read_until(1 if planned and self.overlap else 0)
        self._end_the_touched(self._watch.look(is_idle=not (self._scheduler.has_work or self._in_flight)))

    def _end_the_touched(self, findings: Findings) -> None:
        """End the requests whose pages failed an audit: what they would be told next could be wrong."""
        self.stats.num_violations += len(findings.violations)
        for request_id, violation in findings.by_request.items():
            answer = self._answers.get(request_id)
            if answer is not None:
                self._ready.append(self._end(answer, FinishReason.ERROR, PagesLost(request_id, violation)))

    def kv_report(self) -> str:
        """The account of KV pages as a table, and what was ever found wrong in it."""
        return report(self.worker.kv)

    def take_ready(self) -> list[RequestOutput]:
        """Outputs that were read and not given out: after a step that raised there may be some."""
        outputs, self._ready = self._ready, []
        return outputs

    def _refuse_to_starve(self) -> None:
        left = (*self._scheduler.waiting, *self._scheduler.running)
        if left:
            raise PlayheadError(
                f"request {left[0].id!r} finds no KV memory although nothing runs. This is a bug in Playhead; please "
                f"report it with what LLM.kv_report() prints:\n{self.kv_report()}"
            )

    def _plan(self) -> list[PlannedChunk]:
        """The next step, with the sampler told about new rows. A request that the sampler cannot take ends alone."""
        while True:
            planned = self._scheduler.plan()
            broken: list[tuple[ResponseBuilder, Exception]] = []
            for chunk in planned:
                answer = self._answers[chunk.request.id]
                if answer.sampler_seq is not chunk.seq:
                    try:
                        self.worker.sampler.set(chunk.seq.row, sampler_row(answer))
                    except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
                        broken.append((answer, error))
                    else:
                        answer.sampler_seq = chunk.seq
            if not broken:
                return planned
            self._scheduler.take_back()
            self._ready += [self._fail(answer, error) for answer, error in broken]

    def _take_back(self) -> None:
        """Undo a step that was planned and does not run. Who was in it waits to be computed anew."""
        newest = self._in_flight[-1].planned if self._in_flight else None
        if newest is not None and newest is self._scheduler.open_plan:
            self._scheduler.close_plan()  # it runs, and the next call reads it
            return
        claimed = {step.launched.step for step in self._in_flight}
        self.worker.give_up(step for step in self.worker.steps_in_flight if step not in claimed)
        self._scheduler.take_back(was_launched=True)

    def _launch(self, planned: list[PlannedChunk], started_s: float) -> LaunchedStep:
        planned_s = time.perf_counter()
        launched = self.worker.launch(planned)
        self.stats.num_prompt_tokens += sum(len(chunk.tokens) for chunk in planned if not chunk.num_generated)
        return LaunchedStep(
            planned=planned,
            launched=launched,
            started_s=started_s,
            planned_s=planned_s,
            launched_s=time.perf_counter(),
        )

    def _read_until(self, num_left: int) -> None:
        """Read the oldest steps in flight until so many are left. Whatever raises, no token of theirs is lost."""
        while len(self._in_flight) > num_left:
            self._read(self._in_flight[0])
            self._in_flight.popleft()

    def _read(self, step: LaunchedStep) -> None:
        """Wait for a step and give its tokens to those who are still there; go on where an interrupt came."""
        read_s = time.perf_counter()
        if step.collected is None:
            step.collected = self.worker.collect(step.launched)
        collected, collected_s = step.collected, time.perf_counter()
        tokens = collected.sampled.tokens_N.tolist()
        while step.num_committed < len(tokens):
            row = step.num_committed
            if step.planned[row].samples:
                self._commit(step.planned[row], tokens[row], collected.sampled, row)
            step.num_committed = row + 1
        self._record(step, collected.device_us, (read_s, collected_s, time.perf_counter()))

    def _commit(self, chunk: PlannedChunk, token: int, sampled: SampledTokens, row: int) -> None:
        """One token of a step that was read. A request that has ended meanwhile has no use for it.

        Every part knows whether it was done, so a call that was cut short is repeated. What raises while the request's
        text is made ends that request alone.
        """
        request = chunk.request
        answer = self._answers.get(request.id)
        if request.finish_reason is not None or answer is None:
            self.stats.num_wasted_rows += 1
            return
        self.stats.num_generated_tokens += self._scheduler.commit(chunk, token)
        output = None
        try:
            if answer.num_taken == chunk.num_generated:
                answer.take(token, reported(sampled, row, request.params.logprobs))
            if answer.ended_by is not None:
                answer.finish()
            elif answer.streams:
                output = answer.output()
        except BaseException as error:
            self._ready.append(self._fail(answer, error))
            if not isinstance(error, Exception):
                raise
            return
        if answer.ended_by is not None:
            self._ready.append(self._end(answer, answer.ended_by))
        elif output is not None:
            self._ready.append(output)

    def _ending_ids(self, params: SamplingParams) -> tuple[int, ...]:
        eos = () if params.ignore_eos else tuple(sorted(self.tokenizer.special.eos_ids))
        return (*eos, *params.stop_token_ids)

    def _fail(self, answer: ResponseBuilder, error: BaseException) -> RequestOutput:
        """End a request by what its own work raised."""
        return self._end(answer, FinishReason.ERROR, caused(RequestFailed(answer.request.id), error))

    def _end(self, answer: ResponseBuilder, reason: FinishReason, error: PlayheadError | None = None) -> RequestOutput:
        """Let go of a request; gives its last output, which is ready for the next caller if letting go raises."""
        answer.error = error
        try:
            self._scheduler.finish(answer.request, reason)
        except BaseException:
            answer.request.finish_reason, self._scheduler.in_doubt = reason, True
            self._ready.append(self._last_output(answer))
            raise
        return self._last_output(answer)

    def _last_output(self, answer: ResponseBuilder) -> RequestOutput:
        self._answers.pop(answer.request.id, None)
        self.stats.num_cached_tokens += answer.request.num_cached_tokens
        try:
            output = answer.output()
        except Exception as error:  # noqa: BLE001  even an answer that cannot be told must be ended
            answer.error = caused(RequestFailed(answer.request.id), error)
            answer.request.finish_reason = FinishReason.ERROR
            output = answer.bare_output()
        self.stats.num_failed_requests += answer.error is not None
        return output

    def _record(self, step: LaunchedStep, device_us: float, read: tuple[float, float, float]) -> None:
        """Counters and timeline. `read` has when the host began to wait, had the tokens, and had given them out."""
        decision = step.launched.decision
        mode = f"{decision.mode}: {decision.reason}"
        self.stats.num_steps += 1
        self.stats.num_preemptions = self._scheduler.num_preemptions
        self.stats.modes[mode] = self.stats.modes.get(mode, 0) + 1
        read_s, collected_s, committed_s = read
        self.timeline.add(
            StepRecord(
                number=self.stats.num_steps,
                mode=decision.mode,
                reason=decision.reason,
                raw=sum(len(chunk.tokens) for chunk in step.planned),
                padded=decision.bucket,
                num_requests=len(step.planned),
                started_us=step.started_s * 1e6,
                plan_us=(step.planned_s - step.started_s) * 1e6,
                launch_us=(step.launched_s - step.planned_s) * 1e6,
                read_us=read_s * 1e6,
                wait_us=(collected_s - read_s) * 1e6,
                commit_us=(committed_s - collected_s) * 1e6,
                device_us=device_us,
                pages={group.name: group.num_taken for group in self.worker.kv.allocator.groups},
            )
        )


def checked_ids(prompt: object) -> list[int]:
    """Token ids as given, or `RequestError`: a bool, a float or a string among them is refused, not converted."""
    is_text = isinstance(prompt, bytes | bytearray | str)
    if isinstance(prompt, Sequence) and not is_text and set(map(type, prompt)) <= {int}:
        return list(prompt)
    found = f"a {type(prompt).__name__} of other things than ints"
    raise RequestError("prompt", found, "text, or token ids", "Encode it first.")


def sampler_row(answer: ResponseBuilder) -> SamplerRow:
    """What the sampler must know of a request that has just got its row: everything so far has been read."""
    request = answer.request
    return SamplerRow(
        params=request.params,
        seed=answer.seed,
        num_generated=len(request.output),
        prompt_ids=request.prompt,
        output_ids=request.output,
        ending_ids=answer.ending_ids,
    )


def reported(sampled: SampledTokens, row: int, wanted: int | None) -> tuple[Logprob, ...]:
    """The chosen token's logprob, then those of the best ones, as many as the request asked for."""
    if wanted is None:
        return ()
    columns = (sampled.logprob_ids_NL[row], sampled.logprobs_NL[row], sampled.ranks_NL[row])
    reports = list(zip(*(column.tolist() for column in columns), strict=True))[: 1 + wanted]
    return tuple(Logprob(token_id=token, logprob=value, rank=rank) for token, value, rank in reports)
