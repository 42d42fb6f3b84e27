"""The engine: requests in, tokens out, one step at a time.

A step is planned (integers), launched, and read when the next one is on its way: what the next step needs of this one
is on the device. So a stop that only the host can see is seen one step late; the row it wasted is dropped, and no
wrong token is ever given out. Everything here is on the host and in one thread.

An exception leaves the engine as it was before, or as it would be after: a plan that was not launched is taken back,
a step that ran is read by the next call. An error of a single request (its text, its sampler row) ends that request
with `RequestFailed`, and no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from playhead.engine.config import EngineConfig
from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions
from playhead.engine.launched import LaunchedStep
from playhead.engine.resolve import resolved
from playhead.engine.response import ResponseBuilder
from playhead.engine.resume import take_up
from playhead.engine.seeds import seed_of
from playhead.engine.still import StillObjects
from playhead.engine.structured import MaskWriter, matcher_for
from playhead.engine.timeline import EngineStats, Timeline
from playhead.engine.use import EngineUse
from playhead.errors import PagesLost, PlayheadError, RequestError, RequestFailed, caused
from playhead.graph.shapes import Reason
from playhead.graph.spec import CaptureReport
from playhead.inputs import Prompt
from playhead.kv.audit import report
from playhead.kv.ledger import NOTHING, Findings, KVWatch
from playhead.logs import event, log_failure
from playhead.models.text.tokenizer import Tokenizer
from playhead.outputs import FinishReason, RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import DONE, Chunk, Request
from playhead.schedule.scheduler import WAITING_PER_RUNNING, ScheduleLimits, Scheduler
from playhead.schedule.step_plan import StepPlan
from playhead.step.sampling import ReadTokens
from playhead.step.worker import Worker

LOG = logging.getLogger(__name__)
WHERE_PAUSES_SHOW = ("cuda",)  # devices whose steps are shorter than a garbage collection


class Engine:
    """Continuous batching of one model on one worker.

    With `overlap` a step is launched before the last one is read, so `step` gives the tokens of the step before. The
    plan of KV memory decides about it: `overlap` if it has room for two steps (`KVLimits.num_steps_in_flight`).
    """

    def __init__(
        self,
        worker: Worker,
        tokenizer: Tokenizer,
        *,
        config: EngineConfig | None = None,
        default_params: SamplingParams | None = None,
        name: str = "model",
    ) -> None:
        self.worker, self.tokenizer, self.name = worker, tokenizer, name
        self.config = resolved(config or EngineConfig(), worker.config, worker.model.decoder)
        limits = worker.config.limits
        self.overlap = limits.num_steps_in_flight > 1
        self.reader = PromptReader(
            tokenizer=tokenizer,
            vocab_size=worker.model.decoder.spec.vocab_size,
            max_context=limits.max_context_tokens,
            default_params=default_params or SamplingParams(),
        )
        self._watch = KVWatch(worker.kv, every_steps=worker.config.audit_every_steps)
        max_waiting = WAITING_PER_RUNNING * limits.max_running
        self._scheduler = Scheduler(
            worker.kv, worker.rows, ScheduleLimits(chunk_tokens=limits.chunk_tokens, max_waiting=max_waiting)
        )
        self._responses: dict[str, ResponseBuilder] = {}
        self._in_flight: deque[LaunchedStep] = deque()
        self._ready: list[RequestOutput] = []  # outputs wait here, so a failing step cannot lose them
        self._arrivals, self._masks = 0, MaskWriter()
        self.stats, self.timeline, self.use = EngineStats(), Timeline(), EngineUse()
        self._still = StillObjects()

    @property
    def facts(self) -> str:
        """The model, where it runs and how, as a `repr` shows it."""
        return f"{self.name!r}, {self.config.device}, {self.config.dtype}, context {self.config.max_model_len}"

    @property
    def state(self) -> str:
        """What the engine is doing, in a few words."""
        if self.use.is_closed:
            return "closed"
        running, waiting = self.num_requests
        return f"{running} running, {waiting} waiting" if self.has_work else "idle"

    def __repr__(self) -> str:
        return f"Engine({self.facts}, {self.state})"

    @property
    def num_requests(self) -> tuple[int, int]:
        """How many requests run, and how many wait to."""
        return len(self._scheduler.running), len(self._scheduler.waiting)

    @property
    def running(self) -> Sequence[Request]:
        """The requests that run. Each one's `output` grows with the steps."""
        return self._scheduler.running

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._in_flight) or bool(self._ready)

    def entered(self) -> threading.Lock:
        """A lock to do one thing under, or `MisuseError`."""
        if not self.use.check_caller():  # else this thread has it already
            self.check_use()
            self.take_over()
        return self.use.inside

    def take_over(self) -> None:
        """This thread uses the engine from now on. The caller must know that no other thread is using it."""
        if self.use.move_here():
            self.worker.move_to_this_thread()

    def check_use(self) -> None:
        """`MisuseError` if this thread may not use the engine now."""
        self.use.check(has_work=self.has_work)

    def close(self) -> None:
        """Refuse every further use. Memory is free when the last reference to the engine is gone."""
        if self.use.is_closed:
            return
        self.check_use()
        self.use.is_closed = True
        self.reader.close()
        self._still.let_go()
        self.worker.close()

    def capture_graphs(self, progress: Callable[[CaptureReport], None] | None = None) -> None:
        """Capture all sizes now; otherwise each is captured when it is first wanted.

        Then Python's garbage collector skips all objects there are, until this engine is closed or gone.
        """
        started_s = time.perf_counter()
        with self.entered():
            self.worker.capture_all(progress)
        num_graphs = sum(len(runner.captured) for runner in self.worker.runners)
        event(LOG, logging.INFO, "graphs captured", graphs=num_graphs, seconds=time.perf_counter() - started_s)
        self._still.leave_out()

    @property
    def max_waiting(self) -> int:
        """How many requests may wait to be run. One more is refused."""
        return self._scheduler.max_waiting

    @max_waiting.setter
    def max_waiting(self, value: int) -> None:
        self._scheduler.max_waiting = value

    @property
    def can_take(self) -> bool:
        """Whether one more request would be queued rather than refused."""
        return self._scheduler.can_queue

    @property
    def can_take_now(self) -> bool:
        """The same, if the next step may have room for it."""
        return self._scheduler.can_queue and not (self._scheduler.waiting and self._scheduler.has_enough_waiting)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        options: RequestOptions | None = None,
    ) -> None:
        """Queue a request, or `RequestError` with the limit it breaks; nothing else is disturbed."""
        self.submit(request_id, self.reader.check(prompt, params), options)

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions | None = None) -> ResponseBuilder:
        """Queue a request whose prompt was checked already; gives its response, which grows with the steps.

        If that raises, nothing of the request is left behind.
        """
        with self.entered():
            if request_id in self._responses or any(output.request_id == request_id for output in self._ready):
                raise RequestError(f"request {request_id!r}", "an id in use", "a new id", "Wait for the other to end.")
            try:
                return self._queue(self._response(request_id, checked, options or RequestOptions()))
            except PlayheadError:
                raise
            except Exception as error:
                raise RequestFailed(request_id) from error

    def _queue(self, response: ResponseBuilder) -> ResponseBuilder:
        try:
            self._scheduler.add(response.request)
            self._responses[response.request.id] = response
        except BaseException:
            self._responses.pop(response.request.id, None)
            self._scheduler.finish(response.request, FinishReason.ABORT)
            raise
        return response

    def _response(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> ResponseBuilder:
        """The request and the builder of its response, with room in the sampler."""
        params, arrival = checked.params, self._arrivals + 1
        ending_ids = self.reader.ending_ids(params) if checked.ending_ids is None else checked.ending_ids
        request = Request(
            id=request_id,
            prompt=checked.ids,
            params=params,
            max_new_tokens=checked.max_new_tokens,
            arrival=arrival,
            seed=seed_of(self.config.seed, arrival) if params.seed is None and not params.is_greedy else 0,
            priority=options.priority,
            salt=checked.salt or options.salt,
            ending_ids=ending_ids,
            late_ids=self.reader.late_ids(params) if checked.late_ids is None else checked.late_ids,
            bad_words=checked.bad_words,
            matcher=matcher_for(checked, ending_ids, self.reader, self.worker, forced_tokens=self.config.forced_tokens),
        )
        request.is_plain = not (options.streams or params.stop or params.logprobs is not None or request.matcher)
        response = ResponseBuilder.begin(request, checked.text, self.tokenizer, streams=options.streams)
        take_up(response, options.resume_from, self.reader.vocab_size)
        self.worker.sampler.prepare(request)
        self._arrivals = arrival
        return response

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is. None if it had ended already."""
        with self.entered():
            return self._abort(request_id)

    def _abort(self, request_id: str) -> RequestOutput | None:
        if (response := self._responses.get(request_id)) is None:
            return None
        self._ready = [output for output in self._ready if output.request_id != request_id]
        try:
            response.complete_text()
        except Exception as error:  # noqa: BLE001  its text is its own affair
            self._fail(response, error)
        else:
            self._end(response, FinishReason.ABORT)
        return self._ready.pop()

    def step(self) -> list[RequestOutput]:
        """Launch one step and read one; gives the requests that got a token, the finished ones for the last time.

        With overlap the two are different steps, and there may be nothing to give yet.
        """
        self.advance()
        return self.take_ready()

    def advance(self) -> None:
        """A step whose outputs wait for `take_ready` or `hand_out`."""
        with self.entered():
            self._step()

    def hand_out(self, deliver: Callable[[RequestOutput], None]) -> None:
        """Give out the outputs that wait, one by one: an interrupt in between loses none."""
        while self._ready:
            deliver(self._ready[0])
            del self._ready[0]

    def _step(self) -> None:
        if self._scheduler.in_doubt:
            self._take_back()
        self.worker.settle()
        self._read_until(0 if self._scheduler.is_starved else 1)
        try:
            started_s = time.perf_counter()
            planned = self._plan()
            if planned.requests:
                self._in_flight.append(self._launch(planned, started_s))
                self._scheduler.close_plan()
        except BaseException:
            self._take_back()
            raise
        if not planned.requests and not self._in_flight:
            self._refuse_to_starve()
        self._scheduler.catch_up()
        self._read_until(1 if planned.requests and self.overlap else 0)
        if not self._in_flight:
            self._scheduler.release()
        findings = self._watch.look(is_idle=not (self._scheduler.has_work or self._in_flight))
        if findings is not NOTHING:
            self._end_the_touched(findings)

    def _end_the_touched(self, findings: Findings) -> None:
        """End the requests whose pages failed an audit: their next tokens could be wrong."""
        self.stats.num_violations += len(findings.violations)
        for request_id, violation in findings.by_request.items():
            if request_id in self._responses:
                self._end(self._responses[request_id], FinishReason.ERROR, PagesLost(request_id, violation))

    def kv_report(self) -> str:
        """The account of KV pages as a table, and what was ever found wrong in it."""
        return report(self.worker.kv)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests keep their pages."""
        with self.entered():
            self.worker.kv.flush_prefixes()

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

    def _plan(self) -> StepPlan:
        """The next step, with the sampler told about new rows. A request that the sampler cannot take ends alone."""
        while True:
            planned = self._scheduler.plan()
            broken: list[tuple[ResponseBuilder, Exception]] = []
            for chunk in self.worker.rows.unknown_to_sampler(planned.newcomers):
                try:
                    self.worker.sampler.set(chunk.seq.row, chunk.request)
                except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
                    broken.append((self._responses[chunk.request.id], error))
                else:
                    self.worker.rows.tell_sampler(chunk.seq)
            if not broken:
                return planned
            self._scheduler.take_back()
            for response, cause in broken:
                self._fail(response, cause)

    def _take_back(self) -> None:
        """Undo a step that was planned and does not run. Its requests wait to be computed anew."""
        newest = self._in_flight[-1].planned if self._in_flight else None
        if newest is not None and newest is self._scheduler.open_plan:
            self._scheduler.close_plan()  # it runs, and the next call reads it
            return
        claimed = {step.launched.step for step in self._in_flight}
        self.worker.give_up(step for step in self.worker.steps_in_flight if step not in claimed)
        self._scheduler.take_back(was_launched=True)

    def _launch(self, planned: StepPlan, started_s: float) -> LaunchedStep:
        planned_s = time.perf_counter()
        launched = self.worker.launch(planned)
        if planned.newcomers:
            self.stats.num_prompt_tokens += planned.num_prompt_tokens
        launched_s = time.perf_counter()
        return LaunchedStep(
            planned=planned, launched=launched, started_s=started_s, planned_s=planned_s, launched_s=launched_s
        )

    def _read_until(self, num_left: int) -> None:
        """Read the oldest steps in flight until so many are left. Whatever raises, no token of theirs is lost."""
        while len(self._in_flight) > num_left:
            self._read(self._in_flight[0])
            self._in_flight.popleft()
        if self._in_flight and self._in_flight[0].launched.tail is not None:
            self._launch_tail(self._in_flight[0])

    def _launch_tail(self, step: LaunchedStep) -> None:
        """Launch the rest of a step that waited for the step before to be read. A second call does nothing."""
        tail = step.launched.tail
        if tail is None or tail.readback is not None:
            return
        try:
            masks = tail.masks(step.planned.formed)
            for request, error in self._masks.write(step.planned, masks, self._scheduler.force):
                self._end(self._responses[request.id], FinishReason.ERROR, error)
            tail.launch()
        except BaseException:
            self._in_flight.remove(step)
            self._scheduler.open_plan, self._scheduler.in_doubt = step.planned, True
            self._take_back()
            raise

    def _read(self, step: LaunchedStep) -> None:
        """Wait for a step and give its tokens to its requests. A read that was interrupted goes on where it stopped."""
        read_s = time.perf_counter()
        if step.launched.tail is not None:
            self._launch_tail(step)
        if step.collected is None:
            step.collected = self.worker.collect(step.launched)
        collected, collected_s = step.collected, time.perf_counter()
        if collected.prompt is not None:
            self._commit_prompts(step.planned, collected.prompt)
        tokens = collected.sampled.tokens
        if step.uncommitted is None:
            num_plain, step.uncommitted = self._scheduler.commit_plain(step.planned, tokens)
            self.stats.num_generated_tokens += num_plain
        while step.uncommitted:
            row = step.uncommitted[-1]
            chunk = step.planned[row]
            self._commit(chunk, tokens[row], collected.sampled, row)
            if chunk.request.forced:
                self._commit_forced(chunk, collected.sampled, row)
            step.uncommitted.pop()
        self._record(step, collected.device_us, (read_s, collected_s, time.perf_counter()))

    def _commit_prompts(self, planned: StepPlan, prompts: ReadTokens) -> None:
        """Give the logprobs of a step's prompt tokens to their requests. A second call changes nothing."""
        row = 0
        for chunk in planned:
            response, first_row, row = self._responses.get(chunk.request.id), row, row + len(chunk.reported)
            if response is None or response.request is not chunk.request:
                continue
            try:
                for i, position in enumerate(chunk.reported):
                    wanted = chunk.request.params.prompt_logprobs
                    response.take_prompt(position, prompts.reports(first_row + i, wanted))
            except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
                self._fail(response, error)

    def _commit(self, chunk: Chunk, token: int, sampled: ReadTokens, row: int) -> None:
        """Give one token of a step to its request. A token of a request that has ended meanwhile is dropped.

        Every part knows whether it was done, so a call that was cut short is repeated. An exception raised while the
        request's text is made ends that request alone.
        """
        request = chunk.request
        response = self._responses.get(request.id)
        if request.finish_reason is not None or response is None:
            self.stats.num_wasted_rows += 1
            return
        self.stats.num_generated_tokens += self._scheduler.commit(chunk, token)
        output = None
        try:
            if response.num_taken <= chunk.num_generated:
                response.take(token, sampled.reports(row, request.params.logprobs))
            if response.ended_by is not None:
                response.complete_text()
            elif response.streams:
                output = response.output()
        except BaseException as error:
            self._fail(response, error)
            if not isinstance(error, Exception):
                raise
            return
        if response.ended_by is not None:
            self._end(response, response.ended_by)
        elif output is not None:
            self._ready.append(output)

    def _commit_forced(self, chunk: Chunk, sampled: ReadTokens, row: int) -> None:
        """Give a request the tokens that had to follow the one it got. A call that was cut short is repeated."""
        request = chunk.request
        for i, token in enumerate(request.forced[1:], start=1):
            if request.finish_reason is None:
                self._commit(replace(chunk, num_generated=chunk.num_generated + i), token, sampled, row)
        request.forced = ()

    def _fail(self, response: ResponseBuilder, error: BaseException) -> None:
        """End a request with the error that its own work raised."""
        self._end(response, FinishReason.ERROR, caused(RequestFailed(response.request.id), error))

    def _end(self, response: ResponseBuilder, reason: FinishReason, error: PlayheadError | None = None) -> None:
        """Remove a request from the engine. Its last output is ready then, even if this raises."""
        request, response.error = response.request, error
        try:
            (self._scheduler.leave if reason in DONE else self._scheduler.finish)(request, reason)
            self._ready.append(self._last_output(response))
        except BaseException:
            if not any(output.finished and output.request_id == request.id for output in self._ready):
                request.finish_reason, self._scheduler.in_doubt = reason, True
                self._ready.append(self._last_output(response))
            raise

    def _last_output(self, response: ResponseBuilder) -> RequestOutput:
        try:
            output = response.output()
        except Exception as error:  # noqa: BLE001  a request whose text cannot be made must end too
            response.error = caused(RequestFailed(response.request.id), error)
            response.request.finish_reason = FinishReason.ERROR
            output = response.bare_output()
        if self._responses.pop(response.request.id, None) is None:
            return output  # counted before: the first one was lost to an interrupt
        self.stats.num_cached_tokens += response.request.num_cached_tokens
        if response.error is not None:
            self.stats.num_failed_requests += 1
            log_failure(LOG, response.request.id, response.error)
        return output

    def _record(self, step: LaunchedStep, device_us: float, read: tuple[float, float, float]) -> None:
        """Counters and timeline. `read` has when the host began to wait, had the tokens, and had given them out."""
        decision = step.launched.decision
        self.stats.count_step(f"{decision.mode}: {decision.reason}", self._scheduler.num_preemptions)
        if decision.reason is Reason.CAPTURE_NOW and self.worker.device.type in WHERE_PAUSES_SHOW:
            self._still.leave_out()
        self.timeline.add(step.record(self.stats.num_steps, device_us, read, self.worker.kv))
