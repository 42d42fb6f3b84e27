"""`LLM`: a model by name, prompts in, text out.

with LLM("embedded", max_num_seqs=4) as llm:
    print(llm.generate("The whale", SamplingParams(max_tokens=20))[0].outputs[0].text)
"""

from __future__ import annotations

import gc
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from types import TracebackType
from typing import Any

import torch

from playhead.engine.config import (
    EngineConfig,
    config_from,
    resolve_device,
    resolve_dtype,
    resolved,
)
from playhead.engine.engine import CheckedPrompt, Engine, RequestOptions
from playhead.engine.memory import fit_memory, free_bytes, worker_config
from playhead.engine.progress import prompt_bar
from playhead.errors import MisuseError, PlayheadError, RequestError
from playhead.graph.runner import CaptureReport
from playhead.models.checkpoint.fill import OnProgress
from playhead.models.load import LoadFormat, ModelDescription, describe_model, load_generation_config, load_weights
from playhead.models.text.chat import ChatTemplate
from playhead.models.text.generation_config import read_generation_config
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.models.text.tokenizer import Tokenizer, tokenizer_from_directory
from playhead.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.step.build import build_worker

__all__ = ["EMBEDDED", "LLM", "EngineConfig", "Prompt", "Prompts", "load_tokenizer", "resolve_model_name"]

EMBEDDED = "embedded"

Prompt = str | Sequence[int]
Prompts = Prompt | Sequence[str] | Sequence[Sequence[int]]


def resolve_model_name(model: str) -> str:
    """The embedded model's directory for its name; anything else as it is."""
    return str(files("playhead") / "assets" / "embedded") if model == EMBEDDED else model


def load_tokenizer(description: ModelDescription, config: EngineConfig | None = None) -> Tokenizer:
    """From the files beside the weights or the GGUF file's metadata; ids only where the configuration has no text."""
    config, path = config or EngineConfig(), description.path
    if description.gguf is not None:
        return IdsOnlyTokenizer() if config.skip_tokenizer_init else tokenizer_from_gguf(description.gguf.metadata)
    is_bare = config.load_format is LoadFormat.DUMMY and not (path / "tokenizer.json").is_file()
    if config.skip_tokenizer_init or is_bare:
        return IdsOnlyTokenizer(read_generation_config(path).eos_ids)
    return tokenizer_from_directory(path)


class LLM:
    """A loaded model. Closing it (or leaving its `with`) aborts what still runs.

    Settings are those of `EngineConfig`, as one object or as keywords. `config` has what they became here.
    """

    def __init__(
        self,
        model: str = EMBEDDED,
        config: EngineConfig | None = None,
        *,
        on_load_progress: OnProgress | None = None,
        **settings: Any,
    ) -> None:
        config = config_from(config, settings)
        device = resolve_device(config)
        is_dummy = config.load_format is LoadFormat.DUMMY
        self.description = describe_model(resolve_model_name(model), config_only=is_dummy)
        # What cannot fit even now is refused before the weights are loaded.
        fit_memory(self.description, config, device, free_bytes(device))
        self.tokenizer = load_tokenizer(self.description, config)
        self._generation = load_generation_config(self.description, self.tokenizer)
        self._template: ChatTemplate | None = None
        decoder = load_weights(
            self.description,
            dtype=resolve_dtype(config, device, self.description),
            device=device,
            load_format=config.load_format,
            on_progress=on_load_progress,
        )
        worker = build_worker(decoder, worker_config(self.description, config, device))
        self.config = resolved(config, worker.config, decoder)
        self._engine: Engine | None = Engine(worker, self.tokenizer)
        self.stats = self._engine.stats
        self.is_lent = False  # to an AsyncEngine, whose thread alone may then touch the engine
        self._unfreeze: Callable[[], object] | None = None
        self._num_calls = 0
        # Whoever steps the engine steps it for all: outputs wait in the inbox of the call that asked for them.
        self._inboxes: dict[str, deque[RequestOutput]] = {}
        self._arrived: deque[RequestOutput] = deque()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Abort whatever still runs and give all memory back, at once. A second call does nothing.

        A stream that is open gets what it has so far, as its last output.
        """
        if self._unfreeze is not None:
            self._unfreeze()  # once: a second call does nothing
        if self._template is not None:
            self._template.close()
        engine = self._engine
        if engine is None:
            return
        self._refuse_if_lent()
        engine.check_use()
        for request_id, inbox in sorted(self._inboxes.items()):
            output = engine.abort(request_id)
            if output is not None:
                inbox.append(output)
        engine.close()
        device, self._engine, engine = engine.worker.device, None, None
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what was this LLM's is the device's again, for other processes too

    @property
    def engine(self) -> Engine:
        """The engine underneath, while this LLM is open."""
        if self._engine is None:
            raise MisuseError("LLM: used after close(). Make a new one, or close it later.")
        return self._engine

    def _refuse_if_lent(self) -> None:
        if self.is_lent:
            raise PlayheadError(
                "LLM: found its engine lent to an AsyncEngine; wanted it back. Close that one, or generate there."
            )

    @property
    def is_busy(self) -> bool:
        """Whether a call to generate or a stream is under way."""
        return bool(self._inboxes)

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets: the checkpoint's generation_config.json over vLLM's defaults."""
        return self._generation.sampling

    def kv_report(self) -> str:
        """The account of KV pages as a table: free, held, cached, in quarantine, and what was ever found wrong."""
        return self.engine.kv_report()

    def capture_graphs(self, progress: Callable[[CaptureReport], None] | None = None) -> None:
        """Capture all sizes now; otherwise each is captured when it is first wanted.

        Then tell Python's garbage collector to leave alone what is there, until this LLM is closed or gone: hundreds of
        thousands of objects that stay, which it would otherwise look through in the middle of a step, for 50 ms and
        more. The collector is the process's: whoever else has frozen something, another LLM say, goes before us.
        """
        with self.engine.entered():
            self.engine.worker.capture_all(progress)
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
            self._unfreeze = weakref.finalize(self, gc.unfreeze)

    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """One output per prompt, in their order. Prompts are text or token ids; one prompt may stand alone.

        There may be any number of them: the engine is given more as it has room. `use_tqdm` shows a bar on a terminal.
        A request that fails has its `error` in its output; the others' outputs are whole.
        Without `params` they are sampled as the model's authors say (`get_default_sampling_params`).
        """
        prompt_list = as_prompts(prompts)
        params_list = as_params(self.get_default_sampling_params() if params is None else params, len(prompt_list))
        results: dict[str, RequestOutput] = {}
        names = [self._name() for _ in prompt_list]
        pending = [
            (f"{name}.{i}", prompt, one)
            for name, prompt, wanted in zip(names, prompt_list, params_list, strict=True)
            for i, one in enumerate(split_n(wanted))
        ]
        with prompt_bar(len(pending), enabled=use_tqdm) as advance:
            for output in self.outputs_of(pending, RequestOptions(streams=False)):
                results[output.request_id] = output
                advance(output)
        return [
            gathered(name, [results[f"{name}.{i}"] for i in range(wanted.n)])
            for name, wanted in zip(names, params_list, strict=True)
        ]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """The output after every token. Leaving the loop early aborts the request."""
        wanted = self.get_default_sampling_params() if params is None else checked_params(params)
        if wanted.n != 1:
            raise RequestError("stream", f"n={wanted.n}", "n=1", "Use generate for several samples.")
        return Stream(self.outputs_of([(self._name(), prompt, wanted)], RequestOptions()))

    def chat(self, messages: Sequence[Mapping[str, str]], params: SamplingParams | None = None) -> RequestOutput:
        """The answer to a conversation, written out by the model's own chat template."""
        output = self.generate([self.chat_prompt(messages)], params)[0]
        if output.error is not None:
            raise output.error
        return output

    def chat_stream(self, messages: Sequence[Mapping[str, str]], params: SamplingParams | None = None) -> Stream:
        """The same answer after every token. Leaving the loop early aborts the request."""
        return self.stream(self.chat_prompt(messages), params)

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation as the model reads it, up to where its answer begins."""
        if self.tokenizer.chat_template is None:
            raise RequestError("chat", "a model without a chat template", "one that has one", "Use generate.")
        if self._template is None:
            special = self.tokenizer.special
            self._template = ChatTemplate(self.tokenizer.chat_template, bos=special.bos, eos=special.eos)
        text = self._template.render(messages, add_generation_prompt=True)
        max_context = self.engine.worker.config.limits.max_context_tokens
        return self.tokenizer.encode(text, add_special_tokens=False, max_context=max_context)

    def _name(self) -> str:
        self._num_calls += 1
        return f"r{self._num_calls}"

    def outputs_of(
        self, requests: Sequence[tuple[str, Prompt, SamplingParams]], options: RequestOptions
    ) -> Generator[RequestOutput, None, None]:
        """Every output of these requests, each with a new id, as they come. All are checked before the first runs.

        The engine is given more as it has room. Closing the generator aborts what is left.
        """
        self._refuse_if_lent()
        self.engine.check_use()
        checked = [(request_id, self.engine.check_request(prompt, params)) for request_id, prompt, params in requests]
        waiting, inbox, mine = deque(checked), deque[RequestOutput](), set[str]()
        try:
            while waiting or mine:
                while waiting and self.engine.can_take:
                    request_id, prompt = waiting.popleft()
                    self._inboxes[request_id] = inbox
                    mine.add(request_id)
                    try:
                        self.engine.submit(request_id, prompt, options)
                    except MisuseError:
                        raise
                    except PlayheadError as error:
                        inbox.append(not_begun(request_id, prompt, error))
                if not inbox:
                    if not self.engine.has_work:
                        raise PlayheadError(f"LLM: found no trace of {min(mine)!r}; wanted its end. A bug: report it.")
                    self._step()
                while inbox:
                    output = inbox.popleft()
                    if output.finished:
                        mine.discard(output.request_id)
                        del self._inboxes[output.request_id]
                    yield output
        finally:
            for request_id in mine:
                self._inboxes.pop(request_id, None)
                if self._engine is not None:
                    self._engine.abort(request_id)

    def _step(self) -> None:
        """One step of the engine, its outputs to whoever waits for them."""
        self._arrived.extend(self.engine.step())
        while self._arrived:  # one by one, so that an interrupt loses nobody's
            output = self._arrived[0]
            if output.request_id in self._inboxes:
                self._inboxes[output.request_id].append(output)
            self._arrived.popleft()


def not_begun(request_id: str, checked: CheckedPrompt, error: PlayheadError) -> RequestOutput:
    """The whole answer of a request that could not be queued."""
    nothing = CompletionOutput(index=0, text="", token_ids=(), finish_reason=FinishReason.ERROR)
    now_s = time.perf_counter()
    return RequestOutput(
        request_id=request_id,
        prompt=checked.text,
        prompt_token_ids=checked.ids,
        outputs=(nothing,),
        finished=True,
        metrics=RequestMetrics(arrival_s=now_s, finished_s=now_s),
        error=error,
    )


class Stream:
    """One request's outputs; if it failed, its error is raised in the place of the last one."""

    def __init__(self, outputs: Generator[RequestOutput, None, None]) -> None:
        self._outputs, self._is_busy = outputs, False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> RequestOutput:
        if self._is_busy:
            raise MisuseError("stream: asked for its next output while it makes one. Give every thread its own stream.")
        self._is_busy = True
        try:
            output = next(self._outputs)
        finally:
            self._is_busy = False
        if output.error is not None:
            raise output.error
        return output

    def close(self) -> None:
        """Abort the request, unless it has ended."""
        self._outputs.close()


def as_prompts(prompts: Prompts) -> list[Prompt]:
    """A list of prompts, whether one or many were given, as text or as ids. The engine checks each one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        found = f"a {type(prompts).__name__}"
        raise RequestError("prompts", found, "text or ids, one or a list of them", "Put it into a list.")
    numbers = [item for item in prompts if isinstance(item, int)]
    if numbers and len(numbers) < len(prompts):
        found = "ids and whole prompts in one list"
        raise RequestError("prompts", found, "one prompt of ids, or many prompts", "Put the ids into a list.")
    return [numbers] if numbers else [item for item in prompts if not isinstance(item, int)]


def as_params(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """One set of parameters per prompt."""
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or len(params) != count:
        found = f"{len(params)} sets of parameters" if isinstance(params, Sequence) else f"a {type(params).__name__}"
        raise RequestError("params", found, f"one SamplingParams, or {count}", "Give one per prompt.")
    return [checked_params(one) for one in params]


def checked_params(params: object) -> SamplingParams:
    """Parameters as they are, or `RequestError`: a dict would be taken for them and fail in the middle of a step."""
    if not isinstance(params, SamplingParams):
        raise RequestError("params", f"a {type(params).__name__}", "SamplingParams", "Make it one.")
    return params


def split_n(params: SamplingParams) -> list[SamplingParams]:
    """One set per sample. With a seed, sample i has the seed plus i, around the end of 64 bits if need be."""
    if params.n == 1:
        return [params]
    seeds = [None if params.seed is None else (params.seed + i + 2**63) % 2**64 - 2**63 for i in range(params.n)]
    return [replace(params, n=1, seed=seed) for seed in seeds]


def gathered(request_id: str, samples: Sequence[RequestOutput | None]) -> RequestOutput:
    """The samples of one request as one output, as far as they have begun. It is finished when all of them are."""
    begun = [(i, output) for i, output in enumerate(samples) if output is not None]
    metrics = [output.metrics for _, output in begun]
    firsts = [metric.first_token_s for metric in metrics if metric.first_token_s is not None]
    ends = [metric.finished_s for metric in metrics if metric.finished_s is not None]
    finished = len(begun) == len(samples) and all(output.finished for _, output in begun)
    return replace(
        begun[0][1],
        request_id=request_id,
        outputs=tuple(replace(output.outputs[0], index=i) for i, output in begun),
        finished=finished,
        error=next((output.error for _, output in begun if output.error is not None), None),
        metrics=RequestMetrics(
            arrival_s=min(metric.arrival_s for metric in metrics),
            first_token_s=min(firsts, default=None),
            finished_s=max(ends) if finished else None,
        ),
    )
